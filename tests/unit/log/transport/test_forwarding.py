"""Workers of one node over real gRPC, in one process: what arrives at one of them and is another's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc
import grpc.aio
import pytest

from waltz_log.core.metadata import PARTITIONS_MAX
from waltz_log.core.ports import Channel, Listener, Sender, Service
from waltz_log.core.status.server_statistics import BudgetStatistics, CacheStatistics, RecoveringPartitionStatistics, ServerStatistics
from waltz_log.core.status.worker_statistics import WorkerStatistics
from waltz_log.core.topics.sharding import Shard, worker_of
from waltz_log.errors import ConnectionLost, NotOwner, OutOfRange, ProtocolViolation, Unavailable
from waltz_log.statistics import to_json
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.addresses import ReservedAddress
from waltz_log.transport.forwarding import ANNOUNCE, PASSED_ON, WorkerNetwork
from waltz_log.transport.grpc import CHANNEL_OPTIONS, GrpcNetwork
from waltz_log.transport.methods import MountStream, ServedMountStream

WORKERS = 2
MINE, OTHERS = 0, 1
"""Partitions of worker 0 and worker 1."""

MIB = 1 << 20
REFUSED = b"of another cluster"
PATIENCE_S = 30.0


class _Node:
    """What one worker serves: it says who it is, and keeps its answers."""

    def __init__(self, worker: int) -> None:
        self.worker = worker
        self.received = 0
        self.sent = 0
        self.half_closed = False
        self.bounds_asked = 0
        self.given_up = asyncio.Event()
        self.read_on = asyncio.Event()
        self.deadline_s: float | None = None

    def _own(self, partition: int) -> None:
        if worker_of(partition, WORKERS) != self.worker:
            raise NotOwner(partition=partition, reason="of another worker")

    async def mount(self, stream: ServedMountStream) -> None:
        """The mount's generation selects what it does: 0 echo, 1 count without reading, 2 flood, 3 wait, 4 refuse."""
        opening = await stream.receive()
        if opening is None or opening.WhichOneof("kind") != "mount":
            raise ProtocolViolation(reason="the first message of a stream must be a mount")
        self._own(opening.mount.partition)
        work = (self._echo, self._hold, self._flood, self._wait, self._refuse)[opening.mount.client_id]
        try:
            await stream.send(_mounted(self.worker))
            await work(stream)
        except asyncio.CancelledError:
            self.given_up.set()
            raise
        except ConnectionLost:
            self.given_up.set()

    async def _echo(self, stream: ServedMountStream) -> None:
        while (message := await stream.receive()) is not None:
            self.received += 1
            await stream.send(pb.ServerMessage(feed=_feed(bytes(message.append.records), self.received)))
        self.half_closed = True
        await stream.send(_mounted(self.received))

    async def _hold(self, stream: ServedMountStream) -> None:
        await self.read_on.wait()
        await self._echo(stream)

    async def _flood(self, stream: ServedMountStream) -> None:
        frame = pb.ServerMessage(feed=_feed(bytes(MIB)))
        while self.sent < 200:
            await stream.send(frame)
            self.sent += 1

    async def _wait(self, _stream: ServedMountStream) -> None:
        await asyncio.Event().wait()

    async def _refuse(self, _stream: ServedMountStream) -> None:
        raise OutOfRange(partition=OTHERS, asked=7, first=1, last=5)

    async def resolve(self, request: pb.ResolveRequest) -> pb.ResolveResponse:
        self._own(request.partition)
        if request.client_id == 9:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.given_up.set()
                raise
        if request.client_id == 8:
            raise ValueError("a defect")
        return pb.ResolveResponse(high_water_mark=self.worker)

    async def read(self, request: pb.ReadRequest, stream: Sender[pb.ReadResponse]) -> None:
        self._own(request.partition)
        for number in range(request.runs_max):
            await stream.send(pb.ReadResponse(replica_last_transaction_id=100 * self.worker + number))

    async def bound(self, request: pb.BoundRequest) -> pb.BoundResponse:
        self.bounds_asked += 1
        if request.cluster_key == REFUSED:
            raise OutOfRange(partition=OTHERS, asked=7, first=1, last=5)
        own = [partition for partition in range(4) if worker_of(partition, WORKERS) == self.worker]
        asked = [partition for partition in request.partitions if partition in own] if request.partitions else own
        return pb.BoundResponse(bounds=[pb.Bound(partition=partition, session=self.worker) for partition in asked])

    async def status(self, _request: pb.ServerStatusRequest) -> pb.ServerStatusResponse:
        return pb.ServerStatusResponse(json=json.dumps(to_json(_statistics_of(self.worker))))

    def service(self) -> Service:
        return [
            methods.MOUNT.served_by(self.mount),
            methods.RESOLVE.served_by(self.resolve),
            methods.READ.served_by(self.read),
            methods.BOUND.served_by(self.bound),
            methods.SERVER_STATUS.served_by(self.status),
        ]


