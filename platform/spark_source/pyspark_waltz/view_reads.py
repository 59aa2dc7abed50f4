"""Reads the compacted view of one partition from storage nodes, in an executor (docs/reference/spark.md, Topics).

The driver chose an `end`, where the log continues, and every replica's view ends there or further. If a view ends further, its records from `end` on
are skipped as far as this batch reads the log (`log_end`). Later records replaced some that the batch would have read, and are returned. So each key
has its value as of `end` or newer. If a replica fails, reading continues in another replica's view above the last returned id, if that view ends no
earlier: what the first view omitted was replaced by something below its end.

Columns arrive as columns and become Arrow without a copy, after each record was compared with its checksum. If a page is damaged, another replica is
read. Imported only in workers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Any  # gRPC's call

import grpc
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pyspark_waltz.channels import channel_to, forget_channel
from pyspark_waltz.errors import RangeUnreadable
from pyspark_waltz.naming import naming_topic
from pyspark_waltz.ranges import FRAME_BYTES, PAUSE_S
from pyspark_waltz.record_batches import arrow_schema
from pyspark_waltz.tasks import ViewRange
from waltz_log.errors import ClusterKeyMismatch, ConnectionLost, NotAllowed, ProtocolViolation, WaltzError
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.call_streams import error_of
from waltz_log.transport.methods import READ_VIEW
from waltz_log.transport.view_pages import decode_view_page

__all__ = ["read_view"]

log = logging.getLogger(__name__)


def read_view(task: ViewRange) -> Iterator[pa.RecordBatch]:
    """Raises `RangeUnreadable` if no replica delivered more for `fetchTimeoutMs`, `NotAllowed` at once."""
    patience_s = task.fetch_timeout_ms / 1000
    call_timeout_s = max(0.5, patience_s / (len(task.replicas) + 1))
    position, tried = 0, 0
    bound = task.end
    deadline = time.monotonic() + patience_s
    said: dict[str, str] = {} if task.replicas else {"registered replicas": "none"}
    while task.replicas and time.monotonic() < deadline:
        address = task.replicas[tried % len(task.replicas)]
        try:
            for page in _pages(task, address, position, bound, call_timeout_s):
                batch, last = _batch(task, page, position)
                if batch.num_rows:
                    yield batch
                bound = max(bound, page.bound)
                position, deadline = max(position, last + 1), time.monotonic() + patience_s
                if page.done:
                    return
            said[address] = "its view ended early"
        except ClusterKeyMismatch:
            raise
        except NotAllowed as error:
            raise naming_topic(error, task.topic) from None
        except WaltzError as error:
            said[address] = str(error)
            log.info("reading the view on at another replica than %s: %s", address, error)
        tried += 1
        if tried % len(task.replicas) == 0:
            time.sleep(min(PAUSE_S[1], max(0.0, deadline - time.monotonic())))
    attempts = "; ".join(f"{address}: {text}" for address, text in said.items())
    raise RangeUnreadable(partition=task.partition, first=position, last=task.end - 1, waited_ms=task.fetch_timeout_ms, attempts=attempts)


def _pages(task: ViewRange, address: str, position: int, bound: int, timeout_s: float) -> Iterator[pb.ReadViewResponse]:
    request = pb.ReadViewRequest(
        cluster_key=task.cluster_key,
        partition=task.partition,
        session=task.session,
        first_transaction_id=position,
        max_bytes=FRAME_BYTES,
        bound_min=bound,
        principal=task.principal,
    )
    read = channel_to(address, timeout_s).unary_stream(
        READ_VIEW.name, request_serializer=READ_VIEW.request.SerializeToString, response_deserializer=READ_VIEW.response.FromString
    )
    call: Any = read(request, timeout=timeout_s)
    try:
        yield from call
    except grpc.RpcError:
        failure = error_of(address, call.code(), call.details())
        if isinstance(failure, ConnectionLost):
            forget_channel(address)
        raise failure from None
    finally:
        call.cancel()


def _batch(task: ViewRange, page: pb.ReadViewResponse, position: int) -> tuple[pa.RecordBatch, int]:
    """The rows of a page, and its last id, `position - 1` if it is empty. Raises `ProtocolViolation` if its columns do not fit together,
    `CorruptData` if a record does not match its checksum."""
    decode_view_page(page)
    ids, times = (np.frombuffer(column, dtype=">i8").astype(np.int64) for column in (page.transaction_ids, page.times_ms))
    headers = np.frombuffer(page.headers, dtype=">i4").astype(np.int32)
    keys = _binary(page.key_lengths, page.keys)
    values = _binary(page.value_lengths, page.values)
    count = len(ids)
    if count and (ids[0] < position or (np.diff(ids) <= 0).any()):
        raise ProtocolViolation(reason=f"ids of a view's page do not rise: partition={task.partition} records={count} position={position}")
    columns = [
        pa.array(np.full(count, task.partition, dtype=np.int32)),
        pa.array(ids),
        pa.array(times * 1000, type=pa.int64()).cast(pa.timestamp("us", tz="UTC")),
        pa.array(headers),
        values,
        pa.repeat(pa.scalar(task.topic.name, pa.string()), count),
        keys,
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=arrow_schema(include_metadata=False, by_topic=True))
    ours = (ids < task.end) | (ids >= task.log_end)
    return batch if ours.all() else batch.filter(pa.array(ours)), int(ids[-1]) if count else position - 1


def _binary(lengths: bytes, data: bytes) -> pa.Array:
    sizes: NDArray[np.int64] = np.frombuffer(lengths, dtype=">i4").astype(np.int64)
    offsets = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return pa.BinaryArray.from_buffers(pa.binary(), len(sizes), [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)])
