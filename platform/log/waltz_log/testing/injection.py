"""Faults for tests of applications: what happens to the next append of a client of an in-memory cluster, and whether feeds continue.

Each fault is one that a real cluster has, made at the moment that a test asks for: a refusal is sent as a server sends it, a rival's transaction is
really in the log, and `resolve` returns the outcome of an append whose answer was lost. Nothing here changes the client's code.
"""

from __future__ import annotations

import asyncio
import random
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any  # messages of any method

from waltz_log.client import Appended, ClientSettings, Draft, Lock, NotInLog, OutcomeUnknown, Receipt, WaltzClient
from waltz_log.client.append.bulk import BulkAppend
from waltz_log.client.append.rows import Rows
from waltz_log.client.owners.owners import Owners
from waltz_log.client.owners.seeds import Seeds
from waltz_log.core.formats.records import decode_record
from waltz_log.core.messages import Encoded
from waltz_log.core.ports import CallMethod, Channel, Listener, Network, ReadMethod, Receiver, Request, Response, Service, Stream, StreamMethod
from waltz_log.core.topics.catalogue import TopicEpoch
from waltz_log.errors import InvalidRequest, WaltzError
from waltz_log.transport import waltz_pb2 as pb

__all__ = ["Fault", "Faults", "InjectedClient", "InjectedNetwork", "connect_injected"]


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of the next append to `partition`, to any where it is None. `data`: what the rival of a conflict appends, None: the same as the
    append."""

    kind: str
    partition: int | None = None
    data: bytes | None = None


@dataclass
class Faults:
    """Shared by all clients of a cluster."""

    planned: deque[Fault] = field(default_factory=deque)
    feeds_go_on: asyncio.Event = field(default_factory=asyncio.Event)
    rival: Callable[[], Awaitable[WaltzClient]] | None = None
    armed: dict[tuple[int, int], Callable[[int], bool]] = field(default_factory=dict)
    """By client id and partition: asked once, with the sequence of the first append that is sent next, whether the server gets it."""

    def __post_init__(self) -> None:
        self.feeds_go_on.set()

    def pop_next(self, partition: int, *, locked: bool) -> Fault | None:
        """The fault that this append meets. Conflicts wait for one that checks a lock."""
        for fault in self.planned:
            if fault.partition in (None, partition) and (locked or fault.kind != "conflict"):
                self.planned.remove(fault)
                return fault
        return None


# ---- the client ------------------------------------------------------------------------------------------------------------------------------------


class InjectedClient(WaltzClient):
    """A client that meets the planned faults. Made by `connect_injected`."""

    def __init__(self, owners: Owners, settings: ClientSettings, rng: random.Random) -> None:
        super().__init__(owners, settings, rng)
        self.faults = Faults()

    async def enqueue(self, partition: int, draft: Draft, timeout_s: float | None = None, topic: TopicEpoch | None = None) -> asyncio.Future[Receipt]:
        checked = (*draft.write_locks, *draft.read_locks)
        fault = self.faults.pop_next(partition, locked=bool(checked))
        if fault is None:
            return await super().enqueue(partition, draft, timeout_s, topic)
        if fault.kind == "conflict":
            assert self.faults.rival is not None
            # The mark first: from what this client saw before the rival came.
            mark = self._seen(partition) if draft.high_water_mark is None else draft.high_water_mark
            rival = await self.faults.rival()
            theirs = draft.data if fault.data is None else fault.data
            await (await rival.enqueue(partition, Draft(theirs, draft.header, append_locks=checked), None, topic))
            return await super().enqueue(partition, draft._replace(high_water_mark=mark), timeout_s, topic)
        while self.unacknowledged(partition):
            await self.flush()  # alone on the wire, it is the first of the next frame
        future = await super().enqueue(partition, draft, timeout_s, topic)
        self.faults.armed[await self._producers.acquire_client_id(), partition] = lambda sequence: self._meet(fault, future, partition, sequence)
        return future

    def bulk(
        self,
        partition: int,
        on_ack: Callable[[Appended], None] | None = None,
        on_error: Callable[[NotInLog], None] | None = None,
        timeout_s: float | None = None,
        *,
        topic: TopicEpoch | None = None,
    ) -> BulkAppend:
        return _InjectedBulk(super().bulk(partition, on_ack, on_error, timeout_s, topic=topic), self, topic)

    def _seen(self, partition: int) -> int:
        followers = self._followers.get(partition)
        return min(follower.applied for follower in followers) if followers else -1

    def _meet(self, fault: Fault, future: asyncio.Future[Receipt], partition: int, sequence: int) -> bool:
        if fault.kind == "fail":
            return False
        if not future.done():
            reason = "its answer was lost, as the test asked for"
            future.set_exception(OutcomeUnknown(partition=partition, client_id=self.client_id, sequence=sequence, since=-1, reason=reason))
        return fault.kind == "unknown, appended"


class _InjectedBulk(BulkAppend):
    """Entries with a fault are appended separately. Their outcomes are reported like those of others."""

    def __init__(self, plain: BulkAppend, client: InjectedClient, topic: TopicEpoch | None) -> None:
        super().__init__(plain._producer, plain._timeout_s, plain._on_ack, plain._on_error)
        self._client = client
        self._topic = topic

    async def _enqueue_some(self, rows: Rows, start: int, first: int) -> int:
        """Row by row as long as a fault is planned."""
        if not any(fault.partition in (None, self.receipt.partition) for fault in self._client.faults.planned):
            return await super()._enqueue_some(rows, start, first)
        await self._enqueue(_draft(rows, start))
        return 1

    async def _enqueue(self, draft: Draft) -> None:
        faults, partition = self._client.faults, self.receipt.partition
        fault = faults.pop_next(partition, locked=bool(draft.write_locks or draft.read_locks))
        if fault is None:
            await super()._enqueue(draft)
            return
        faults.planned.appendleft(fault)  # the append below meets it
        outcome = self._next_outcome()
        try:
            outcome.set_result(await (await self._client.enqueue(partition, draft, self._timeout_s, self._topic)))
        except WaltzError as error:
            outcome.set_exception(error)


def _draft(rows: Rows, row: int) -> Draft:
    """One row as a separate append."""
    headers = rows.headers(row, row + 1)
    kinds: list[list[Lock]] = [[], [], []]
    if rows.locks is not None:
        keys = iter(rows.locks.keys.cut(rows.locks.offsets[row], rows.locks.offsets[row + 1]))
        for kind, count in zip(kinds, rows.locks.counts[3 * row : 3 * row + 3], strict=True):
            kind += [Lock(rows.locks.name, bytes(key).decode()) for key in islice(keys, count)]
    write, read, append = kinds
    return Draft(bytes(rows.bodies(row, row + 1)[0]), headers if isinstance(headers, int) else headers[0], write, read, append, rows.mark)


async def connect_injected(seeds: Seeds, network: Network, faults: Faults, settings: ClientSettings | None) -> InjectedClient:
    client = await InjectedClient.connect_over(seeds, InjectedNetwork(network, faults), settings)
    client.faults = faults
    return client


# ---- the network between it and the servers --------------------------------------------------------------------------------------------------------


class InjectedNetwork:
    """Any network, as clients that meet faults have it."""

    def __init__(self, network: Network, faults: Faults) -> None:
        self._network = network
        self._faults = faults

    def connect(self, address: str) -> Channel:
        return _Channel(self._network.connect(address), self._faults)

    async def serve(self, address: str, service: Service) -> Listener:
        return await self._network.serve(address, service)


class _Channel:
    def __init__(self, channel: Channel, faults: Faults) -> None:
        self._channel = channel
        self._faults = faults

    @property
    def address(self) -> str:
        return self._channel.address

    async def call(self, method: CallMethod[Request, Response], request: Request, *, timeout_s: float) -> Response:
        return await self._channel.call(method, request, timeout_s=timeout_s)

    def read(self, method: ReadMethod[Request, Response], request: Request) -> Receiver[Response]:
        return self._channel.read(method, request)

    def open(self, method: StreamMethod[Request, Response]) -> Stream[Request, Response]:
        return _Stream(self._channel.open(method), self._faults)

    async def close(self) -> None:
        await self._channel.close()


class _Stream:
    def __init__(self, stream: Stream[Any, Any], faults: Faults) -> None:
        self._stream = stream
        self._faults = faults
        self._own: deque[pb.ServerMessage] = deque()
        """Answers that the test gives in the server's place, before the server's next one."""
        self._answered = asyncio.Event()
        self._receiving: asyncio.Task[Any] | None = None

    async def send(self, message: Any) -> None:
        plain = message.decoded() if isinstance(message, Encoded) else message
        if self._faults.armed and isinstance(plain, pb.ClientMessage) and plain.WhichOneof("kind") == "append":
            first, size = decode_record(plain.append.records)
            meet = self._faults.armed.pop((first.client_id, first.partition), None)
            if meet is not None and not meet(first.sequence):
                refused = struct.pack(">2q", first.sequence, pb.REFUSAL_STORAGE_FULL)
                self._own.append(pb.ServerMessage(result=pb.AppendResult(refused=refused)))
                self._answered.set()
                rest = _without_the_first(plain.append, size)
                if rest is None:
                    return
                message = pb.ClientMessage(append=rest)
        await self._stream.send(message)

    async def receive(self) -> Any | None:
        while True:
            if self._own:
                return self._own.popleft()
            self._answered.clear()
            if self._receiving is None:
                self._receiving = asyncio.create_task(self._stream.receive())
            answered = asyncio.create_task(self._answered.wait())
            try:
                await asyncio.wait((self._receiving, answered), return_when=asyncio.FIRST_COMPLETED)
            finally:
                answered.cancel()
            if not self._own and self._receiving.done():
                received, self._receiving = self._receiving, None
                message = received.result()
                if getattr(message, "WhichOneof", lambda _: None)("kind") == "feed":
                    await self._faults.feeds_go_on.wait()
                return message

    async def finish(self) -> None:
        await self._stream.finish()

    async def cancel(self) -> None:
        await self._stream.cancel()
        if self._receiving is not None:
            # Ends the stream, with the error that the receiver is to see.
            await asyncio.gather(self._receiving, return_exceptions=True)


def _without_the_first(frame: pb.AppendFrame, size: int) -> pb.AppendFrame | None:
    """The frame without its first transaction, whose record has `size` bytes; None if that was all."""
    if size == len(frame.records):
        return None
    return pb.AppendFrame(
        generation=frame.generation,
        lengths=frame.lengths[4:],
        marks=frame.marks[8:],
        lock_counts=frame.lock_counts[3:],
        locks=frame.locks[8 * sum(frame.lock_counts[:3]) :],
        records=frame.records[size:],
        own=frame.own[1:],
    )


def expect_partition(partition: int | None, partitions: int) -> None:
    """Raises `InvalidRequest` if a fault is planned for a partition that is not there: it would never come."""
    if partition is not None and not 0 <= partition < partitions:
        raise InvalidRequest(reason=f"no such partition: {partition}")
