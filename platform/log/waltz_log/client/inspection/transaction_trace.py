"""Follows one transaction: who sent it, when and in which session, its block, and the replicas that hold it.

Reads only. Every assigned replica is asked for the record itself, so "holds it" means that the replica returned bytes that match those of the others.
A replica that does not, or that cannot be reached, is part of the answer, not an error, as long as one holds the transaction.

The log does not record the sender's principal, nor the store session of a block. The owner knows where its own session began, so a transaction of an
older session is only known to be older.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from waltz_log.client.owners.owners import Owners
from waltz_log.core.formats.records import decode_record
from waltz_log.core.ports import Channel
from waltz_log.errors import InvalidRequest, NotAllowed, NotCommittedYet, OutOfRange, Trimmed, Unavailable, WaltzError
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.locating import Place, Question, locate
from waltz_log.transport.methods import READ

__all__ = ["HoldingReplica", "TableVersion", "TracedBlock", "TransactionTrace", "trace"]

REPLICA_TIMEOUT_S = 2.0
"""One replica's time to return the record. All are asked at once."""

NO_LIMIT_BYTES = 1 << 62


@dataclass(frozen=True, slots=True)
class TracedBlock:
    """The transactions `first_transaction_id` to `last_transaction_id`, which have the same append time, and `bytes` together. The transaction begins
    at byte `offset` of them and is `record_bytes` long, 40 of which are framing. Two blocks of one millisecond count as one."""

    first_transaction_id: int
    last_transaction_id: int
    offset: int
    bytes: int
    record_bytes: int


@dataclass(frozen=True, slots=True)
class HoldingReplica:
    """`holds`: whether the storage node returned the transaction, with the same bytes as the others; None: not known, because it did not answer, or
    could not. `reason`: why not, or why it is not known; None if it holds it."""

    name: str
    holds: bool | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class TransactionTrace:
    """`client_id`, `generation`, `sequence`: who sent it, and as which append of that client. `append_time_ms`: since 1970, UTC. `session`: the store
    session that wrote it; None if an older one than `owner_session`, the session of the owner now, did."""

    cluster_key: str
    partition: int
    transaction_id: int
    client_id: int
    generation: int
    sequence: int
    header: int
    append_time_ms: int
    session: int | None
    owner_session: int
    block: TracedBlock
    replicas: tuple[HoldingReplica, ...]


@dataclass(frozen=True, slots=True)
class TableVersion:
    """Where a Delta table holds the transaction; `waltz_delta` finds it. `version`: the first version that holds it, or an older one if not `exact`,
    because the table's log was cleaned up; None if the table does not hold it yet. `mark`: the last transaction of the partition that the newest
    version holds, -1: none; None if the table holds the transaction."""

    path: str
    version: int | None
    exact: bool
    mark: int | None


@dataclass(frozen=True, slots=True)
class _Stored:
    """The record as one replica returned it."""

    record: bytes
    append_time_ms: int


@dataclass(frozen=True, slots=True)
class _Lacks:
    """The replica answered, and does not hold it."""

    reason: str

    def __str__(self) -> str:
        return self.reason


_Answer: TypeAlias = _Stored | _Lacks | WaltzError


async def trace(owners: Owners, partition: int, transaction_id: int, *, principal: str = "", timeout_s: float = 10.0) -> TransactionTrace:
    """`principal`: who reads, for a topic that names its readers. Raises `InvalidRequest` for a partition that the cluster does not have,
    `NotCommittedYet`, `Trimmed`, `NotAllowed`, `PermissionDenied`, and `Unavailable` if no owner or no replica that holds the transaction answers."""
    partitions = owners.parameters.partitions
    if not 0 <= partition < partitions:
        raise InvalidRequest(reason=f"no such partition: partition={partition} partitions={partitions}")
    bound = await owners.bound(partition, timeout_s)
    _expect_within(bound, transaction_id)
    tracing = _Tracing(owners, bound, timeout_s)
    try:
        return await tracing.trace(transaction_id, principal)
    finally:
        await tracing.close()


def _expect_within(bound: pb.Bound, transaction_id: int) -> None:
    first, last = bound.first_transaction_id, bound.high_water_mark
    if transaction_id > last:
        raise NotCommittedYet(partition=bound.partition, asked=transaction_id, first=first, last=last)
    if transaction_id < first:
        raise Trimmed(partition=bound.partition, asked=transaction_id, first=first, last=last)


