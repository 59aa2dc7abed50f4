"""Log servers without replicas, over any network: an in-memory log with the real lock rule, and faults on demand.

For tests of clients. What one server answers is what the protocol says an owner answers; the servers of one `ScriptedCluster` share the log, as
owners of one cluster do. Faults are used in order, one for each frame that arrives. Nothing is durable, nothing is replicated.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import Literal
from uuid import UUID

from waltz_log.background_tasks import end_tasks, start_task
from waltz_log.core.formats.block import Block
from waltz_log.core.formats.columns import assign_ids, headers_array, slice_block, verify_records
from waltz_log.core.formats.record_layout import HEADER_BYTES
from waltz_log.core.formats.sealed_headers import seal_headers
from waltz_log.core.locks.lock_columns import unpack_i8
from waltz_log.core.locks.locks import LockTable
from waltz_log.core.metadata import ASSIGNMENT, CLUSTER, Assignment, ClusterParameters, Ownership
from waltz_log.core.ports import Coordinator, Listener, Network, Sender, Service
from waltz_log.errors import ClusterKeyMismatch, ConnectionLost, Fenced, NotOwner, OutOfRange, ProtocolViolation
from waltz_log.security.access import AccessControl
from waltz_log.server.directory.directory import Directory
from waltz_log.server.directory.followers import Followers
from waltz_log.testing.known_servers import KnownServers
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.block_messages import message_of
from waltz_log.transport.methods import BOUND, CLIENT_ID, CONFIRM, FOLLOW, MOUNT, PROTOCOL_VERSION, RESOLVE, TRANSACTIONS, ServedMountStream

__all__ = ["Break", "Refuse", "ScriptedCluster", "ScriptedLog", "ScriptedServer"]


@dataclass(frozen=True, slots=True)
class Break:
    """The stream ends: `before` the frame is in the log, or `after`, without an answer."""

    when: Literal["before", "after"]


@dataclass(frozen=True, slots=True)
class Refuse:
    """The whole frame is refused."""

    reason: pb.RefusalReason.ValueType


@dataclass(eq=False)
class _Mounted:
    client_id: int
    mount_sequence: int
    stream: ServedMountStream
    ready: bool = False
    last_sequence: int = -1
    ended: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    sending: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def send(self, message: pb.ServerMessage) -> None:
        """One after the other: answers and the feed share the stream, and gRPC ends one on which two messages are sent at once."""
        async with self.sending:
            await self.stream.send(message)

    def end(self, error: Exception) -> None:
        if not self.ended.done():
            self.ended.set_exception(error)
            self.ended.exception()  # a stream that has ended otherwise has no reader


class ScriptedLog:
    """One partition: its committed blocks, its locks, and what is to go wrong."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.blocks: list[Block] = []
        self.first_id = 0
        self.next_id = 0
        self.locks = LockTable(-1, 1_000_000)
        self.faults: deque[Break | Refuse | None] = deque()
        self.gate = asyncio.Event()
        self.gate.set()
        self.final = True
        self.frames = 0
        self.mounted: list[_Mounted] = []
        self.grew = asyncio.Event()

    @property
    def high_water_mark(self) -> int:
        return self.next_id - 1

    def data(self) -> list[bytes]:
        """The data of every transaction, in order."""
        found = []
        for block in self.blocks:
            start = 0
            for (length,) in struct.iter_unpack(">i", block.lengths):
                found.append(block.records[start + HEADER_BYTES : start + length - 4])
                start += length
        return found

    def sequences(self) -> list[tuple[int, int]]:
        """Client id and sequence of every transaction, in order."""
        return [(int(row["client_id"]), int(row["sequence"])) for block in self.blocks for row in headers_array(block.records, block.lengths)]

    def append(self, frame: pb.AppendFrame, time_ms: int) -> pb.AppendResult:
        verify_records(frame.records, frame.lengths, first_transaction_id=None, partition=self.partition, where="append")
        headers = headers_array(frame.records, frame.lengths)
        sequences, client_id = headers["sequence"].tolist(), int(headers["client_id"][0])
        first = self.next_id
        verdict = self.locks.judge(unpack_i8(frame.marks), frame.lock_counts, unpack_i8(frame.locks), first, client_id, frame.own)
        committed: list[int] = []
        if verdict.accepted:
            kept = set(verdict.accepted)
            records, lengths, start = [], [], 0
            for position, (length,) in enumerate(struct.iter_unpack(">i", frame.lengths)):
                if position in kept:
                    records.append(frame.records[start : start + length])
                    lengths.append(length)
                start += length
            packed = struct.pack(f">{len(lengths)}i", *lengths)
            self.extend(Block(first, packed, assign_ids(b"".join(records), packed, first), time_ms))
            for at, position in enumerate(verdict.accepted):
                if committed and sequences[position] == committed[-3] + committed[-2]:
                    committed[-2] += 1
                else:
                    committed += [sequences[position], 1, first + at]
        rejected = [value for position, winner in verdict.rejected for value in (sequences[position], winner)]
        return pb.AppendResult(
            committed=struct.pack(f">{len(committed)}q", *committed),
            rejected=struct.pack(f">{len(rejected)}q", *rejected),
            append_time_ms=time_ms,
        )

    def trim(self, first_id: int) -> None:
        """Forgets the blocks below; `first_id` begins one."""
        self.blocks = [block for block in self.blocks if block.first_transaction_id >= first_id]
        self.first_id = first_id

    def extend(self, block: Block) -> None:
        self.blocks.append(block)
        self.next_id = block.last_transaction_id + 1
        grew, self.grew = self.grew, asyncio.Event()
        grew.set()


