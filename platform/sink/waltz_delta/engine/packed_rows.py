"""Collects rows that tasks make: packed as Arrow streams, which the JVM hands on as they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final  # Any: pyarrow has no types

import pyarrow as pa

from pyspark_waltz.worker_heap import task_begins
from waltz_delta.base.direct_rows import DirectRows, MakeRows, Undecoded

__all__ = ["collect_direct"]

PACKED_BYTES: Final = 16 << 20
"""About as much of the rows goes to the driver as one value. The JVM holds it as an array of bytes, which has less than 2 GB."""
_PACKED: Final = "packed BINARY, undecoded BIGINT"
_PACKED_SCHEMA: Final = pa.schema([("packed", pa.binary()), ("undecoded", pa.int64())])


def collect_direct(rows: DirectRows) -> Any:
    """The rows as an Arrow table in the driver, in no order; None if there are none. Sets `undecoded`."""
    packed = rows.frame.mapInArrow(partial(_pack, rows.make), _PACKED).toArrow()  # `collect` would count compressed bytes as those of the result
    rows.undecoded = sum(packed["undecoded"].to_pylist())
    tables = [pa.ipc.open_stream(stream.as_buffer()).read_all() for stream in packed["packed"] if stream.is_valid]
    return pa.concat_tables(tables) if tables else None


def _pack(make: MakeRows, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    task_begins()
    undecoded = Undecoded()
    waiting: list[pa.RecordBatch] = []
    for batch in make(batches, undecoded):
        rows = max(1, batch.num_rows * PACKED_BYTES // max(1, batch.nbytes))
        for first in range(0, batch.num_rows, rows):
            waiting.append(batch.slice(first, rows))
            if sum(each.nbytes for each in waiting) >= PACKED_BYTES:
                yield _stream(waiting, 0)
                waiting = []
    yield _stream(waiting, undecoded.count)


def _stream(batches: Sequence[pa.RecordBatch], undecoded: int) -> pa.RecordBatch:
    value = None
    if batches:
        stream = pa.BufferOutputStream()
        with pa.ipc.new_stream(stream, batches[0].schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        value = stream.getvalue().to_pybytes()
    return pa.RecordBatch.from_arrays([pa.array([value], pa.binary()), pa.array([undecoded], pa.int64())], schema=_PACKED_SCHEMA)
