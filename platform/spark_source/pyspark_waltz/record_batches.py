"""From consecutive records to an Arrow batch with the source's columns. Pure and vectorized: no Python code runs per row.

The data column needs one pass in C++. A binary array whose elements reach from the start of one record's data to the start of the next record's data
holds the data and exactly 40 more bytes (the closing checksum and the next header), which one slice removes.

Spark compares the batch's schema exactly: nullable fields, `binary` with 32-bit offsets, microseconds in UTC, and this order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any  # structured dtypes

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pyspark_waltz.intervals import Intervals
from pyspark_waltz.naming import TopicOf
from waltz_log.core.formats.columns import headers_array, lengths_array, offsets_array
from waltz_log.core.formats.envelope import ENVELOPE_BYTES, ENVELOPE_VERSION, KEY_BYTES_MAX
from waltz_log.core.formats.record_layout import HEADER_BYTES, RECORD_OVERHEAD_BYTES
from waltz_log.errors import EnvelopeBroken

__all__ = ["ARROW_SCHEMA", "ARROW_SCHEMA_WITH_METADATA", "PADDING", "arrow_schema", "record_batch"]

PADDING = bytes(HEADER_BYTES)
"""Must follow the last record, so that the array of each record's data and the 40 bytes after it ends within the buffer."""

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

_TOPIC_FIELDS = (pa.field("topic", pa.string()), pa.field("key", pa.binary()))


def arrow_schema(*, include_metadata: bool, by_topic: bool) -> pa.Schema:
    """The Arrow schema of transactions, as Spark expects it."""
    plain = ARROW_SCHEMA_WITH_METADATA if include_metadata else ARROW_SCHEMA
    return pa.schema([*plain, *_TOPIC_FIELDS]) if by_topic else plain


_METADATA = (("client_id", np.int32), ("generation", np.int32), ("sequence", np.int32), ("data_checksum", np.int64))


def record_batch(
    records: bytes,
    lengths: bytes,
    append_times_ms: NDArray[np.int64],
    *,
    include_metadata: bool = False,
    topic: TopicOf | None = None,
    tests: Mapping[str, Intervals] = NO_TESTS,
) -> pa.RecordBatch:
    """One row per record that passes the tests. The caller has verified `records`, which must be below 2 GiB and followed by `PADDING` (not a
    record); `append_times_ms` has one time per record. `topic` adds its columns. Raises `EnvelopeBroken` if data does not begin with a key."""
    count = len(lengths_array(lengths))
    headers = headers_array(records, lengths)
    starts = np.empty(count + 1, dtype=np.int32)
    np.add(offsets_array(lengths), HEADER_BYTES, out=starts, casting="unsafe")
    keys: pa.Array | None = None
    if topic is not None and topic.keyed:
        keys, data = _split(records, starts[:-1], headers, topic)
    else:
        wide = pa.BinaryArray.from_buffers(pa.binary(), count, [None, pa.py_buffer(starts), pa.py_buffer(records)])
        data = pc.binary_slice(wide, 0, -RECORD_OVERHEAD_BYTES)  # pyright: ignore[reportAttributeAccessIssue]  # generated at import
    columns = [
        pa.array(headers["partition"].astype(np.int32)),
        pa.array(headers["transaction_id"].astype(np.int64)),
        pa.array(append_times_ms * 1000, type=pa.int64()).cast(pa.timestamp("us", tz="UTC")),
        pa.array(headers["header"].astype(np.int32)),
        data,
    ]
    if include_metadata:
        columns += [pa.array(headers[name].astype(kind)) for name, kind in _METADATA]
    if topic is not None:
        columns += [pa.repeat(pa.scalar(topic.name, pa.string()), count), pa.nulls(count, pa.binary()) if keys is None else keys]
    batch = pa.RecordBatch.from_arrays(columns, schema=arrow_schema(include_metadata=include_metadata, by_topic=topic is not None))
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


def _split(records: bytes, starts: NDArray[np.int32], headers: NDArray[Any], topic: TopicOf) -> tuple[pa.Array, pa.Array]:
    """Keys and values of data that begin at `starts` (core.formats.envelope: version, key length, key, value).

    In one array over the bytes, key, value and the bytes up to the next key repeat in this order, so that two gathers in C++ give the columns."""
    data = np.frombuffer(records, dtype=np.uint8)
    begins = starts.astype(np.int64)
    ends = begins + headers["data_length"].astype(np.int64)
    key_bytes = np.zeros(len(begins), dtype=np.int64)
    for at in range(1, ENVELOPE_BYTES):  # always within the buffer, if only in its padding
        key_bytes = key_bytes << 8 | data[begins + at]
    values = begins + ENVELOPE_BYTES + key_bytes
    right = (data[begins] == ENVELOPE_VERSION) & (key_bytes >= 1) & (key_bytes <= KEY_BYTES_MAX) & (values <= ends)
    if not right.all():
        bad = headers[int(np.argmin(right))]
        raise EnvelopeBroken(topic=topic.name, partition=int(bad["partition"]), transaction_id=int(bad["transaction_id"]))
    count = len(begins)
    places = np.empty(3 * count + 1, dtype=np.int32)
    places[0:-1:3], places[1:-1:3], places[2:-1:3] = begins + ENVELOPE_BYTES, values, ends
    places[-1] = ends[-1] if count else 0
    whole = pa.BinaryArray.from_buffers(pa.binary(), 3 * count, [None, pa.py_buffer(places), pa.py_buffer(records)])
    every_third = np.arange(0, 3 * count, 3, dtype=np.int32)
    return whole.take(pa.array(every_third)), whole.take(pa.array(every_third + 1))
