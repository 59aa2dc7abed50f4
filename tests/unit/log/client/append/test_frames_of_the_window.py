"""How much of what is pending is sent as one frame, and when the next frame waits for an answer."""

from __future__ import annotations

import asyncio
import struct

import pytest

from waltz_log.client.append.append_window import AppendWindow
from waltz_log.client.append.packing import pack_checked
from waltz_log.client.append.pending_append import FRAME_OVERHEAD_BYTES

FRAME_BYTES = 1 << 20
OVERLAP_BYTES = 128 << 10
SIZE = 200 + FRAME_OVERHEAD_BYTES
OVERLAP = -(-OVERLAP_BYTES // SIZE)
"""Enough appends for a second frame."""


def _enqueue(window: AppendWindow, count: int) -> None:
    loop = asyncio.get_running_loop()
    assert all(window.try_enqueue(pack_checked(loop.create_future(), bytes(200), 0)) for _ in range(count))


def _packed(window: AppendWindow) -> int:
    frame = window.pack(7, 1, -1, 0.0)
    return 0 if frame is None else len(struct.unpack(f">{len(frame.lengths) // 4}i", frame.lengths))


@pytest.fixture
async def window() -> AppendWindow:
    return AppendWindow(0, max_pending=1 << 20, max_pending_bytes=1 << 30, frame_bytes=FRAME_BYTES, overlap_bytes=OVERLAP_BYTES)


async def test_what_is_not_enough_for_two_frames_is_sent_as_one(window: AppendWindow) -> None:
    little = 2 * OVERLAP_BYTES // SIZE
    _enqueue(window, little)
    assert _packed(window) == little


@pytest.mark.parametrize("count", [1000, 4000])
async def test_a_closed_loop_is_sent_in_halves_and_so_it_stays_while_answers_come(window: AppendWindow, count: int) -> None:
    _enqueue(window, count)
    assert [_packed(window), _packed(window), _packed(window)] == [count // 2, count // 2, 0]
    for turn in range(4):
        window.commit(1 + turn * count // 2, count // 2, turn * count, 0)
        _enqueue(window, count // 2)
        assert not window.holds_back()
        assert _packed(window) == count // 2


async def test_what_gathered_behind_a_frame_in_flight_is_sent_whole(window: AppendWindow) -> None:
    _enqueue(window, 10)
    assert _packed(window) == 10
    _enqueue(window, 3000)
    assert _packed(window) == 3000


async def test_a_frame_waits_for_the_answer_before_it_unless_it_is_large(window: AppendWindow) -> None:
    assert not window.holds_back()
    _enqueue(window, 1)
    assert not window.holds_back()
    _packed(window)
    _enqueue(window, OVERLAP - 1)
    assert window.holds_back()
    _enqueue(window, 1)
    assert not window.holds_back()
    assert _packed(window) == OVERLAP
    _enqueue(window, FRAME_BYTES // SIZE)
    assert window.holds_back()  # two frames have no answer, and this is less than a full frame
    _enqueue(window, 1)
    assert not window.holds_back()
    window.commit(1, 1, 0, 0)
    assert not window.holds_back()


async def test_the_answer_to_the_last_frame_ends_the_wait(window: AppendWindow) -> None:
    _enqueue(window, 1)
    _packed(window)
    _enqueue(window, 1)
    assert window.holds_back()
    window.commit(1, 1, 0, 0)
    assert not window.holds_back()


async def test_much_goes_in_full_frames(window: AppendWindow) -> None:
    _enqueue(window, 16_000)
    full = FRAME_BYTES // SIZE
    assert [_packed(window) for _ in range(5)] == [full, full, full, full, 16_000 - 4 * full]
