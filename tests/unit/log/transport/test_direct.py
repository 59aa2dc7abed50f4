"""Streams over connections of their own behave as those over gRPC do, and where such a connection is not to be had gRPC carries the stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import uvloop

from waltz_log.core.ports import Channel
from waltz_log.core.topics.sharding import Shard, worker_of
from waltz_log.errors import ConnectionLost, OutOfRange, ProtocolViolation, Unavailable
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.addresses import ReservedAddress
from waltz_log.transport.direct import connection as direct
from waltz_log.transport.forwarding import WorkerNetwork
from waltz_log.transport.grpc import GrpcNetwork
from waltz_log.transport.methods import ReplicateStream, ServedReplicateStream

PATIENCE_S = 30
MIB = 1 << 20

OPENING = pb.ReplicateRequest(open=pb.ReplicateOpen(partition=0, session=1))


@pytest.fixture(params=["direct", "grpc"])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class _Node:
    """Plays the handler that a test gives it, and notes over what each stream came."""

    def __init__(self, play: Callable[[ServedReplicateStream], Awaitable[None]]) -> None:
        self._play = play
        self.ways: list[str] = []
        self.given_up = asyncio.Event()

    async def replicate(self, stream: ServedReplicateStream) -> None:
        self.ways.append("direct" if "Direct" in type(stream).__name__ else "grpc")
        try:
            await self._play(stream)
        except asyncio.CancelledError:
            self.given_up.set()
            raise


@asynccontextmanager
async def _served(way: str, play: Callable[[ServedReplicateStream], Awaitable[None]]) -> AsyncIterator[tuple[_Node, Channel, Any]]:
    node = _Node(play)
    listener = await GrpcNetwork(0 if way == "direct" else -1).serve("127.0.0.1:0", [methods.REPLICATE.served_by(node.replicate)])
    channel = GrpcNetwork().connect(listener.address)
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield node, channel, listener
            assert set(node.ways) <= {way}
    finally:
        await channel.close()
        await listener.close()


def _block(data: bytes, first: int = 0) -> pb.ReplicateRequest:
    return pb.ReplicateRequest(block=pb.Block(first_transaction_id=first, records=data))


async def _opened(channel: Channel) -> ReplicateStream:
    stream = channel.open(methods.REPLICATE)
    await stream.send(OPENING)
    return stream


async def _count(stream: ServedReplicateStream) -> None:
    """Answers each message with its number and its size, and prints at the end how many there were."""
    received = 0
    while (message := await stream.receive()) is not None:
        await stream.send(pb.ReplicateResponse(last_transaction_id=received, received_transaction_id=len(message.block.records)))
        received += 1
    await stream.send(pb.ReplicateResponse(last_transaction_id=1000 + received))


# ---- the same as over gRPC -------------------------------------------------------------------------------------------------------------------------


async def test_messages_of_all_sizes_come_in_order_and_a_half_close_lets_the_last_words_through(way: str) -> None:
    sizes = [0, 1, 7, 65_000, 65_531, 65_536, 70_000, MIB, 3, 15 * MIB, 0, 200_000]
    async with _served(way, _count) as (node, channel, _):
        stream = await _opened(channel)

        async def send() -> None:
            for size in sizes:
                await stream.send(_block(bytes(size)))
            await stream.finish()

        sending = asyncio.ensure_future(send())
        for number, size in enumerate([0, *sizes]):
            answer = await stream.receive()
            assert answer is not None
            assert (answer.last_transaction_id, answer.received_transaction_id) == (number, size)
        last = await stream.receive()
        assert last is not None
        assert last.last_transaction_id == 1000 + 1 + len(sizes)
        assert await stream.receive() is None
        await sending
        assert node.ways == [way]


async def test_many_small_messages_at_once_stay_whole_and_in_order(way: str) -> None:
    async def play(stream: ServedReplicateStream) -> None:
        await stream.receive()
        expected = 0
        while (message := await stream.receive()) is not None:
            assert (message.block.first_transaction_id, message.block.records) == (expected, expected.to_bytes(4, "big") * (expected % 97))
            expected += 1
        await stream.send(pb.ReplicateResponse(last_transaction_id=expected))

    async with _served(way, play) as (_, channel, _):
        stream = await _opened(channel)
        for number in range(3000):
            await stream.send(_block(number.to_bytes(4, "big") * (number % 97), number))
        await stream.finish()
        answer = await stream.receive()
        assert answer is not None
        assert answer.last_transaction_id == 3000


async def test_errors_reach_the_caller_as_themselves(way: str) -> None:
    async def play(stream: ServedReplicateStream) -> None:
        message = await stream.receive()
        if message is not None and message.open.session == 1:
            raise OutOfRange(partition=0, asked=7, first=1, last=5)
        raise KeyError("a defect")

    async with _served(way, play) as (_, channel, _):
        with pytest.raises(OutOfRange) as refused:
            await (await _opened(channel)).receive()
        assert refused.value.facts == {"partition": 0, "asked": 7, "first": 1, "last": 5}
        stream = channel.open(methods.REPLICATE)
        await stream.send(pb.ReplicateRequest(open=pb.ReplicateOpen(session=2)))
        with pytest.raises(ConnectionLost, match=r"unexpected error.*KeyError"):
            await stream.receive()


async def test_an_error_reaches_a_caller_that_is_still_sending() -> None:
    """A connection closed while something comes in is reset, and what was said last would be lost. (gRPC may report only the race.)"""

    async def play(stream: ServedReplicateStream) -> None:
        await stream.receive()
        await asyncio.sleep(0.2)
        raise OutOfRange(partition=0, asked=7, first=1, last=5)

    async with _served("direct", play) as (_, channel, _):
        for _ in range(5):
            stream = await _opened(channel)

            async def send(stream: ReplicateStream = stream) -> None:
                while True:
                    await stream.send(_block(bytes(MIB)))

            sending = asyncio.ensure_future(send())
            with pytest.raises(OutOfRange):
                await stream.receive()
            with pytest.raises((OutOfRange, ConnectionLost)):
                await sending


async def _wait(stream: ServedReplicateStream) -> None:
    await stream.receive()
    await stream.send(pb.ReplicateResponse())
    await asyncio.Event().wait()


async def _cancel(stream: ReplicateStream, _: Channel) -> None:
    await stream.cancel()


async def _close(_: ReplicateStream, channel: Channel) -> None:
    await channel.close()


@pytest.mark.parametrize("leave", [_cancel, _close])
async def test_a_caller_that_leaves_ends_the_handler(way: str, leave: Callable[[ReplicateStream, Channel], Awaitable[None]]) -> None:
    async with _served(way, _wait) as (node, channel, _):
        stream = await _opened(channel)
        assert await stream.receive() is not None
        await leave(stream, channel)
        await node.given_up.wait()
        with pytest.raises(ConnectionLost):
            await stream.receive()


async def test_a_node_that_stops_ends_its_streams(way: str) -> None:
    async with _served(way, _wait) as (node, channel, listener):
        stream = await _opened(channel)
        assert await stream.receive() is not None
        await listener.close()
        await node.given_up.wait()
        with pytest.raises(Unavailable):
            await stream.receive()
        with pytest.raises(Unavailable):
            await _opened(channel)


async def test_a_handler_that_cancels_reports_its_caller(way: str) -> None:
    async def play(stream: ServedReplicateStream) -> None:
        await stream.receive()
        await stream.cancel()

    async with _served(way, play) as (_, channel, _):
        with pytest.raises(ConnectionLost, match="cancelled by the server"):
            await (await _opened(channel)).receive()


async def _until_still(count: Callable[[], int]) -> int:
    """The count when it has not moved for a while."""
    before = -1
    while before != count() or not count():
        before = count()
        await asyncio.sleep(0.5)
    return before


BUFFERED_MAX = 24
"""Messages of a mebibyte that two ends and the kernel between them may hold, with room to spare."""


async def test_a_handler_that_does_not_read_holds_up_the_caller_and_fills_no_memory(way: str) -> None:
    read_on = asyncio.Event()

    async def play(stream: ServedReplicateStream) -> None:
        await stream.receive()
        await read_on.wait()
        await _count(stream)

    async with _served(way, play) as (_, channel, _):
        stream = await _opened(channel)
        begun = 0

        async def send() -> None:
            nonlocal begun
            for _ in range(60):
                begun += 1
                await stream.send(_block(bytes(MIB)))
            await stream.finish()

        sending = asyncio.ensure_future(send())
        assert await _until_still(lambda: begun) <= BUFFERED_MAX
        read_on.set()
        for _ in range(61):
            assert await stream.receive() is not None
        await sending


async def test_a_caller_that_does_not_read_holds_up_the_handler_and_no_other(way: str) -> None:
    sent = 0

    def large(number: int) -> Any:
        """An answer, and unknown fields."""
        return pb.ReplicateResponse.FromString(
            pb.ReplicateResponse(last_transaction_id=number).SerializeToString() + b"\x7a\x80\x80\x40" + bytes(MIB)
        )

    async def play(stream: ServedReplicateStream) -> None:
        nonlocal sent
        message = await stream.receive()
        if message is not None and message.open.session == 2:
            await stream.send(pb.ReplicateResponse())
            return
        for _ in range(60):
            await stream.send(large(sent))
            sent += 1

    async with _served(way, play) as (_, channel, _):
        stream = await _opened(channel)
        held = await _until_still(lambda: sent)
        assert held <= BUFFERED_MAX
        other = channel.open(methods.REPLICATE)
        await other.send(pb.ReplicateRequest(open=pb.ReplicateOpen(session=2)))
        assert await other.receive() is not None
        for number in range(60):
            answer = await stream.receive()
            assert answer is not None
            assert answer.last_transaction_id == number
        assert await stream.receive() is None


async def test_a_message_above_the_limit_ends_its_stream_and_no_other(way: str) -> None:
    async with _served(way, _count) as (_, channel, _):
        other, stream = await _opened(channel), await _opened(channel)
        with pytest.raises((ProtocolViolation, ConnectionLost)):
            await stream.send(_block(bytes(17 * MIB)))
            await stream.receive()
            await stream.receive()
        for _ in range(2):
            await other.send(_block(b"y"))
            assert await other.receive() is not None


async def test_a_transaction_that_a_handler_awaits_and_that_is_given_up_is_reported(way: str) -> None:
    async def play(stream: ServedReplicateStream) -> None:
        await stream.receive()
        waited_for = asyncio.get_running_loop().create_future()
        waited_for.cancel()
        await waited_for

    async with _served(way, play) as (_, channel, _):
        with pytest.raises(ConnectionLost, match="the awaited result was cancelled"):
            await (await _opened(channel)).receive()


@pytest.mark.parametrize(
    "scenario",
    [
        test_messages_of_all_sizes_come_in_order_and_a_half_close_lets_the_last_words_through,
        test_many_small_messages_at_once_stay_whole_and_in_order,
        lambda way: test_an_error_reaches_a_caller_that_is_still_sending(),
        test_a_node_that_stops_ends_its_streams,
        test_a_handler_that_does_not_read_holds_up_the_caller_and_fills_no_memory,
        test_a_caller_that_does_not_read_holds_up_the_handler_and_no_other,
    ],
)
def test_the_same_on_the_event_loop_of_serving_processes(scenario: Callable[[str], Awaitable[None]]) -> None:
    async def run() -> None:
        await scenario("direct")

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


# ---- where it is not to be had ---------------------------------------------------------------------------------------------------------------------


async def test_a_port_that_cannot_be_reached_is_tried_once_and_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    async def announce(self: direct.DirectListener, _request: Any) -> Any:
        asked.append(1)
        return pb.DirectResponse(port=1)  # no process listens there

    monkeypatch.setattr(direct.DirectListener, "_offer_port", announce)
    async with _served("grpc", _count) as (node, channel, _):
        for _ in range(3):
            assert await (await _opened(channel)).receive() is not None
        assert (node.ways, len(asked)) == (["grpc"] * 3, 1)
        monkeypatch.setattr(direct, "AGAIN_S", 0.0)
        other = GrpcNetwork().connect(channel.address)
        for _ in range(2):
            assert await (await _opened(other)).receive() is not None
        assert len(asked) == 3
        await other.close()


async def test_a_node_accepts_a_limited_number_and_serves_the_rest_over_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "CONNECTIONS_MAX", 3)
    node = _Node(_count)
    listener = await GrpcNetwork().serve("127.0.0.1:0", [methods.REPLICATE.served_by(node.replicate)])
    channel = GrpcNetwork().connect(listener.address)
    try:
        async with asyncio.timeout(PATIENCE_S):
            streams = [await _opened(channel), await _opened(channel)]
            streams += await asyncio.gather(*(_opened(channel) for _ in range(6)))
            for stream in streams:
                assert await stream.receive() is not None
            assert sorted(node.ways) == ["direct"] * 3 + ["grpc"] * 5
            for stream in streams:
                await stream.cancel()
            while node.ways[-1] != "direct":  # when the node has heard of it there is room again
                assert await (await _opened(channel)).receive() is not None
    finally:
        await channel.close()
        await listener.close()


async def test_a_reserved_place_that_was_not_used_is_free_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "CONNECTIONS_MAX", 2)
    monkeypatch.setattr(direct, "OFFER_S", 0.2)
    listener = direct.DirectListener("127.0.0.1:0", 0, [methods.REPLICATE.served_by(_count)])
    await listener.open()
    (offered,) = listener.service
    announce, question = offered.handler, pb.ReplicateRequest()
    assert [(await announce(question)).port > 0 for _ in range(3)] == [True, True, False]
    await asyncio.sleep(0.3)
    assert (await announce(question)).port > 0
    await listener.close()


async def test_who_begins_without_a_message_is_served_over_grpc() -> None:
    async def play(stream: ServedReplicateStream) -> None:
        await stream.send(pb.ReplicateResponse(last_transaction_id=4))
        await stream.receive()

    async with _served("grpc", play) as (node, channel, _):
        first = await channel.open(methods.REPLICATE).receive()
        assert first is not None
        assert node.ways == ["grpc"]


async def test_a_node_that_is_gone_is_a_lost_connection() -> None:
    channel = GrpcNetwork().connect("127.0.0.1:1")
    with pytest.raises(ConnectionLost, match="connect"):
        async with asyncio.timeout(PATIENCE_S):
            await _opened(channel)
    await channel.close()
    with pytest.raises(ConnectionLost, match="closed"):
        await _opened(channel)


@pytest.mark.parametrize(("port", "expected"), [(0, "direct"), (-1, "grpc")])
async def test_the_owner_serves_the_stream_whichever_worker_receives_it(port: int, expected: str) -> None:
    """A worker that does not own the partition passes the question on, and nothing else of a stream that comes directly."""
    partition = next(number for number in range(100) if worker_of(number, 2) == 1)
    with TemporaryDirectory() as folder:
        reserved = ReservedAddress("127.0.0.1:0")
        own = [ReservedAddress("127.0.0.1:0") for _ in range(2)]
        siblings = [f"unix:{Path(folder) / str(number)}" for number in range(2)]
        networks = [WorkerNetwork(Shard(n, 2), [reserved.address, own[n].address], siblings, direct_port=port) for n in range(2)]
        nodes = [_Node(_count) for _ in range(2)]
        listeners = [await network.serve("", [methods.REPLICATE.served_by(node.replicate)]) for network, node in zip(networks, nodes, strict=True)]
        channel = GrpcNetwork().connect(own[0].address)
        try:
            async with asyncio.timeout(PATIENCE_S):
                stream = channel.open(methods.REPLICATE)
                await stream.send(pb.ReplicateRequest(open=pb.ReplicateOpen(partition=partition)))
                assert await stream.receive() is not None
                await stream.send(_block(bytes(MIB)))
                assert await stream.receive() is not None
                assert (nodes[0].ways, nodes[1].ways) == ([], [expected])
                assert (networks[0].forwarded.bytes_to_owners < MIB) == (expected == "direct")
        finally:
            await channel.close()
            for listener in listeners:
                await listener.close()
            for each in (reserved, *own):
                each.close()
