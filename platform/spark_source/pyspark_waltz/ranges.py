"""Reads one committed range from storage nodes, in an executor: verified, in order, every id once, even if replicas fail meanwhile.

Every request carries the session of the bound. A replica that last became clean in an older session refuses, since its tail may hold other
transactions under the same ids (decision 176). Received data is checked before it is returned: framing, both checksums of every
record, dense ids. After any failure the range continues at the next replica from the first id not yet returned. It fails only if no replica delivered
another transaction for `fetchTimeoutMs`; time that Spark needs for a batch does not count.

Imported only in workers: this module and its imports need gRPC, numpy and Arrow.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any  # gRPC's call

import grpc
import numpy as np
import pyarrow as pa

from pyspark_waltz.channels import channel_to, forget_channel
from pyspark_waltz.errors import DataLost, RangeUnreadable
from pyspark_waltz.naming import naming_topic
from pyspark_waltz.record_batches import PADDING, record_batch
from pyspark_waltz.tasks import LogRange
from waltz_log.core.formats.columns import verify_records
from waltz_log.errors import ConnectionLost, CorruptData, EnvelopeBroken, NotAllowed, OutOfRange, ProtocolViolation, WaltzError
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.call_streams import error_of
from waltz_log.transport.methods import READ

__all__ = ["FRAME_BYTES", "PAUSE_S", "read_range"]

log = logging.getLogger(__name__)

BATCH_ROWS = 65_536
BATCH_BYTES = 16 * 1024 * 1024
"""A batch is returned at whichever limit comes first: enough rows to make the cost per batch negligible, few enough to keep a worker small."""

FRAME_BYTES = 1024 * 1024
"""Requested per message: the size at which gRPC transfers about 1 GB/s here."""

CAREFUL_FRAME_BYTES = 64 * 1024
"""Requested after corrupt data, and an eighth after each further failure; each message is then its own batch. So two replicas with different corrupt
records can still serve the whole range together."""

PAUSE_S = (0.05, 1.0)
"""Pause after a round in which no replica served: the first, and the longest."""


@dataclass(slots=True)
class _Chunk:
    first: int
    count: int = 0
    size: int = 0
    lengths: list[bytes] = field(default_factory=list)
    records: list[bytes] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    def add(self, block: pb.Block) -> None:
        count = len(block.lengths) // 4
        self.lengths.append(block.lengths)
        self.records.append(block.records)
        self.times.append(block.append_time_ms)
        self.counts.append(count)
        self.count += count
        self.size += len(block.records)


def read_range(task: LogRange) -> Iterator[pa.RecordBatch]:
    """The rows of a task as batches. Raises `RangeUnreadable` or `DataLost` if it cannot be read; `EnvelopeBroken` and `NotAllowed` at once, because
    every replica would answer the same. Batches returned before an error remain valid."""
    patience_s = task.fetch_timeout_ms / 1000
    call_timeout_s = max(0.5, patience_s / (len(task.replicas) + 1))  # a replica that hangs leaves time for the others
    replicas = deque(task.replicas)
    position, frame_bytes, careful_until = task.first, FRAME_BYTES, -1
    deadline, pause = time.monotonic() + patience_s, PAUSE_S[0]
    failures = 0  # since the last progress
    said: dict[str, str] = {} if replicas else {"registered replicas": "none"}
    trimmed: dict[str, int] = {}
    while position <= task.last:
        if replicas and len(trimmed) == len(replicas):
            position = _past_the_trimmed(task, position, min(trimmed.values()))
            trimmed.clear()
            continue
        if not replicas or time.monotonic() >= deadline:
            attempts = "; ".join(f"{address}: {text}" for address, text in said.items())
            raise RangeUnreadable(partition=task.partition, first=position, last=task.last, waited_ms=task.fetch_timeout_ms, attempts=attempts)
        if failures and failures % len(replicas) == 0:
            time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
            pause = min(pause * 2, PAUSE_S[1])
        address = replicas[0]
        try:
            for chunk in _chunks(task, address, position, frame_bytes=frame_bytes, timeout_s=call_timeout_s):
                batch = _checked_batch(task, address, chunk)
                if batch.num_rows:
                    yield batch
                position = chunk.first + chunk.count
                failures, deadline, pause = 0, time.monotonic() + patience_s, PAUSE_S[0]
                said.clear()
                trimmed.clear()
                if frame_bytes < FRAME_BYTES and position > careful_until:
                    frame_bytes = FRAME_BYTES
                    break
            else:
                if position <= task.last:
                    raise OutOfRange(partition=task.partition, asked=position, first=0, last=position - 1)
        except EnvelopeBroken:
            raise
        except NotAllowed as error:
            raise naming_topic(error, task.topic) from None
        except WaltzError as error:
            if isinstance(error, CorruptData):
                log.warning("corrupt data from %s, reading from another replica: %s", address, error)
                careful_until = max(careful_until, position + BATCH_ROWS - 1)
                frame_bytes = max(1, min(CAREFUL_FRAME_BYTES, frame_bytes // 8))
            else:
                log.info("reading on at another replica than %s: %s", address, error)
            if isinstance(error, OutOfRange) and error.first > position:
                trimmed[address] = error.first
            said[address] = str(error)
            failures += 1
            replicas.rotate(-1)


def _past_the_trimmed(task: LogRange, position: int, first: int) -> int:
    """Handles the case that every replica's log begins at `first` or later."""
    if task.fail_on_data_loss:
        raise DataLost(partition=task.partition, first=position, last=min(first - 1, task.last), reason="trimmed while it was read")
    return first