class ScriptedCluster:
    """`await start()`; `servers[0]` owns every partition until `move`."""

    def __init__(self, network: Network, coordinator: Coordinator, *, partitions: int = 1, servers: int = 2, address: str = "server:0") -> None:
        self.network = network
        self.coordinator = coordinator
        self.parameters = ClusterParameters("scripted", UUID(int=0x5C21), partitions)
        self.logs = [ScriptedLog(partition) for partition in range(partitions)]
        self.servers = [ScriptedServer(self, server_id) for server_id in range(1, servers + 1)]
        self.owner: dict[int, Ownership] = {partition: Ownership(1, 1) for partition in range(partitions)}
        self._address = address
        self._time_ms = 1_600_000_000_000
        self.client_ids = 0
        self._directory = Directory(coordinator, AccessControl(enforced=False))
        self.followers = Followers(self._directory, self.parameters.key.bytes, 1000, Random(1))
        self._following: asyncio.Task[None] | None = None

    async def start(self) -> None:
        for server in self.servers:
            await server.listen(self._address)
        await self.coordinator.create(CLUSTER, self.parameters.to_bytes())
        await self.coordinator.create(ASSIGNMENT, self._assignment().to_bytes())
        await self._directory.read()
        self._following = start_task(self._directory.run())

    @property
    def seeds(self) -> KnownServers:
        """Those that listen."""
        return KnownServers(lambda: [server.address for server in self.servers if server.listener is not None])

    def _assignment(self) -> Assignment:
        return Assignment(dict(self.owner), {server.server_id: server.address for server in self.servers if server.listener is not None})

    async def publish(self) -> None:
        await self.coordinator.set(ASSIGNMENT, self._assignment().to_bytes(), -1)

    async def move(self, partition: int, server_id: int | None, *, notify: bool = True) -> None:
        """Gives the partition to another server. `notify` False: the clients of the old one are left to notice."""
        before = self.owner[partition]
        self.owner[partition] = Ownership(server_id, before.generation + 1)
        log = self.logs[partition]
        log.locks = LockTable(log.high_water_mark, 1_000_000)
        await self.publish()
        if notify:
            for mounted in list(log.mounted):
                mounted.end(NotOwner(partition=partition, reason="moved"))

    def now_ms(self) -> int:
        self._time_ms += 1
        return self._time_ms

    async def stop(self) -> None:
        if self._following is not None and not self._following.done():
            await end_tasks([self._following])
        for log in self.logs:
            log.gate.set()
            for mounted in list(log.mounted):
                mounted.end(ConnectionLost(address="scripted", reason="stopped"))
        for server in self.servers:
            if server.listener is not None:
                await server.listener.close()