def _statistics_of(worker: int) -> ServerStatistics:
    caches = CacheStatistics(transactions=BudgetStatistics(0, 10, 0), frames=BudgetStatistics(1, 10, 0))
    return ServerStatistics(3, None, False, caches, {worker: RecoveringPartitionStatistics(1, "recovering", f"of {worker}")})


def _feed(records: bytes, number: int = 0) -> pb.FeedFrame:
    return pb.FeedFrame(blocks=[pb.Block(records=records, first_transaction_id=number)])


def _mounted(number: int) -> pb.ServerMessage:
    return pb.ServerMessage(mounted=pb.MountResponse(high_water_mark=number))


class _Bench:
    def __init__(self, folder: Path) -> None:
        self.reserved = ReservedAddress("127.0.0.1:0")
        self.siblings = [f"unix:{folder}/{worker}" for worker in range(WORKERS)]
        self.nodes = [_Node(worker) for worker in range(WORKERS)]
        self.networks: list[WorkerNetwork] = []
        self.listeners: list[Listener] = []
        self.channels: list[Channel] = []

    async def start(self, worker: int) -> None:
        described = WorkerStatistics(worker, answers=True, pid=100 + worker)
        network = WorkerNetwork(Shard(worker, WORKERS), [self.reserved.address], self.siblings, lambda: described)
        listener = await network.serve("", self.nodes[worker].service())
        self.networks[worker:] = [network, *self.networks[worker + 1 :]]
        self.listeners[worker:] = [listener, *self.listeners[worker + 1 :]]

    def at(self, worker: int) -> Channel:
        """To that worker, which has no say in who it is for."""
        channel = GrpcNetwork().connect(self.siblings[worker])
        self.channels.append(channel)
        return channel

    async def mount(self, worker: int, partition: int, work: int = 0) -> MountStream:
        stream = self.at(worker).open(methods.MOUNT)
        await stream.send(pb.ClientMessage(mount=pb.MountRequest(partition=partition, client_id=work)))
        mounted = await stream.receive()
        assert mounted is not None
        assert mounted.mounted.high_water_mark == worker_of(partition, WORKERS)
        return stream

    async def close(self) -> None:
        for channel in self.channels:
            await channel.close()
        for listener in self.listeners:
            await listener.close()
        self.reserved.close()


@pytest.fixture
async def bench() -> AsyncIterator[_Bench]:
    with TemporaryDirectory() as folder:  # short enough for the name of a socket
        found = _Bench(Path(folder))
        try:
            for worker in range(WORKERS):
                await found.start(worker)
            yield found
        finally:
            await found.close()


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.01)


def _append(data: bytes) -> pb.ClientMessage:
    return pb.ClientMessage(append=pb.AppendFrame(records=data))


@pytest.mark.parametrize("partition", [MINE, OTHERS])
@pytest.mark.parametrize("worker", range(WORKERS))
async def test_every_kind_of_call_is_answered_by_the_owner_whichever_worker_receives_it(bench: _Bench, worker: int, partition: int) -> None:
    owner = worker_of(partition, WORKERS)
    answer = await bench.at(worker).call(methods.RESOLVE, pb.ResolveRequest(partition=partition), timeout_s=PATIENCE_S)
    assert answer.high_water_mark == owner
    reading = bench.at(worker).read(methods.READ, pb.ReadRequest(partition=partition, runs_max=3))
    found = [await reading.receive() for _ in range(4)]
    assert [None if each is None else each.replica_last_transaction_id for each in found] == [100 * owner, 100 * owner + 1, 100 * owner + 2, None]
    stream = await bench.mount(worker, partition)
    await stream.send(_append(b"x"))
    echoed = await stream.receive()
    assert echoed is not None
    assert echoed.feed.blocks[0].records == b"x"
    assert (bench.networks[worker].forwarded.calls, bench.networks[1 - worker].forwarded.calls) == (0 if owner == worker else 3, 0)