def _chunks(task: LogRange, address: str, position: int, *, frame_bytes: int, timeout_s: float) -> Iterator[_Chunk]:
    """The blocks that one replica sends from `position` on, collected into chunks. An error is raised after the data that arrived before it."""
    request = pb.ReadRequest(
        cluster_key=task.cluster_key,
        partition=task.partition,
        session=task.session,
        fence=-1,
        first_transaction_id=position,
        last_transaction_id=task.last,
        max_bytes=frame_bytes,
        principal=task.principal,
    )
    read = channel_to(address, timeout_s).unary_stream(
        READ.name, request_serializer=READ.request.SerializeToString, response_deserializer=READ.response.FromString
    )
    call: Any = read(request, timeout=timeout_s)
    failure: WaltzError | None = None
    chunk = _Chunk(position)
    try:
        try:
            for block in (block for response in call for block in response.blocks):
                if block.first_transaction_id != chunk.first + chunk.count or not block.lengths or len(block.lengths) % 4:
                    failure = ProtocolViolation(
                        reason=f"{address} sent a block at {block.first_transaction_id}, expected {chunk.first + chunk.count}"
                    )
                    break
                chunk.add(block)
                if frame_bytes < FRAME_BYTES or chunk.count >= BATCH_ROWS or chunk.size >= BATCH_BYTES:
                    yield chunk
                    chunk = _Chunk(chunk.first + chunk.count)
        except grpc.RpcError:
            failure = error_of(address, call.code(), call.details())
            if isinstance(failure, ConnectionLost):
                forget_channel(address)
        if chunk.count:
            yield chunk
        if failure is not None:
            raise failure
    finally:
        call.cancel()


def _checked_batch(task: LogRange, address: str, chunk: _Chunk) -> pa.RecordBatch:
    lengths, padded = b"".join(chunk.lengths), b"".join((*chunk.records, PADDING))
    if chunk.first + chunk.count - 1 > task.last:
        raise ProtocolViolation(reason=f"{address} sent more than asked for, up to {chunk.first + chunk.count - 1}")
    records = memoryview(padded)[: chunk.size]
    verify_records(records, lengths, first_transaction_id=chunk.first, partition=task.partition, where=address)
    times = np.repeat(np.array(chunk.times, dtype=np.int64), np.array(chunk.counts, dtype=np.int64))
    return record_batch(padded, lengths, times, include_metadata=task.include_metadata, topic=task.topic, tests=task.tests)
