"""Frames on a bare socket: what strangers, torn streams and silent peers meet."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop

from waltz_log import errors
from waltz_log.errors import ConnectionLost, ProtocolViolation
from waltz_log.testing.virtual_time import run_in_virtual_time
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.block_messages import block_of
from waltz_log.transport.connection_limits import ConnectionLimits
from waltz_log.transport.direct import codec as frames
from waltz_log.transport.direct import connection as direct
from waltz_log.transport.direct.codec import Wire
from waltz_log.transport.direct.connection import DirectListener
from waltz_log.transport.methods import ServedReplicateStream

PATIENCE_S = 20
GREETING = b"\x01/waltz.Storage/Replicate"


def _frame(kind: int, data: bytes = b"") -> bytes:
    return struct.pack(">BI", kind, len(data)) + data


class _Node:
    def __init__(self) -> None:
        self.received: list[Any] = []
        self.ended: BaseException | None = None
        self.read_on = asyncio.Event()
        self.read_on.set()

    async def replicate(self, stream: ServedReplicateStream) -> None:
        try:
            while True:
                await self.read_on.wait()
                message = await stream.receive()
                if message is None:
                    return
                self.received.append(message)
                await stream.send(pb.ReplicateResponse(last_transaction_id=len(self.received)))
        except BaseException as error:
            self.ended = error
            raise


async def _port(listener: DirectListener) -> int:
    (offered,) = listener.service
    return int((await offered.handler(pb.ReplicateRequest())).port)


@asynccontextmanager
async def _listening(handshake_s: float = frames.HANDSHAKE_S) -> AsyncIterator[tuple[_Node, int]]:
    node = _Node()
    listener = DirectListener("127.0.0.1:0", 0, [methods.REPLICATE.served_by(node.replicate)], limits=ConnectionLimits(handshake_s=handshake_s))
    await listener.open()
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield node, await _port(listener)
    finally:
        await listener.close()


async def _said(port: int, data: bytes) -> bytes:
    """All that the node answers until it closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


def _status(data: bytes) -> errors.WaltzError | None:
    kind, length = struct.unpack_from(">BI", data)
    assert (kind, length) == (frames.STATUS, len(data) - 5)
    return errors.decode(data[5:].decode())


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "greeting"),
        (b"\0" * 100_000, "greeting"),
        (b"\xff" * 100_000, "greeting"),
        (_frame(frames.GREETING, b"\x01" * 257), "greeting"),
        (_frame(frames.GREETING, b"\x02/waltz.Storage/Replicate"), "version"),
        (_frame(frames.GREETING, b"\x01/waltz.Storage/Open"), "not offered"),
        (_frame(frames.GREETING, GREETING) + _frame(99, b"x"), "kind=99"),
        (_frame(frames.GREETING, GREETING) + struct.pack(">BI", frames.MESSAGE, methods.MAX_FRAME_BYTES + 1), "too large"),
        (_frame(frames.GREETING, GREETING) + _frame(frames.MESSAGE, b"\xff" * 20), "not a message"),
        (_frame(frames.GREETING, GREETING) + _frame(frames.MESSAGE) + _frame(frames.END) + _frame(frames.MESSAGE), "after the end"),
    ],
    ids=["http", "zeros", "ones", "long", "version", "unknown", "kind", "large", "garbage", "after-the-end"],
)
async def test_an_invalid_message_gets_its_error_and_the_connection_ends(data: bytes, word: str) -> None:
    async with _listening() as (node, port):
        refused = _status(await _said(port, data))
        assert isinstance(refused, ProtocolViolation)
        assert word in str(refused)
        good = await _said(port, _frame(frames.GREETING, GREETING) + _frame(frames.MESSAGE) + _frame(frames.END))
        assert good == _frame(frames.MESSAGE, pb.ReplicateResponse(last_transaction_id=len(node.received)).SerializeToString()) + _frame(
            frames.STATUS
        )


