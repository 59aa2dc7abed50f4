"""Memory of direct connections: it grows with what arrives, counts against the principal, and is returned."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from waltz_log.transport.direct import codec, large_frame
from waltz_log.transport.direct.codec import HEAD, MESSAGE, PING, Wire
from waltz_log.transport.direct.large_frame import LargeFrame
from waltz_log.transport.direct.received_bytes import LIMIT_MIN, ReceivedBytes, Share
from waltz_log.transport.methods import MAX_FRAME_BYTES

MIB = 1 << 20


@pytest.fixture(autouse=True)
def _small_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_frame, "BEGUN_BYTES_MAX", MIB)
    monkeypatch.setattr(codec, "STEP_BYTES_MAX", 1 << 40)  # these tests are one step of the loop


class _Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.reading = True
        self.written = 0

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def writelines(self, data: Any) -> None:
        self.written += sum(map(len, data))

    def can_write_eof(self) -> bool:
        return False

    def abort(self) -> None:
        pass


def _connected(share: Share) -> tuple[Wire, _Transport]:
    wire, transport = Wire(), _Transport()
    wire.connection_made(transport)
    wire.share = share
    return wire, transport


def _receive(wire: Wire, transport: _Transport, data: bytes) -> int:
    """As an event loop gives it; stops when the wire stops to read. Returns how much was received."""
    at = 0
    while at < len(data) and transport.reading:
        view = wire.get_buffer(-1)
        size = min(len(view), len(data) - at)
        view[:size] = data[at : at + size]
        del view
        wire.buffer_updated(size)
        at += size
    return at


async def test_a_frame_that_is_announced_holds_a_mebibyte_and_grows_with_what_arrives() -> None:
    share = Share(LIMIT_MIN)
    wire, transport = _connected(share)
    frame = HEAD.pack(MESSAGE, MAX_FRAME_BYTES) + bytes(range(256)) * (MAX_FRAME_BYTES // 256)
    _receive(wire, transport, frame[: 64 * 1024])
    assert share.held == MIB
    _receive(wire, transport, frame[64 * 1024 : 3 * MIB])
    assert share.held == 4 * MIB
    _receive(wire, transport, frame[3 * MIB :])
    assert await wire.next() == frame[HEAD.size :]
    wire.connection_lost(None)
    assert share.held == 0


async def test_a_principal_at_its_limit_is_not_read_until_half_is_returned() -> None:
    share = Share(4 * MIB)
    wires = [_connected(share) for _ in range(3)]
    frame = HEAD.pack(MESSAGE, 2 * MIB) + bytes(2 * MIB)
    received = [_receive(wire, transport, frame) for wire, transport in wires]
    assert [transport.reading for _, transport in wires] == [False, False, False]
    assert received[2] == MIB + HEAD.size, "the third has the beginning of its frame"
    other = _connected(Share(4 * MIB))
    assert _receive(*other, frame) == len(frame)
    (first, _), (second, second_transport), (third, third_transport) = wires
    assert await first.next() is not None
    assert share.held > 5 * MIB, "the receiver has the message in its hands"
    waiting = asyncio.ensure_future(first.next())
    await asyncio.sleep(0)
    assert share.held < 4 * MIB
    assert not third_transport.reading, "more than half is held"
    second.connection_lost(None)
    assert third_transport.reading
    _receive(third, third_transport, frame[received[2] :])
    assert await third.next() == bytes(2 * MIB)
    third.connection_lost(None)
    assert share.held == 0
    waiting.cancel()
    assert not second_transport.reading


async def test_an_incomplete_frame_of_a_principal_at_its_limit_waits_and_is_completed_later() -> None:
    share = Share(3 * MIB)
    full, _ = _connected(share)
    wire, transport = _connected(share)
    frame = HEAD.pack(MESSAGE, 2 * MIB) + bytes(2 * MIB)
    full._charge(4 * MIB)
    received = _receive(wire, transport, frame)
    assert received < len(frame)
    assert not transport.reading
    full.connection_lost(None)
    assert transport.reading
    _receive(wire, transport, frame[received:])
    assert await wire.next() == bytes(2 * MIB)
    wire.connection_lost(None)
    assert share.held == 0


async def test_a_frame_that_does_not_become_complete_ends_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "FRAME_S", -1.0)
    wire, transport = _connected(Share(LIMIT_MIN))
    ended: list[bool] = []
    monkeypatch.setattr(transport, "abort", lambda: ended.append(True))
    _receive(wire, transport, HEAD.pack(MESSAGE, MAX_FRAME_BYTES) + bytes(64 * 1024))
    wire._check_silence()
    assert ended
    wire.connection_lost(None)
    assert "in time" in str(wire.lost)


async def test_pings_of_a_peer_that_reads_nothing_are_not_answered() -> None:
    wire, transport = _connected(Share())
    _receive(wire, transport, HEAD.pack(PING, 0))
    written = transport.written
    assert written > 0
    wire.pause_writing()
    for _ in range(100):
        _receive(wire, transport, HEAD.pack(PING, 0))
    assert transport.written == written


async def test_a_control_frame_is_short() -> None:
    wire, transport = _connected(Share())
    _receive(wire, transport, HEAD.pack(PING, codec.CONTROL_BYTES_MAX + 1) + bytes(32))
    assert "too large" in str(wire.error("the peer"))


def test_a_share_lives_as_long_as_it_is_used_and_has_room_for_one_frame() -> None:
    received = ReceivedBytes(1)
    share = received.share("ada")
    assert share is received.share("ada")
    assert share.limit == LIMIT_MIN
    assert received.share(None).limit == ReceivedBytes(0).share("ada").limit == 0


def test_the_memory_of_a_large_frame_is_what_is_announced_in_the_end() -> None:
    frame = LargeFrame(MESSAGE, 3 * MIB, memoryview(b"begin"), 0.0)
    grown = frame.held_bytes
    while frame.whole is None:
        free = len(frame.free)
        frame.received(free)
        if frame.needs_memory:
            grown += frame.grow()
    assert grown == len(frame.whole) == frame.held_bytes == 3 * MIB
    assert bytes(frame.whole[:5]) == b"begin"


async def test_one_step_of_the_loop_receives_a_mebibyte_of_a_large_frame_and_the_next_one_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """libuv would read 8 MiB in one step, which takes 30 ms with TLS."""
    monkeypatch.setattr(codec, "STEP_BYTES_MAX", MIB)
    wire, transport = _connected(ReceivedBytes(4 * LIMIT_MIN).share("ada"))
    steps: list[Any] = []
    now_s = 1.0
    wire._loop = SimpleNamespace(time=lambda: now_s, call_soon=steps.append, call_later=lambda *_: None)  # type: ignore[assignment]
    frame = HEAD.pack(MESSAGE, 8 * MIB) + bytes(8 * MIB)
    at = 0
    while at < len(frame):
        received = _receive_in_chunks(wire, transport, frame[at:], 256 * 1024)
        assert 0 < received <= codec.STEP_BYTES_MAX + 512 * 1024
        at += received
        if at < len(frame):
            assert not transport.reading
            now_s += 0.001
            steps.pop()()
            assert transport.reading
    assert len(wire._messages) == 1
    assert not steps or not transport.reading


def _receive_in_chunks(wire: Wire, transport: _Transport, data: bytes, chunk: int) -> int:
    at = 0
    while at < len(data) and transport.reading:
        at += _receive(wire, transport, data[at : at + chunk])
    return at
