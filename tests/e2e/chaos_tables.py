"""What people do to a table beside the sink, through delta-rs, and which rows a table must hold after it.

A user's own changes are part of what is expected: rows that were deleted stay away, rows that were added stay. A RESTORE undoes what was changed
after the version it restores; a table that is removed or replaced loses its changes too.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from tests.e2e.chaos_checker import Place, Row, marks_of
from waltz_delta.marks.marks import app_id

__all__ = ["Edits", "Replacement", "TableUser"]

T = TypeVar("T")

Replacement = Literal["level", "behind", "strange"]
"""What comes to the table's path: a table that another query filled as far, or less far, or one that the sink never filled."""

OTHER_CLUSTER = "c9f9d1de-5f7c-4a4e-9d39-50d9bd5c4c13"

ZONE = "waltz.timeZone"

FOREIGN = 1000
"""Added rows name a log partition that no log has, from here on."""

RESTORED_BACK = 6
"""Versions at most that a RESTORE goes back."""


class Edits:
    """What users changed in one table, by the version that each change made."""

    def __init__(self, missing: Iterable[Place] = (), foreign: Iterable[Row] = ()) -> None:
        self._initially = (frozenset(missing), tuple(foreign))
        self._deleted: list[tuple[int, frozenset[Place]]] = []
        self._added: list[tuple[int, tuple[Row, ...]]] = []
        self._restored: list[tuple[int, int]] = []

    def delete(self, version: int, places: Iterable[Place]) -> None:
        self._deleted.append((version, frozenset(places)))

    def add(self, version: int, rows: Iterable[Row]) -> None:
        self._added.append((version, tuple(rows)))

    def restore(self, version: int, target: int) -> None:
        self._restored.append((version, target))

    def at(self, version: int) -> tuple[frozenset[Place], list[Row]]:
        """Places of the log whose rows are not in the table of this version, and rows of it that are not of the log."""
        standing: list[range] = []
        while True:
            restored = max((each for each in self._restored if each[0] <= version), default=None)
            standing.append(range(-1 if restored is None else restored[0], version + 1))
            if restored is None:
                break
            version = restored[1]

        def stands(made: int) -> bool:
            return any(made in versions for versions in standing)

        missing, foreign = self._initially
        deleted = missing.union(*(places for made, places in self._deleted if stands(made)))
        return deleted, [*foreign, *(row for made, rows in self._added if stands(made) for row in rows)]