class _Tracing:
    """Traces transactions of one partition, which is committed up to `bound`."""

    def __init__(self, owners: Owners, bound: pb.Bound, timeout_s: float) -> None:
        self._owners = owners
        self._bound = bound
        self._timeout_s = timeout_s
        self._key = owners.parameters.key.bytes
        self._channels: dict[str, Channel] = {}

    def _channel(self, address: str) -> Channel:
        if address not in self._channels:
            self._channels[address] = self._owners.connect(address)
        return self._channels[address]

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()

    async def trace(self, transaction_id: int, principal: str) -> TransactionTrace:
        bound = self._bound
        addresses = self._owners.named_replicas(bound.partition)
        answers = await self._ask(addresses, transaction_id, principal)
        stored = self._expect_stored(answers, transaction_id)
        record, _ = decode_record(stored.record)
        return TransactionTrace(
            cluster_key=str(self._owners.parameters.key),
            partition=bound.partition,
            transaction_id=transaction_id,
            client_id=record.client_id,
            generation=record.generation,
            sequence=record.sequence,
            header=record.header,
            append_time_ms=stored.append_time_ms,
            session=bound.session if transaction_id > bound.low_water_mark else None,
            owner_session=bound.session,
            block=await self._block([each for each in addresses.values() if each is not None], transaction_id, stored),
            replicas=tuple(_replica(name, answer, stored) for name, answer in answers.items()),
        )

    async def _ask(self, addresses: Mapping[str, str | None], transaction_id: int, principal: str) -> dict[str, _Answer]:
        request = pb.ReadRequest(
            cluster_key=self._key,
            partition=self._bound.partition,
            session=self._bound.session,
            first_transaction_id=transaction_id,
            last_transaction_id=transaction_id,
            runs_max=1,
            principal=principal,
        )

        async def stored(address: str | None) -> _Answer:
            return Unavailable(reason="never started") if address is None else await _stored(self._channel(address), request)

        return dict(zip(addresses, await asyncio.gather(*map(stored, addresses.values())), strict=True))

    def _expect_stored(self, answers: Mapping[str, _Answer], transaction_id: int) -> _Stored:
        """What most of the replicas that answer hold."""
        held = Counter(answer for answer in answers.values() if isinstance(answer, _Stored))
        if held:
            return held.most_common(1)[0][0]
        refused = next((answer for answer in answers.values() if isinstance(answer, NotAllowed)), None)
        if refused is not None:
            raise refused
        told = "; ".join(f"{name}: {error}" for name, error in answers.items())
        raise Unavailable(reason=f"no replica returned the transaction: partition={self._bound.partition} transaction_id={transaction_id} {told}")

    async def _block(self, addresses: Sequence[str], transaction_id: int, stored: _Stored) -> TracedBlock:
        """Append times never decrease, so that the transactions of one time are a range."""
        time_ms = stored.append_time_ms
        around = await self._locate(addresses, times_ms=(time_ms, time_ms + 1))
        first, last = around.positions[0], around.positions[1] - 1
        before = await self._locate(addresses, first=first, last=transaction_id - 1)
        whole = await self._locate(addresses, first=first, last=last)
        return TracedBlock(first, last, before.bytes, whole.bytes, len(stored.record))

    async def _locate(self, addresses: Sequence[str], *, times_ms: tuple[int, ...] = (), first: int = 0, last: int = -1) -> Place:
        bound = self._bound
        question = Question(bound.session, bound.high_water_mark, times_ms, first, last, NO_LIMIT_BYTES)
        found = await locate(self._channel, {bound.partition: addresses}, self._key, {bound.partition: question}, self._timeout_s)
        return found[bound.partition]


async def _stored(channel: Channel, request: pb.ReadRequest) -> _Answer:
    """The record as this replica returns it, or why it does not."""
    stream = channel.read(READ, request)
    try:
        async with asyncio.timeout(REPLICA_TIMEOUT_S):
            answer = await stream.receive()
    except TimeoutError:
        return Unavailable(reason=f"no answer within {REPLICA_TIMEOUT_S:g} s")
    except OutOfRange as error:
        return _Lacks(str(error))
    except WaltzError as error:
        return error
    finally:
        await stream.cancel()
    if answer is None or not answer.blocks:
        return _Lacks("the replica does not hold it")
    block = answer.blocks[0]
    return _Stored(block.records, block.append_time_ms)


def _replica(name: str, answer: _Answer, stored: _Stored) -> HoldingReplica:
    if isinstance(answer, WaltzError):
        return HoldingReplica(name, None, str(answer))
    if isinstance(answer, _Lacks):
        return HoldingReplica(name, False, answer.reason)
    if answer.record != stored.record:
        return HoldingReplica(name, False, "it holds other bytes under this id")
    return HoldingReplica(name, True, None)