async def test_connections_to_the_nodes_own_address_reach_a_worker_and_through_it_every_owner(bench: _Bench) -> None:
    channel = GrpcNetwork().connect(bench.reserved.address)
    try:
        for partition in (MINE, OTHERS):
            answer = await channel.call(methods.RESOLVE, pb.ResolveRequest(partition=partition), timeout_s=PATIENCE_S)
            assert answer.high_water_mark == worker_of(partition, WORKERS)
    finally:
        await channel.close()


async def test_large_frames_go_both_ways_unchanged_and_in_order(bench: _Bench) -> None:
    stream = await bench.mount(0, OTHERS)
    sizes = [0, 1, MIB, 12 * MIB, 5, 3 * MIB]
    for number, size in enumerate(sizes):
        sent = bytes([number]) * size
        await stream.send(_append(sent))
        echoed = await stream.receive()
        assert echoed is not None
        assert (echoed.feed.blocks[0].first_transaction_id, echoed.feed.blocks[0].records) == (number + 1, sent)
    assert bench.networks[0].forwarded.bytes_to_owners >= sum(sizes)
    assert bench.networks[0].forwarded.bytes_from_owners >= sum(sizes)


async def test_a_frame_above_the_limit_ends_its_stream_and_no_other(bench: _Bench) -> None:
    other, stream = await bench.mount(0, OTHERS), await bench.mount(0, OTHERS)
    with pytest.raises((ProtocolViolation, ConnectionLost)):
        await stream.send(_append(bytes(17 * MIB)))
        await stream.receive()
    await other.send(_append(b"y"))
    echoed = await other.receive()
    assert echoed is not None
    assert echoed.feed.blocks[0].records == b"y"


async def test_a_half_close_reaches_the_owner_and_its_last_words_come_back(bench: _Bench) -> None:
    stream = await bench.mount(0, OTHERS)
    await stream.send(_append(b"x"))
    await stream.finish()
    await _until(lambda: bench.nodes[1].half_closed)
    assert await stream.receive() is not None
    last = await stream.receive()
    assert last is not None
    assert last.mounted.high_water_mark == 1
    assert await stream.receive() is None


async def test_errors_reach_the_caller_as_themselves(bench: _Bench) -> None:
    stream = await bench.mount(0, OTHERS, 4)
    with pytest.raises(OutOfRange) as refused:
        await stream.receive()
    assert refused.value.facts == {"partition": OTHERS, "asked": 7, "first": 1, "last": 5}
    with pytest.raises(ConnectionLost, match=r"unexpected error.*ValueError"):
        await bench.at(0).call(methods.RESOLVE, pb.ResolveRequest(partition=OTHERS, client_id=8), timeout_s=PATIENCE_S)


async def test_a_caller_that_cancels_ends_the_owners_work(bench: _Bench) -> None:
    stream = await bench.mount(0, OTHERS, 3)
    await stream.cancel()
    await asyncio.wait_for(bench.nodes[1].given_up.wait(), PATIENCE_S)
    await _until(lambda: bench.networks[0].forwarded.open_calls == 0)


async def test_a_caller_that_dies_ends_the_owners_work(bench: _Bench) -> None:
    await bench.mount(0, OTHERS, 3)
    await bench.channels[-1].close()
    await asyncio.wait_for(bench.nodes[1].given_up.wait(), PATIENCE_S)
    await _until(lambda: bench.networks[0].forwarded.open_calls == 0)


async def test_a_deadline_holds_at_the_owner_too(bench: _Bench) -> None:
    with pytest.raises(ConnectionLost, match="deadline"):
        await bench.at(0).call(methods.RESOLVE, pb.ResolveRequest(partition=OTHERS, client_id=9), timeout_s=0.3)
    await asyncio.wait_for(bench.nodes[1].given_up.wait(), PATIENCE_S)
    await _until(lambda: bench.networks[0].forwarded.open_calls == 0)


async def test_a_dead_worker_fails_only_its_own_calls_and_is_replaced(bench: _Bench) -> None:
    lost, kept = await bench.mount(0, OTHERS, 3), await bench.mount(0, MINE)
    await bench.listeners[1].close()
    with pytest.raises(Unavailable):
        await lost.receive()
    with pytest.raises(Unavailable):
        await bench.at(0).call(methods.RESOLVE, pb.ResolveRequest(partition=OTHERS), timeout_s=PATIENCE_S)
    await kept.send(_append(b"x"))
    assert await kept.receive() is not None
    await bench.start(1)

    async def again() -> bool:
        try:
            await bench.at(0).call(methods.RESOLVE, pb.ResolveRequest(partition=OTHERS), timeout_s=PATIENCE_S)
        except Unavailable:
            return False
        return True

    async with asyncio.timeout(PATIENCE_S):
        while not await again():
            await asyncio.sleep(0.05)


