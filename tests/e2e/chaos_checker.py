"""What a table should hold against what it holds: every transaction of the log once, with its bytes, and marks that say so.

The dumbest way there is: the log is read by a client, the table by deltalake, and both are compared as lists. Neither goes through what is tested:
Spark's source and the sink.

A table that users changed differs from the log by what they changed and by nothing else.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as parquet
from deltalake import DeltaTable

from waltz_delta import high_water_marks
from waltz_delta.errors import NotADeltaTable
from waltz_delta.marks.marks import app_id
from waltz_log.client import SyncWaltzClient

TOLD = 10
"""So many differences are named; the rest is counted."""


Place = tuple[int, int]
"""A log partition and a transaction id."""


class Row(NamedTuple):
    partition: int
    transaction_id: int
    checksum: int
    """Of header and data."""

    @property
    def place(self) -> Place:
        return self.partition, self.transaction_id


def _row(partition: int, transaction_id: int, header: int, data: bytes) -> Row:
    return Row(partition, transaction_id, zlib.crc32(data, header))


def log_rows(cluster: str, *, trimmed: Mapping[int, int] | None = None) -> list[Row]:
    """Everything that is committed, which must be dense; from the ids that `trimmed` gives on where a partition does not begin at zero."""
    found = []
    with SyncWaltzClient(cluster) as client:
        for partition in range(client.partitions):
            expected = (trimmed or {}).get(partition, 0)
            mark = client.high_water_mark(partition)
            if mark < expected:
                continue
            for batch in client.feed_batches(partition, after=expected - 1):
                for each in batch:
                    assert each.transaction_id == expected, f"the log has a gap: partition={partition} expected={expected} got={each.transaction_id}"
                    found.append(_row(partition, each.transaction_id, each.header, each.data))
                    expected += 1
                if expected > mark:
                    break
    return found


def table_rows(path: Path) -> list[Row]:
    return _rows_of(DeltaTable(str(path)))


class Held(NamedTuple):
    """What one version of a table holds. Its marks are Delta's own identifiers, as no query has brought them in line with a RESTORE yet."""

    version: int
    rows: list[Row]
    marks: dict[int, int]
    int96: list[str]
    """Columns whose timestamps most readers interpret as nanoseconds."""


def held(path: Path, cluster_key: str, partitions: int) -> Held:
    table = DeltaTable(str(path))
    reported = {partition: table.transaction_version(app_id(cluster_key, partition)) for partition in range(partitions)}
    marks = {partition: mark for partition, mark in reported.items() if mark is not None and mark >= 0}
    return Held(table.version(), _rows_of(table), marks, int96_columns(table))


def int96_columns(table: DeltaTable) -> list[str]:
    found = set()
    for uri in table.file_uris():
        schema = parquet.ParquetFile(uri.removeprefix("file://")).schema
        found |= {column.path for column in schema if column.physical_type == "INT96"}
    return sorted(found)


def _rows_of(table: DeltaTable) -> list[Row]:
    read = table.to_pyarrow_dataset().to_batches(columns=["partition", "transaction_id", "header", "data"])
    return [
        _row(partition, at, header, data)
        for batch in read
        for partition, at, header, data in zip(*(batch.column(name).to_pylist() for name in batch.schema.names), strict=True)
    ]


def marks_of(path: Path, cluster_key: str) -> dict[int, int]:
    """Of a table that need not be there yet."""
    try:
        return high_water_marks(str(path), cluster_key)
    except NotADeltaTable:
        return {}


def ends_of(rows: Iterable[Row]) -> dict[int, int]:
    """The last id of each partition."""
    found: dict[int, int] = {}
    for row in rows:
        found[row.partition] = max(row.transaction_id, found.get(row.partition, -1))
    return found


def differences(
    log: Iterable[Row], table: Iterable[Row], marks: Mapping[int, int], *, deleted: Collection[Place] = (), foreign: Iterable[Row] = ()
) -> list[str]:
    """What is wrong with the table, or nothing. Users `deleted` rows of these places from it, and added `foreign` ones."""
    rows = list(log)
    ends = ends_of(rows)
    expected = {row.place: row for row in rows if row.place not in deleted} | {row.place: row for row in foreign}
    got = Counter(table)
    times = Counter(row.place for row in got.elements())
    found = list(_differences(expected, got, times))
    found += [f"mark: partition={p} table={marks.get(p)} log={ends.get(p)}" for p in sorted({*marks, *ends}) if marks.get(p) != ends.get(p)]
    return found[:TOLD] + ([f"and {len(found) - TOLD} more"] if len(found) > TOLD else [])


def differences_below_marks(log: Iterable[Row], table: Held, *, deleted: Collection[Place] = (), foreign: Iterable[Row] = ()) -> list[str]:
    """As `differences`, of the part of the log that the table says it holds: what comes later may be on its way."""
    below = [row for row in log if row.transaction_id <= table.marks.get(row.partition, -1)]
    found = differences(below, table.rows, table.marks, deleted=deleted, foreign=foreign)
    return found + [f"INT96 timestamps: column={column}" for column in table.int96]


def not_reached(log: Mapping[int, int], table: Mapping[int, int]) -> list[str]:
    """The partitions whose mark in the table is not the last id of the log."""
    return [f"not reached: partition={p} table={table.get(p)} log={end}" for p, end in sorted(log.items()) if table.get(p) != end]


def _differences(expected: Mapping[Place, Row], got: Mapping[Row, int], times: Mapping[Place, int]) -> Iterator[str]:
    for place in sorted({*expected, *times}):
        where = f"partition={place[0]} transaction_id={place[1]}"
        if place not in times:
            yield f"missing: {where}"
        elif place not in expected:
            yield f"not in the log: {where}"
        elif times[place] > 1:
            yield f"{times[place]} times: {where}"
        elif expected[place] not in got:
            yield f"other bytes: {where}"