async def test_a_stream_that_comes_byte_by_byte_is_the_same() -> None:
    sent = [pb.ReplicateRequest(block=pb.Block(records=bytes([n]) * n)) for n in range(1, 40)]
    data = _frame(frames.GREETING, GREETING) + b"".join(_frame(frames.MESSAGE, each.SerializeToString()) for each in sent) + _frame(frames.END)
    async with _listening() as (node, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for at in range(len(data)):
            writer.write(data[at : at + 1])
            if at % 16 == 0:
                await asyncio.sleep(0)
        assert (await reader.read()).endswith(_frame(frames.STATUS))
        assert [each.block for each in node.received] == [block_of(each.block) for each in sent]
        writer.close()


async def test_a_peer_that_dies_in_the_middle_of_a_frame_ends_the_handler_and_nothing_of_the_frame_arrives() -> None:
    async with _listening() as (node, port):
        for torn in (struct.pack(">BI", frames.MESSAGE, 1_000_000) + b"x" * 200_000, b"\0\0"):
            node.ended, before = None, len(node.received)
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(_frame(frames.GREETING, GREETING) + _frame(frames.MESSAGE) + torn)
            while len(node.received) == before:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            writer.transport.abort()
            while node.ended is None:
                await asyncio.sleep(0.01)
            assert isinstance(node.ended, asyncio.CancelledError | ConnectionLost)
            assert len(node.received) == before + 1


@pytest.mark.parametrize("said", [b"", b"W", _frame(frames.GREETING, GREETING), _frame(frames.GREETING, GREETING) + b"\0\0\0"])
async def test_a_caller_that_does_not_open_a_stream_in_time_is_disconnected(said: bytes) -> None:
    async with _listening(handshake_s=0.1) as (node, port):
        assert await _said(port, said) == b""
        assert node.received == []


async def test_a_stranger_that_drips_signs_of_life_does_not_outlive_the_handshake() -> None:
    async with _listening(handshake_s=0.3) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(_frame(frames.GREETING, GREETING))

        async def drip() -> None:
            while True:
                writer.write(_frame(frames.PING))
                await asyncio.sleep(0.02)

        dripping = asyncio.ensure_future(drip())
        try:
            while await reader.read(1000):
                pass
        except ConnectionError:
            pass
        dripping.cancel()
        writer.close()


class _Judge:
    """Reads the opening message, and accepts it when it is let."""

    def __init__(self) -> None:
        self.accept = asyncio.Event()
        self.opened = asyncio.Event()
        self.received: list[int] = []

    async def replicate(self, stream: ServedReplicateStream) -> None:
        await stream.receive()
        self.opened.set()
        await self.accept.wait()
        while (message := await stream.receive()) is not None:
            self.received.append(len(message.block.records))
            await stream.send(pb.ReplicateResponse(last_transaction_id=len(self.received)))


def _judged_streams() -> None:
    async def run() -> None:
        judge = _Judge()
        listener = DirectListener("127.0.0.1:0", 0, [methods.REPLICATE.served_by(judge.replicate)])
        await listener.open()
        async with asyncio.timeout(PATIENCE_S):
            wire = await _wire(await _port(listener))
            await wire.send(pb.ReplicateRequest(open=pb.ReplicateOpen(session=1)).SerializeToString())
            sending = asyncio.ensure_future(_send_all(wire, 12))
            await judge.opened.wait()
            await asyncio.sleep(0.3)
            (served,) = listener._wires
            assert not sending.done()
            assert len(served._buffer) == frames.UNTRUSTED_BYTES < 1100
            assert served._large is None, "memory for a frame of a stranger"
            assert (len(served._messages), served._held) == (0, 0)
            judge.accept.set()
            for _ in range(12):
                assert await wire.next() is not None
            await sending
            assert judge.received == [1 << 20] * 12
            wire.finish()
            assert await wire.next() is None
            assert wire.status == b""
        await listener.close()

    for loop_factory in (asyncio.new_event_loop, uvloop.new_event_loop):
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(run())


def test_nothing_is_read_or_held_of_a_peer_beyond_its_opening_until_the_handler_accepts_it() -> None:
    _judged_streams()


async def test_the_opening_of_a_stranger_is_small() -> None:
    async with _listening() as (node, port):
        large = struct.pack(">BI", frames.MESSAGE, frames.OPENING_BYTES_MAX + 1)
        refused = _status(await _said(port, _frame(frames.GREETING, GREETING) + large + bytes(1000)))
        assert isinstance(refused, ProtocolViolation)
        assert "too large" in str(refused)
        assert node.received == []


async def test_of_too_many_silent_connections_the_oldest_is_closed_and_a_peer_that_speaks_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "STRANGERS_MAX", 3)
    async with _listening() as (_, port):
        # Silent strangers: none of them has greeted, and none was promised a place.
        strangers = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        await asyncio.sleep(0.1)
        for oldest, _ in strangers[:2]:
            answer = await _said(port, _frame(frames.GREETING, GREETING) + _frame(frames.MESSAGE) + _frame(frames.END))
            assert answer.endswith(_frame(frames.STATUS))
            assert await oldest.read() == b"", "closed without waiting for the handshake"
        for _, writer in strangers:
            writer.close()