BUFFERED_MAX = 24
"""Messages of a mebibyte between two peers that the transport's windows of two connections may hold, with room to spare."""


async def test_a_reader_that_does_not_read_holds_up_the_owner_and_fills_no_memory(bench: _Bench) -> None:
    stream = await bench.mount(0, OTHERS, 2)
    await _until_still(lambda: bench.nodes[1].sent)
    assert bench.nodes[1].sent <= BUFFERED_MAX
    for _ in range(200):
        assert await stream.receive() is not None
    assert await stream.receive() is None


async def test_an_owner_that_does_not_read_holds_up_the_caller_and_fills_no_memory(bench: _Bench) -> None:
    stream = await bench.mount(0, OTHERS, 1)
    sent = 0

    async def send() -> None:
        nonlocal sent
        for _ in range(100):
            await stream.send(_append(bytes(MIB)))
            sent += 1

    sending = asyncio.ensure_future(send())
    await _until_still(lambda: sent)
    assert sent <= BUFFERED_MAX
    bench.nodes[1].read_on.set()
    for _ in range(100):
        assert await stream.receive() is not None
    await sending


async def _until_still(count: Callable[[], int]) -> None:
    """Until a count that began has not moved for a while, or has gone beyond all bounds."""
    await _until(lambda: count() > 0)
    before = -1
    while before != count() <= BUFFERED_MAX:
        before = count()
        await asyncio.sleep(0.5)


async def test_a_forwarded_call_is_refused_by_a_worker_that_does_not_own_the_partition(bench: _Bench) -> None:
    async with grpc.aio.insecure_channel(bench.siblings[0], options=CHANNEL_OPTIONS) as channel:
        call = channel.unary_unary(methods.RESOLVE.name, pb.ResolveRequest.SerializeToString, pb.ResolveResponse.FromString)
        with pytest.raises(grpc.aio.AioRpcError, match="NotOwner"):
            await call(pb.ResolveRequest(partition=OTHERS), metadata=((PASSED_ON, "1"),), timeout=PATIENCE_S)
    assert [network.forwarded.calls for network in bench.networks] == [0, 0]


@pytest.mark.parametrize("worker", range(WORKERS))
async def test_bounds_and_statistics_are_those_of_all_workers(bench: _Bench, worker: int) -> None:
    asked = await bench.at(worker).call(methods.BOUND, pb.BoundRequest(), timeout_s=PATIENCE_S)
    assert [(bound.partition, bound.session) for bound in asked.bounds] == [(partition, worker_of(partition, WORKERS)) for partition in range(4)]
    one = await bench.at(worker).call(methods.BOUND, pb.BoundRequest(partitions=[OTHERS, OTHERS]), timeout_s=PATIENCE_S)
    assert {bound.partition for bound in one.bounds} == {OTHERS}
    assert [node.bounds_asked for node in bench.nodes] == [1, 2], "nobody but the owner of the partition is asked"
    reported = json.loads((await bench.at(worker).call(methods.SERVER_STATUS, pb.ServerStatusRequest(), timeout_s=PATIENCE_S)).json)
    assert reported["server_id"] == 3
    assert {number: each["error"] for number, each in reported["partitions"].items()} == {"0": "of 0", "1": "of 1"}
    assert reported["caches"]["frames"] == {"bytes": 2, "bytes_max": 20, "evicted": 0}
    assert [(each["worker"], each["answers"], each["pid"]) for each in reported["workers"]] == [(0, True, 100), (1, True, 101)]


@pytest.mark.parametrize("partitions", [[MINE], [OTHERS], []])
async def test_a_call_that_one_worker_refuses_is_refused(bench: _Bench, partitions: list[int]) -> None:
    for worker in range(WORKERS):
        with pytest.raises(OutOfRange, match="asked=7"):
            await bench.at(worker).call(methods.BOUND, pb.BoundRequest(partitions=partitions, cluster_key=REFUSED), timeout_s=PATIENCE_S)


