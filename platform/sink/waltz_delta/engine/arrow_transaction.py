"""One optimistic transaction of the Arrow engine: tasks of Spark write the files, and the driver commits them with the identifiers, without the JVM.

`deltalake` would resolve conflicts by itself, and accept a commit that was decided before a feature, a column or a RESTORE came in between. So a
commit here is a compare-and-set on the table's version:

1. Refresh. The identifiers that this transaction read, the protocol, the columns, the layout and the properties must be the same as when the files
   were written, and no RESTORE may have come since. Otherwise the transaction is lost, and its batch is decided again.
2. Create the next version, only if it does not exist (`commit_files`), without a second attempt.
3. An error means that the outcome is unknown: the store may have created the version and the answer was lost. So open the table again. If one of its
   commits has the id of this one, it succeeded. If none has, go to 1 with the same files. If the store executes the first request later, that still
   creates the version only if it does not exist.

So an identifier and the rows below it are in one commit, and no file is in two commits.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final  # Any: `deltalake` has no types, and JSON values

import pyarrow.compute as _pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from waltz_delta.base.checkpoint_pace import COMMITS_MIN, INTERVAL, checkpoint_pace, with_interval
from waltz_delta.base.checkpoints import CHECKPOINTS
from waltz_delta.base.direct_rows import DirectRows
from waltz_delta.base.store_errors import sentence, store_errors
from waltz_delta.base.zones import instant_ms
from waltz_delta.engine import commit_files
from waltz_delta.engine.allowed import TableShape, refusal
from waltz_delta.engine.arrow_merge import ArrowMerge
from waltz_delta.engine.arrow_table import ArrowTable, NotOpened, OpenedTable
from waltz_delta.engine.commit_files import NotNext, interrupts_kept, no_hooks, properties_of
from waltz_delta.engine.living_files import OUTSIDE
from waltz_delta.engine.log_actions import Change
from waltz_delta.engine.log_end import CheckpointFiles, keeps_commits
from waltz_delta.engine.table_rows import read_rows
from waltz_delta.engine.written_files import WrittenFiles, delta_schema, write_direct, write_rows
from waltz_delta.errors import NotADeltaTable, StoreUnavailable

__all__ = ["ArrowTransaction", "Overtaken", "new_shape", "with_defaults"]

pc: Any = _pc

TURNS_MAX: Final = 20
"""How often a commit is tried while other commits come first that do not change what it was decided from."""
FAILURES_MAX: Final = 4
"""How often the store may fail. `deltalake` has repeated each request before."""
PAUSE_S: Final = 0.25
"""Before a second try at a store that failed; doubled for each further one."""

OWN_ID: Final = "waltzCommit"
"""In `commitInfo`: the id by which a transaction finds its own commit."""


@dataclass(frozen=True, slots=True)
class TableFiles:
    """`bytes`: of all of them. `outside`: one that is not below the table's directory; None if all are."""

    bytes: int
    outside: str | None


class Overtaken(Exception):
    """Another commit changed what the transaction was decided from. Nothing of it is in the table. Internal to this package."""