class ScriptedServer:
    def __init__(self, cluster: ScriptedCluster, server_id: int) -> None:
        self.cluster = cluster
        self.server_id = server_id
        self.listener: Listener | None = None
        self.cluster_key = cluster.parameters.key.bytes
        self.mounts = 0
        self.delay_s = 0.0
        self.fetched_at_once = 1000

    @property
    def address(self) -> str:
        assert self.listener is not None
        return self.listener.address

    async def listen(self, address: str) -> None:
        service: Service = [
            MOUNT.served_by(self.mount),
            BOUND.served_by(self.bound),
            CLIENT_ID.served_by(self.client_id),
            RESOLVE.served_by(self.resolve),
            TRANSACTIONS.served_by(self.transactions),
            FOLLOW.served_by(self.follow),
            CONFIRM.served_by(self.confirm),
        ]
        self.listener = await self.cluster.network.serve(address, service)

    async def client_id(self, request: pb.ClientIdRequest) -> pb.ClientIdResponse:
        self.cluster.client_ids += 1
        return pb.ClientIdResponse(client_id=self.cluster.client_ids)

    def _log(self, partition: int, key: bytes) -> ScriptedLog:
        if key != self.cluster_key:
            raise ClusterKeyMismatch(where="the request")
        if self.cluster.owner[partition].server_id != self.server_id:
            raise NotOwner(partition=partition, reason="assigned elsewhere")
        return self.cluster.logs[partition]

    # ---- the cluster -----------------------------------------------------------------------------------------------------------------------------

    async def follow(self, request: pb.FollowRequest, stream: Sender[pb.FollowResponse]) -> None:
        await self.cluster.followers.follow(request, stream)

    async def confirm(self, request: pb.ConfirmRequest) -> pb.ConfirmResponse:
        return await self.cluster.followers.confirm()

    # ---- streams -------------------------------------------------------------------------------------------------------------------------------

    async def mount(self, stream: ServedMountStream) -> None:
        message = await stream.receive()
        if message is None or message.WhichOneof("kind") != "mount":
            raise ProtocolViolation(reason="a stream begins with a mount")
        request: pb.MountRequest = message.mount
        log = self._log(request.partition, request.cluster_key)
        if not log.first_id - 1 <= request.client_high_water_mark <= log.high_water_mark:
            raise OutOfRange(partition=log.partition, asked=request.client_high_water_mark + 1, first=log.first_id, last=log.high_water_mark)
        self.mounts += 1
        mounted = _Mounted(request.client_id, request.mount_sequence, stream)
        if request.client_id:
            for other in log.mounted:
                if other.client_id == request.client_id and other.mount_sequence >= request.mount_sequence:
                    raise Fenced(what="mount", partition=log.partition, mine=request.mount_sequence, newer=other.mount_sequence)
            for other in list(log.mounted):
                if other.client_id == request.client_id:
                    other.end(Fenced(what="mount", partition=log.partition, mine=other.mount_sequence, newer=request.mount_sequence))
        log.mounted.append(mounted)
        work = [start_task(self._append(log, mounted)), start_task(self._feed(log, mounted, request)), mounted.ended]
        try:
            await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
            for each in work:
                if each.done():
                    each.result()
        finally:
            log.mounted.remove(mounted)
            await end_tasks(work)

    def _ready(self, log: ScriptedLog, mark: int) -> pb.ServerMessage:
        return pb.ServerMessage(
            mounted=pb.MountResponse(
                generation=self.cluster.owner[log.partition].generation,
                high_water_mark=mark,
                protocol_version=PROTOCOL_VERSION,
            )
        )

    async def _append(self, log: ScriptedLog, mounted: _Mounted) -> None:
        while (message := await mounted.stream.receive()) is not None:
            if message.WhichOneof("kind") == "flush":
                await log.gate.wait()
                flushed = pb.FlushResponse(flush_id=message.flush.flush_id, high_water_mark=log.high_water_mark)
                await mounted.send(pb.ServerMessage(flushed=flushed))
                continue
            if not mounted.client_id or not mounted.ready:
                raise ProtocolViolation(reason="append on a stream that is not mounted for appends")
            await mounted.send(pb.ServerMessage(result=await self._answer_frame(log, mounted, message.append)))
        await asyncio.get_running_loop().create_future()

    async def _answer_frame(self, log: ScriptedLog, mounted: _Mounted, frame: pb.AppendFrame) -> pb.AppendResult:
        log.frames += 1
        fault = log.faults.popleft() if log.faults else None
        sequences = headers_array(frame.records, frame.lengths)["sequence"].tolist()
        if fault == Break("before"):
            raise ConnectionLost(address=self.address, reason="broken before")
        refused = None
        if isinstance(fault, Refuse):
            refused = fault.reason
        elif frame.generation != self.cluster.owner[log.partition].generation:
            refused = pb.REFUSAL_GENERATION
        elif sequences[0] <= mounted.last_sequence:
            refused = pb.REFUSAL_DUPLICATE
        if refused is not None:
            flat = [value for sequence in sequences for value in (sequence, int(refused))]
            return pb.AppendResult(refused=struct.pack(f">{len(flat)}q", *flat))
        mounted.last_sequence = sequences[-1]
        await log.gate.wait()
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        result = log.append(frame, self.cluster.now_ms())
        if fault == Break("after"):
            raise ConnectionLost(address=self.address, reason="broken after")
        return result

    async def _feed(self, log: ScriptedLog, mounted: _Mounted, request: pb.MountRequest) -> None:
        position, target = request.client_high_water_mark, log.high_water_mark
        if request.feed == pb.FEED_NONE:
            mounted.ready = True
            await mounted.send(self._ready(log, target))
            await asyncio.get_running_loop().create_future()
        while True:
            if not mounted.ready and position >= target:
                mounted.ready = True
                await mounted.send(self._ready(log, target))
            grew = log.grew
            for block in [block for block in log.blocks if block.last_transaction_id > position]:
                part = slice_block(block, position + 1, block.last_transaction_id)
                await mounted.send(pb.ServerMessage(feed=self.feed_frame(part, request.feed)))
                position = part.last_transaction_id
            if position >= target and mounted.ready and position >= log.high_water_mark:
                await grew.wait()

    def feed_frame(self, block: Block, feed: pb.FeedMode.ValueType) -> pb.FeedFrame:
        """One block as a feed carries it. Tests replace this to send what no owner sends."""
        message = message_of(block)
        if feed == pb.FEED_HEADERS:
            message.lengths, message.records = b"", seal_headers(block.records, block.lengths)
        return pb.FeedFrame(blocks=[message])

    # ---- calls -----------------------------------------------------------------------------------------------------------------------------------

    async def bound(self, request: pb.BoundRequest) -> pb.BoundResponse:
        if request.cluster_key != self.cluster_key:
            raise ClusterKeyMismatch(where="the request")
        answer = pb.BoundResponse()
        for partition in request.partitions:
            owned = self.cluster.owner[partition]
            if owned.server_id == self.server_id:
                mark = self.cluster.logs[partition].high_water_mark
                answer.bounds.add(partition=partition, generation=owned.generation, session=1, high_water_mark=mark)
        return answer

    async def resolve(self, request: pb.ResolveRequest) -> pb.ResolveResponse:
        log = self._log(request.partition, request.cluster_key)
        found = []
        for transaction_id, (client_id, sequence) in enumerate(log.sequences(), log.first_id):
            asked = client_id == request.client_id and request.first_sequence <= sequence <= request.last_sequence
            if asked and transaction_id > request.since:
                found += [sequence, 1, transaction_id]
        ready = any(mounted.client_id == request.client_id and mounted.ready and not mounted.ended.done() for mounted in log.mounted)
        return pb.ResolveResponse(committed=struct.pack(f">{len(found)}q", *found), final=ready and log.final, high_water_mark=log.high_water_mark)

    async def transactions(self, request: pb.TransactionRequest) -> pb.TransactionResponse:
        log = self._log(request.partition, request.cluster_key)
        if request.transaction_ids:
            answer = pb.TransactionResponse()
            for wanted in unpack_i8(request.transaction_ids)[: self.fetched_at_once]:
                block = next((each for each in log.blocks if each.first_transaction_id <= wanted <= each.last_transaction_id), None)
                if block is None:
                    raise OutOfRange(partition=log.partition, asked=wanted, first=log.first_id, last=log.high_water_mark)
                answer.blocks.append(message_of(slice_block(block, wanted, wanted)))
            return answer
        first, last = request.first_transaction_id, request.first_transaction_id + request.count - 1
        if first < 0 or last > log.high_water_mark:
            raise OutOfRange(partition=log.partition, asked=first, first=0, last=log.high_water_mark)
        answer = pb.TransactionResponse()
        for block in log.blocks:
            if block.last_transaction_id >= first and block.first_transaction_id <= last:
                part = slice_block(block, max(first, block.first_transaction_id), min(last, block.last_transaction_id))
                answer.blocks.append(message_of(part))
        return answer