async def test_a_worker_that_is_gone_is_reported_and_the_others_answer(bench: _Bench) -> None:
    await bench.listeners[1].close()
    reported = json.loads((await bench.at(0).call(methods.SERVER_STATUS, pb.ServerStatusRequest(), timeout_s=PATIENCE_S)).json)
    assert {number: each["error"] for number, each in reported["partitions"].items()} == {"0": "of 0"}
    assert [(each["worker"], each["answers"]) for each in reported["workers"]] == [(0, True), (1, False)]
    answered = await bench.at(0).call(methods.BOUND, pb.BoundRequest(partitions=[MINE]), timeout_s=PATIENCE_S)
    assert [bound.partition for bound in answered.bounds] == [MINE], "the other worker is not asked"
    for partitions in ([], [OTHERS], [MINE, OTHERS]):
        with pytest.raises(Unavailable, match="do not answer: 1"):
            await bench.at(0).call(methods.BOUND, pb.BoundRequest(partitions=partitions), timeout_s=PATIENCE_S)


async def test_a_request_that_names_more_partitions_than_a_log_has_is_refused(bench: _Bench) -> None:
    with pytest.raises(ProtocolViolation, match="partitions has more than 4096 entries"):
        await bench.at(0).call(methods.BOUND, pb.BoundRequest(partitions=[MINE] * (PARTITIONS_MAX + 1)), timeout_s=PATIENCE_S)


@pytest.mark.parametrize("junk", [b"\xff\xff\xff", b"\x0a\x05\x08", b"\x0b\x0b\x0b"])
async def test_an_invalid_message_is_refused_and_the_worker_continues(bench: _Bench, junk: bytes) -> None:
    async with grpc.aio.insecure_channel(bench.siblings[0], options=CHANNEL_OPTIONS) as channel:
        for name in (methods.MOUNT.name, methods.RESOLVE.name, methods.BOUND.name, methods.READ.name):
            call = channel.stream_stream(name, None, None)(None, timeout=PATIENCE_S)
            await call.write(junk)
            await call.done_writing()
            with pytest.raises(grpc.aio.AioRpcError, match="ProtocolViolation"):
                await call.read()
    answer = await bench.at(0).call(methods.RESOLVE, pb.ResolveRequest(partition=MINE), timeout_s=PATIENCE_S)
    assert answer.high_water_mark == 0


async def test_a_call_without_a_first_message_is_refused(bench: _Bench) -> None:
    async with grpc.aio.insecure_channel(bench.siblings[0], options=CHANNEL_OPTIONS) as channel:
        for name in (methods.MOUNT.name, methods.RESOLVE.name, methods.BOUND.name):
            call = channel.stream_stream(name, None, None)(None, timeout=PATIENCE_S)
            await call.done_writing()
            with pytest.raises(grpc.aio.AioRpcError, match="ProtocolViolation"):
                await call.read()


async def test_metadata_and_a_status_of_any_kind_go_through(bench: _Bench) -> None:
    """The owner is not ours here: whatever it receives and answers must arrive, also what no service of ours says."""
    await bench.listeners[1].close()
    seen: dict[str, Any] = {}

    async def answer(_requests: Any, context: Any) -> None:
        seen.update(context.invocation_metadata())
        await context.read()
        await context.write(b"")
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "enough for today", (("retry-after", "60"), ("of-the-owner-bin", b"\x00\xff")))

    other = grpc.aio.server()
    handlers = {"Mount": grpc.stream_stream_rpc_method_handler(answer)}
    other.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("waltz.Server", handlers),))
    other.add_insecure_port(bench.siblings[1])
    await other.start()
    try:
        async with grpc.aio.insecure_channel(bench.siblings[0], options=CHANNEL_OPTIONS) as channel:
            call = channel.stream_stream(methods.MOUNT.name, None, None)(
                None, timeout=PATIENCE_S, metadata=(("tenant", "me"), ("authorization", "secret"))
            )
            await call.write(pb.ClientMessage(mount=pb.MountRequest(partition=OTHERS)).SerializeToString())
            assert await call.read() == b""
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call.read()
    finally:
        await other.stop(None)
    assert (refused.value.code(), refused.value.details()) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "enough for today")
    trailing: Any = refused.value.trailing_metadata()
    assert dict(trailing) == {"retry-after": "60", "of-the-owner-bin": b"\x00\xff"}
    assert (seen["tenant"], seen[PASSED_ON]) == ("me", ANNOUNCE)
    assert "authorization" not in seen, "the first worker has read the token; the owner gets the caller that it proved"