class ArrowTransaction:
    """`TableTransaction` by `deltalake`. `zone`: of a time without an offset in the log, as Delta's RESTORE records it."""

    def __init__(self, table: ArrowTable, sleep: Callable[[float], object] = time.sleep, zone: str = "UTC") -> None:
        self._table = table
        self._zone = zone
        self._sleep = sleep
        self._base = table.open()
        self._read: dict[str, int | None] = {}
        self._own_id = uuid.uuid4().hex
        self.exists = self._base is not None
        self.read_version = -1 if self._base is None else self._base.version
        self.table_id = "" if self._base is None else self._base.table_id

    @property
    def shape(self) -> TableShape | None:
        """Columns, layout and properties of the table; None if there is none."""
        return None if self._base is None else self._base.shape

    def files(self) -> TableFiles:
        """What a MERGE must know of the table's files."""
        if self._base is None:
            return TableFiles(0, None)
        found = self._base.living_files()
        outside = pc.filter(found["path"], pc.match_substring_regex(found["path"], OUTSIDE))
        return TableFiles(pc.sum(found["size_bytes"]).as_py() or 0, outside[0].as_py() if len(outside) else None)

    @property
    def refusal(self) -> str | None:
        """Why this engine does not write the table; None if it does, or there is no table."""
        return None if self._base is None else refusal(self._base.protocol, self._base.shape)

    def version(self, app_id: str) -> int | None:
        if self._base is None:
            self._read[app_id] = None
        elif app_id not in self._read:
            self._read[app_id] = self._base.identifier(app_id)
        return self._read[app_id]

    def versions(self) -> dict[str, int]:
        return self.versions_at(self.read_version) if self.exists else {}

    def versions_at(self, version: int) -> dict[str, int]:
        log = self._table.log()
        return log.identifiers if log.version == version else log.identifiers_at(version)

    def commits(self, count: int) -> Iterator[tuple[int, dict[str, Any]]]:
        return self._table.commits(self.read_version, count)

    def version_until(self, before: int, timestamp: str) -> int:
        return self._table.log().version_until(before, instant_ms(timestamp, self._zone))

    def refuse_strange_checksum(self) -> None:
        """`deltalake` reads no checksum files, so a strange one changes nothing."""

    def properties(self) -> dict[str, str]:
        return {} if self._base is None else dict(self._base.shape.properties)

    def schema_text(self) -> str:
        return "" if self._base is None else self._base.schema_text

    def lost_to_another(self, error: BaseException) -> bool:
        """Also true for any other error if the table was created, removed or replaced meanwhile."""
        if isinstance(error, Overtaken):
            return True
        try:
            found = self._table.reopen()
        except NotOpened:  # it has a feature now that only Spark's engine writes
            return True
        except Exception:  # the first error says more
            return False
        return ("" if found is None else found.table_id) != self.table_id

    def rows(self, spark: SparkSession, columns: Sequence[str]) -> DataFrame:
        if self._base is None:
            raise NotADeltaTable(path=self._table.path, reason="no table there")
        return read_rows(spark, self._table, self._base, columns)

    def write(self, rows: DataFrame, *, partition_by: Sequence[str], properties: Mapping[str, str]) -> WrittenFiles:
        """`partition_by` and `properties`: of the table, if there is none yet. Raises `SchemaMismatch` if a row does not fit the table."""
        if self._base is not None:
            return write_rows(rows, self._table, self._base.shape)
        return write_rows(rows, self._table, new_shape(rows.schema, partition_by, properties))

    def write_direct(self, rows: DirectRows, *, properties: Mapping[str, str]) -> WrittenFiles:
        """`write` of rows that the tasks make, which need no conversion, for a table without partition columns."""
        return write_direct(rows, self._table, new_shape(rows.schema, (), properties) if self._base is None else self._base.shape)

    def mark(self, versions: Mapping[str, int], *, query: str, batch: int, metadata: str) -> int:
        return self.commit(None, versions, query=query, batch=batch, metadata=metadata)

    def commit(self, written: WrittenFiles | None, versions: Mapping[str, int], *, query: str, batch: int, metadata: str) -> int:
        """Raises `Overtaken`, `TableLocked`, `StoreUnavailable`."""
        info = {"userMetadata": metadata, OWN_ID: self._own_id, "isBlindAppend": True, "waltzQuery": query, "waltzBatch": batch}
        if self._base is None:
            assert written is not None, "a table is created for rows"
            return self._create(written, versions, info)
        change = Change(written.added if written is not None else ())
        return self._commit(self._base, lambda opened, named: commit_files.create_commit(opened, change, versions, named), versions, info)

    def create(self, shape: TableShape, versions: Mapping[str, int], *, metadata: str) -> int:
        """Creates the table without rows, in one commit with the identifiers. Raises what `commit` raises; `Overtaken` if there is a table now."""
        if self._base is not None:
            raise Overtaken
        return self._create(WrittenFiles((), shape), versions, {"userMetadata": metadata, OWN_ID: self._own_id})

    def merge(self, merge: ArrowMerge, versions: Mapping[str, int], *, query: str, batch: int, metadata: str) -> int:
        """Merges rows and commits the identifiers with them, or alone if no row changes. Raises what `ArrowMerge.run` and `commit` raise."""
        return self._change(lambda opened: merge.run(self._table, opened), versions, query=query, batch=batch, metadata=metadata)

    def rewrite(self, change: Change, versions: Mapping[str, int], *, query: str, batch: int, metadata: str) -> int:
        """Commits files that were written from files of the version that this transaction read, with the identifiers. Raises `Overtaken` also if one
        of the removed files is gone, and what `commit` raises."""
        removed = {file.path for file in change.removed}

        def still_there(opened: OpenedTable) -> Change:
            if not removed <= set(opened.living_files()["path"].to_pylist()):
                raise Overtaken
            return change

        return self._change(still_there, versions, query=query, batch=batch, metadata=metadata)

    def _change(self, decided: Callable[[OpenedTable], Change], versions: Mapping[str, int], *, query: str, batch: int, metadata: str) -> int:
        """`decided`: the change by the version after which it is committed. If the store fails at the commit, the same files are committed again: a
        disk that is almost full has no space for others."""
        assert self._base is not None, "a table whose files are written again exists"
        made: tuple[OpenedTable, Change] | None = None

        def put(opened: OpenedTable, named: Mapping[str, Any]) -> None:
            nonlocal made
            if made is None or _origin(opened) != _origin(made[0]):
                made = opened, decided(opened)
            if not self._table.is_at(opened):  # a merge can last minutes, and an object store compares the number of the version alone
                raise Overtaken
            commit_files.create_commit(opened, made[1], versions, named)

        info = {"userMetadata": metadata, OWN_ID: self._own_id, "isBlindAppend": False, "waltzQuery": query, "waltzBatch": batch}
        return self._commit(self._base, put, versions, info)

    def _commit(
        self, base: OpenedTable, put: Callable[[OpenedTable, Mapping[str, Any]], None], versions: Mapping[str, int], info: Mapping[str, Any]
    ) -> int:
        """`put` creates the next version with these identifiers and this `commitInfo`, and may be called again after another commit came first."""
        failures = 0
        for _ in range(TURNS_MAX):
            failure = None
            with self._table.committing():
                opened = self._unchanged(base)
                seen = opened.version
                try:
                    put(opened, {**info, "readVersion": seen})
                except _unknown_outcomes() as error:
                    failure = error
            committed = seen + 1 if failure is None else self._landed(failure, seen, versions)
            if committed is not None:
                with store_errors(self._table.path):
                    self._table.sync_commit(committed)
                self._schedule_checkpoint(committed, opened)
                return committed
            found = self._newest()
            if found is None or found.version == seen:  # no other commit is the reason
                failures += 1
                if failures == FAILURES_MAX:
                    assert failure is not None
                    raise StoreUnavailable(path=self._table.path, reason=sentence(failure)) from failure
                self._sleep(PAUSE_S * 2**failures)
        raise Overtaken

    def _unchanged(self, base: OpenedTable) -> OpenedTable:
        """The newest version, if this transaction would be decided from it in the same way."""
        opened = self._newest()
        if opened is None or not opened.same_rules(base) or opened.version < base.version:
            raise Overtaken
        if any(opened.identifier(name) != version for name, version in self._read.items()):
            raise Overtaken
        since = [info.get("operation") for _, info in self._table.commits(opened.version, opened.version - base.version)]
        if "RESTORE" in since:
            raise Overtaken
        if len(since) < opened.version - base.version and keeps_commits(opened.shape.properties):
            raise Overtaken  # the driver stood still for long, and what was cleaned up may be a RESTORE
        return opened

    def _newest(self, *, again: bool = False) -> OpenedTable | None:
        """The newest version, `again` from the table's files alone. Raises `Overtaken` if only Spark's engine writes the table now."""
        try:
            return self._table.reopen() if again else self._table.open()
        except NotOpened:
            raise Overtaken from None

    def _landed(self, failure: Exception, seen: int, versions: Mapping[str, int]) -> int | None:
        """The version that our commit made after version `seen` although it failed; None if none is in the table. A commit that the log has may lie
        before a checkpoint that was made without it, so the identifiers must be there too. Without identifiers a commit that may lie so does not
        count: what has none may be committed twice."""
        if isinstance(failure, NotNext):
            return None
        opened = self._newest(again=True)
        if opened is None or (self.exists and opened.table_id != self.table_id):
            return None
        since = self._table.commits(opened.version, opened.version - seen)
        found = next((version for version, info in since if info.get(OWN_ID) == self._own_id), None)
        if found is None or (not versions and self._table.has_checkpoint_since(found)):
            return None
        held = {name: opened.identifier(name) for name in versions}
        return None if any(now is None or now < versions[name] for name, now in held.items()) else found

    def _create(self, written: WrittenFiles, versions: Mapping[str, int], info: Mapping[str, Any]) -> int:
        """Creates the table with its first rows and marks, as version 0."""
        from deltalake import Schema
        from deltalake.transaction import create_table_with_add_actions

        try:
            with self._table.committing(), interrupts_kept():
                create_table_with_add_actions(
                    self._table.location,
                    Schema.from_json(json.dumps(written.shape.schema)),
                    Change(written.added).entries(),
                    mode="error",
                    partition_by=list(written.shape.partition_by),
                    configuration=dict(written.shape.properties),
                    storage_options=self._table.storage or None,
                    commit_properties=properties_of(versions, info),
                    post_commithook_properties=no_hooks(),
                )
        except _unknown_outcomes() as error:
            if self._landed(error, -1, versions) is None:
                if self._newest() is not None:
                    raise Overtaken from error
                raise StoreUnavailable(path=self._table.path, reason=sentence(error)) from error
        with store_errors(self._table.path):
            self._table.sync_commit(0)
        return 0

    def _schedule_checkpoint(self, committed: int, opened: OpenedTable) -> None:
        pace = checkpoint_pace(int(opened.shape.properties.get(INTERVAL, COMMITS_MIN)))
        table, table_id = self._table, opened.table_id
        CHECKPOINTS.committed(table.path, committed, pace, table.last_checkpoint(), lambda: table.write_checkpoint(table_id))


def new_shape(
    schema: StructType, partition_by: Sequence[str], properties: Mapping[str, str], defaults: Mapping[str, str] = MappingProxyType({})
) -> TableShape:
    """The shape of a table that is created for rows of this schema. `defaults`: properties that the session gives to it, unless its own say
    otherwise."""
    names = {name.lower(): name for name in schema.fieldNames()}
    return TableShape(delta_schema(schema), tuple(names[name.lower()] for name in partition_by), with_defaults(with_interval(properties), defaults))


def with_defaults(properties: Mapping[str, str], defaults: Mapping[str, str]) -> dict[str, str]:
    given = {name.lower() for name in properties}
    return {**{name: value for name, value in defaults.items() if name.lower() not in given}, **properties}


def _origin(opened: OpenedTable) -> tuple[int, bytes | None, CheckpointFiles]:
    """What differs between two versions of the same number."""
    return opened.version, opened.commit, opened.checkpoint


def _unknown_outcomes() -> tuple[type[Exception], ...]:
    """What `deltalake` raises when a commit failed, or succeeded without an answer."""
    from deltalake.exceptions import DeltaError

    return (DeltaError, OSError)