async def test_connections_of_admitted_peers_above_the_limit_are_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "CONNECTIONS_MAX", 1)
    async with _listening() as (_, port):
        _, first = await asyncio.open_connection("127.0.0.1", port)
        first.write(_frame(frames.GREETING, GREETING) + _frame(frames.MESSAGE))
        await asyncio.sleep(0.1)
        speech = _frame(frames.GREETING, GREETING) + _frame(frames.MESSAGE) + _frame(frames.END)
        assert b"direct_connections_per_principal" in await _said(port, speech)
        first.close()
        answer = b""
        while not answer.endswith(_frame(frames.STATUS)):  # as soon as the node has seen that there is room
            answer = await _said(port, speech)


async def _wire(port: int) -> Wire:
    _, wire = await asyncio.get_running_loop().create_connection(Wire, "127.0.0.1", port)
    wire.greet("/waltz.Storage/Replicate")
    return wire


async def test_a_silent_peer_is_asked_for_a_sign_of_life_and_one_that_gives_it_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "SILENCE_S", 0.4)
    async with _listening() as (_, port):
        wire = await _wire(port)
        await asyncio.sleep(2)
        await wire.send(b"")
        assert await wire.next() is not None
        wire.abort()


async def test_a_peer_without_a_sign_of_life_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "SILENCE_S", 0.1)
    monkeypatch.setattr(frames, "PONG", 200)  # both ends: no answer
    kept: list[asyncio.StreamWriter] = []
    silent = await asyncio.start_server(lambda reader, writer: kept.append(writer), "127.0.0.1", 0)
    wire = await _wire(silent.sockets[0].getsockname()[1])
    async with asyncio.timeout(PATIENCE_S):
        assert await wire.next() is None
    assert wire.lost == "peer is silent"
    assert isinstance(wire.error("here"), ConnectionLost)
    silent.close()
    for writer in kept:
        writer.transport.abort()
    await asyncio.sleep(0)


async def test_an_end_that_does_not_read_for_long_does_not_consider_its_peer_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "SILENCE_S", 0.4)
    async with _listening() as (node, port):
        node.read_on.clear()
        wire = await _wire(port)
        await wire.send(b"")
        sending = asyncio.ensure_future(_send_all(wire, 40))
        await asyncio.sleep(2)
        assert not sending.done()
        assert node.ended is None
        node.read_on.set()
        for _ in range(41):
            assert await wire.next() is not None
        await sending
        wire.abort()


async def _send_all(wire: Wire, count: int) -> None:
    for _ in range(count):
        await wire.send(pb.ReplicateRequest(block=pb.Block(records=bytes(1 << 20))).SerializeToString())


class _BrokenTransport(asyncio.Transport):
    """A transport that can write the greeting, and then nothing more, and does not say so before."""

    def __init__(self, wire: Wire) -> None:
        super().__init__()
        self._wire = wire
        self.writes = 0
        self.aborted = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        return

    def is_closing(self) -> bool:
        return self.aborted

    def write(self, data: Any) -> None:
        self.writes += 1
        if self.writes > 1:
            raise RuntimeError("the handler is closed")

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None:
        self.aborted = True
        self._wire.connection_lost(None)


def test_a_ping_that_fails_does_not_end_the_watch_over_a_silent_peer() -> None:
    async def main() -> None:
        failures: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context["exception"]))
        wire = Wire()
        transport = _BrokenTransport(wire)
        wire.connection_made(transport)
        wire.greet("a procedure")
        async with asyncio.timeout(4 * frames.SILENCE_S):
            assert await wire.next() is None
        assert (transport.writes, wire.lost) == (2, "peer is silent")
        assert [str(failure) for failure in failures] == ["the handler is closed"]

    run_in_virtual_time(main())
