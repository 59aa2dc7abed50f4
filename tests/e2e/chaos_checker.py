"""What a table should hold against what it holds: every transaction of the log once, with its bytes, and marks that say so.

The dumbest way there is: the log is read by a client, the table by deltalake, and both are compared as lists. Neither goes through what is tested:
Spark's source and the sink.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from deltalake import DeltaTable

from waltz_delta import high_water_marks
from waltz_delta.errors import NotADeltaTable
from waltz_log.client import SyncWaltzClient

TOLD = 10
"""So many differences are named; the rest is counted."""


class Row(NamedTuple):
    partition: int
    transaction_id: int
    checksum: int
    """Of header and data."""


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
    read = DeltaTable(str(path)).to_pyarrow_dataset().to_batches(columns=["partition", "transaction_id", "header", "data"])
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


def differences(log: Iterable[Row], table: Iterable[Row], marks: Mapping[int, int]) -> list[str]:
    """What is wrong with the table, or nothing."""
    expected = {(row.partition, row.transaction_id): row for row in log}
    got = Counter(table)
    times = Counter((row.partition, row.transaction_id) for row in got.elements())
    found = list(_differences(expected, got, times))
    ends = ends_of(expected.values())
    found += [f"mark: partition={p} table={marks.get(p)} log={ends.get(p)}" for p in sorted({*marks, *ends}) if marks.get(p) != ends.get(p)]
    return found[:TOLD] + ([f"and {len(found) - TOLD} more"] if len(found) > TOLD else [])


def _differences(expected: Mapping[tuple[int, int], Row], got: Mapping[Row, int], times: Mapping[tuple[int, int], int]) -> Iterator[str]:
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
