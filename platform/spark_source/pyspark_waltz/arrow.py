"""From a run of records to an Arrow batch with the source's columns. Pure, vectorised: nothing per row in Python.

The data column costs one pass in C++: a binary array whose elements reach from the start of one record's data to the start of the next one's holds
the data and exactly 40 bytes more (the closing checksum and the next header), which one slice takes off.

Spark compares the batch's schema exactly: nullable fields, `binary` with 32-bit offsets, microseconds in UTC, and this order.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pyspark_waltz.intervals import Intervals
from waltz_log.core.block import HEADER_BYTES, RECORD_OVERHEAD_BYTES
from waltz_log.core.columns import headers_array, lengths_array, offsets_array

__all__ = ["ARROW_SCHEMA", "ARROW_SCHEMA_WITH_METADATA", "PADDING", "record_batch"]

PADDING = bytes(HEADER_BYTES)
"""What must stand behind the last record, so that the array that holds each record's data and what follows it ends within the buffer."""

NO_TESTS: Mapping[str, Intervals] = {}

ARROW_SCHEMA = pa.schema(
    [
        pa.field("partition", pa.int32()),
        pa.field("transaction_id", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("header", pa.int32()),
        pa.field("data", pa.binary()),
    ]
)

ARROW_SCHEMA_WITH_METADATA = pa.schema(
    [
        *ARROW_SCHEMA,
        pa.field("client_id", pa.int32()),
        pa.field("generation", pa.int32()),
        pa.field("sequence", pa.int32()),
        pa.field("checksum", pa.int64()),
    ]
)

_METADATA = (("client_id", np.int32), ("generation", np.int32), ("sequence", np.int32), ("data_checksum", np.int64))


def record_batch(
    records: bytes, lengths: bytes, append_times_ms: NDArray[np.int64], *, include_metadata: bool = False, tests: Mapping[str, Intervals] = NO_TESTS
) -> pa.RecordBatch:
    """One row per record that passes the tests. `records` is verified by the caller, below 2 GiB, and followed by `PADDING`, which is no record;
    `append_times_ms` has one time per record."""
    count = len(lengths_array(lengths))
    headers = headers_array(records, lengths)
    starts = np.empty(count + 1, dtype=np.int32)
    np.add(offsets_array(lengths), HEADER_BYTES, out=starts, casting="unsafe")
    wide = pa.BinaryArray.from_buffers(pa.binary(), count, [None, pa.py_buffer(starts), pa.py_buffer(records)])
    columns = [
        pa.array(headers["partition"].astype(np.int32)),
        pa.array(headers["transaction_id"].astype(np.int64)),
        pa.array(append_times_ms * 1000, type=pa.int64()).cast(pa.timestamp("us", tz="UTC")),
        pa.array(headers["header"].astype(np.int32)),
        pc.binary_slice(wide, 0, -RECORD_OVERHEAD_BYTES),
    ]
    if include_metadata:
        columns += [pa.array(headers[name].astype(kind)) for name, kind in _METADATA]
    batch = pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA_WITH_METADATA if include_metadata else ARROW_SCHEMA)
    if not tests:
        return batch
    passing = np.ones(count, dtype=bool)
    for column, passes in tests.items():
        values = headers[column].astype(np.int64)
        passed = np.zeros(count, dtype=bool)
        for low, high in passes.spans:
            passed |= (values >= low) & (values <= high)
        passing &= passed
    return batch if passing.all() else batch.filter(pa.array(passing))