class TableUser:
    """Works on one table as a user would who does not know the sink. `edits` says what that means for its rows."""

    def __init__(self, path: Path, cluster_key: str, rng: random.Random) -> None:
        self.path, self._key, self._rng = path, cluster_key, rng
        self.edits = Edits()
        self._readable_from = 0
        """Versions before have lost files to VACUUM."""
        self._foreign = 0
        self._constraints = 0
        self._zone: str | None = None
        """That of the table, before it was changed."""

    def delete(self) -> None:
        """DELETE of up to twenty transactions of one partition."""
        marks = marks_of(self.path, self._key)
        partition = self._rng.choice(sorted(marks))
        first = self._rng.randrange(marks[partition] + 1)
        last = min(marks[partition], first + self._rng.randrange(20))
        version = self._again(lambda table: table.delete(f"partition = {partition} AND transaction_id BETWEEN {first} AND {last}"))
        self.edits.delete(version, [(partition, at) for at in range(first, last + 1)])

    def append(self) -> None:
        """Rows that are not of the log."""
        rows, written = self._foreign_rows(self._rng.randrange(1, 10))
        version = self._again(lambda table: write_deltalake(table, written, mode="append"))
        self.edits.add(version, rows)

    def optimize(self) -> None:
        self._again(lambda table: table.optimize.compact())

    def add_constraint(self) -> None:
        """One that every row satisfies, under another name each time."""
        self._constraints += 1
        self._again(lambda table: table.alter.add_constraint({f"numbered_{self._constraints}": "partition >= 0"}))

    def set_mode(self, mode: str) -> None:
        """As if the table had been filled in this mode."""
        self._again(lambda table: table.alter.set_table_properties({"waltz.mode": mode}, raise_if_not_exists=False))

    def rename_column(self, old: str, new: str) -> None:
        """In the table's log alone. With column mapping a user can do it, and the sink sees the same."""

        def rename(metadata: dict[str, Any]) -> None:
            schema = json.loads(metadata["schemaString"])
            for field in schema["fields"]:
                field["name"] = new if field["name"] == old else field["name"]
            metadata["schemaString"] = json.dumps(schema)

        self._change_metadata(rename)

    def change_zone(self) -> None:
        """As if the table had been filled in another time zone than the next driver has."""

        def change(metadata: dict[str, Any]) -> None:
            self._zone = metadata["configuration"].get(ZONE)
            metadata["configuration"][ZONE] = "Asia/Tokyo"

        self._change_metadata(change)

    def restore_zone(self) -> None:
        def restore(metadata: dict[str, Any]) -> None:
            del metadata["configuration"][ZONE]
            if self._zone is not None:
                metadata["configuration"][ZONE] = self._zone

        self._change_metadata(restore)

    def _change_metadata(self, change: Callable[[dict[str, Any]], None]) -> None:
        """A commit that only has new metadata of the table, which delta-rs cannot make."""
        while True:
            table = DeltaTable(str(self.path))
            found = table.metadata()
            metadata = {
                "id": str(found.id),
                "format": {"provider": "parquet", "options": {}},
                "schemaString": table.schema().to_json(),
                "partitionColumns": list(found.partition_columns),
                "configuration": dict(found.configuration),
                "createdTime": found.created_time,
            }
            change(metadata)
            info = {"timestamp": time.time_ns() // 1_000_000, "operation": "SET TBLPROPERTIES", "operationParameters": {}}
            written = self.path.with_name(f"metadata-{time.monotonic_ns()}")
            written.write_text("".join(json.dumps(line) + "\n" for line in ({"commitInfo": info}, {"metaData": metadata})))
            try:
                os.link(written, self.path / "_delta_log" / f"{table.version() + 1:020d}.json")
            except FileExistsError:
                continue
            finally:
                written.unlink()
            return

    def claim_for_other_cluster(self) -> None:
        """As if another cluster had filled the table too."""
        self._set_mark(OTHER_CLUSTER, 5)

    def forget_other_cluster(self) -> None:
        self._set_mark(OTHER_CLUSTER, -1)

    def _set_mark(self, cluster_key: str, mark: int) -> None:
        _, written = self._foreign_rows(0)
        properties = CommitProperties(app_transactions=[Transaction(app_id(cluster_key, 0), mark)])
        self._again(lambda table: write_deltalake(table, written, mode="append", commit_properties=properties))

    def vacuum(self) -> None:
        """With a retention of 0 hours: all that the newest version does not name. Not while a query runs, whose next files no version names yet."""
        self._readable_from = self._again(lambda table: table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True))

    def restore(self) -> None:
        """RESTORE to one of the newest versions. Where there is one version only, another is made."""
        newest = DeltaTable(str(self.path)).version()
        if newest <= self._readable_from:
            self.append()
            newest += 1
        self.restore_to(self._rng.randrange(max(self._readable_from, newest - RESTORED_BACK), newest))

    def restore_and_write(self) -> None:
        """RESTORE, and then more commits than a quick scan of the table's history reads."""
        self.restore()
        for _ in range(60):
            self.append()

    def restore_to(self, target: int) -> None:
        self.edits.restore(self._again(lambda table: table.restore(target)), target)

    def remove(self) -> None:
        """All files, one by one or at once. A query may write some more meanwhile."""
        doomed = self.path
        if self._rng.random() < 0.5:
            doomed = self.path.rename(self.path.with_name(f"removed-{time.monotonic_ns()}"))
        while doomed.exists():
            shutil.rmtree(doomed, ignore_errors=True)
        self.edits, self._readable_from = Edits(), 0

    def empty(self) -> None:
        """All files and no folder: what is left of a table in an object store that has no folders of its own."""
        for path in [each for each in self.path.rglob("*") if each.is_file()]:
            path.unlink(missing_ok=True)
        self.edits, self._readable_from = Edits(), 0

    def replace(self, how: Replacement) -> None:
        """Another table, with an id of its own, comes to the path."""
        marks = marks_of(self.path, self._key)
        table = DeltaTable(str(self.path))
        missing, foreign = self.edits.at(table.version())
        kept: dict[int, int] = {}
        if how != "strange":
            kept = {p: mark if how == "level" else self._rng.randrange(mark + 1) for p, mark in marks.items()}
            held = table.to_pyarrow_table()
            above = [p in marks and at > kept[p] for p, at in zip(held["partition"].to_pylist(), held["transaction_id"].to_pylist(), strict=True)]
            rows = held.filter(pa.array([not each for each in above]))
            self.edits = Edits({(p, at) for p, at in missing if at <= kept[p]}, foreign)  # rows above the marks come again
        else:
            foreign, rows = self._foreign_rows(5)
            self.edits = Edits(foreign=foreign)
        new, old = self.path.with_name("replacing"), self.path.with_name("replaced")
        reported = [Transaction(app_id(self._key, p), mark) for p, mark in sorted(kept.items())]
        write_deltalake(new, rows, commit_properties=CommitProperties(app_transactions=reported) if reported else None)
        self.path.rename(old)
        if self.path.exists():  # a query wrote there just now
            shutil.rmtree(self.path)
        new.rename(self.path)
        shutil.rmtree(old)
        self._readable_from = 0

    def remove_left_checksums(self) -> None:
        """Checksum files above the newest version, left by a query that committed as the table was replaced. The sink refuses them later on."""
        log = self.path / "_delta_log"  # read as files: delta-rs opens no table with such a checksum file
        commits = [int(path.stem) for path in log.glob("*.json") if path.stem.isdecimal()]
        for path in log.glob("*.crc"):
            if commits and path.stem.isdecimal() and int(path.stem) > max(commits):
                path.unlink()

    def _foreign_rows(self, count: int) -> tuple[list[Row], pa.Table]:
        ids = range(self._foreign, self._foreign + count)
        self._foreign += count
        data = [self._rng.randbytes(20) for _ in ids]
        now = datetime.now(UTC)
        columns = {
            "partition": pa.array([FOREIGN] * count, pa.int32()),
            "transaction_id": pa.array(ids, pa.int64()),
            "timestamp": pa.array([now] * count, pa.timestamp("us", "UTC")),
            "header": pa.array([0] * count, pa.int32()),
            "data": pa.array(data, pa.binary()),
        }
        return [Row(FOREIGN, at, zlib.crc32(each, 0)) for at, each in zip(ids, data, strict=True)], pa.table(columns)

    def _again(self, act: Callable[[DeltaTable], Any]) -> int:
        """Until no other commit comes first. The version that it made."""
        for _ in range(50):
            table = DeltaTable(str(self.path))
            try:
                act(table)
            except CommitFailedError:
                continue
            except DeltaError as error:
                if "already exists" not in str(error):
                    raise
                continue
            return table.version()
        raise AssertionError("delta-rs lost fifty races")


def known_id(checkpoint: Path, table: Path) -> str:
    """The table's id as the checkpoint has it; empty where it says nothing."""
    place = checkpoint / "waltz" / "tables.json"
    found: Mapping[str, str] = json.loads(place.read_text()) if place.exists() else {}
    return str(found.get(str(table), ""))


def table_id(table: Path) -> str:
    """Delta's id of the table; empty where there is none."""
    return str(DeltaTable(str(table)).metadata().id) if DeltaTable.is_deltatable(str(table)) else ""
