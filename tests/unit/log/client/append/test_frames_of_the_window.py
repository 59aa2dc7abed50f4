"""How much of what is pending goes out as one frame."""

from __future__ import annotations

import asyncio
import struct

import pytest

from waltz_log.client.append.append_window import HALVED_BYTES, AppendWindow
from waltz_log.client.append.packing import pack_checked
from waltz_log.client.append.pending_append import FRAME_OVERHEAD_BYTES

FRAME_BYTES = 1 << 20
SIZE = 200 + FRAME_OVERHEAD_BYTES


def _enqueue(window: AppendWindow, count: int) -> None:
    loop = asyncio.get_running_loop()
    assert all(window.try_enqueue(pack_checked(loop.create_future(), bytes(200), 0)) for _ in range(count))


def _packed(window: AppendWindow) -> int:
    frame = window.pack(7, 1, -1, 0.0)
    return 0 if frame is None else len(struct.unpack(f">{len(frame.lengths) // 4}i", frame.lengths))


@pytest.fixture
async def window() -> AppendWindow:
    return AppendWindow(0, max_pending=1 << 20, max_pending_bytes=1 << 30, frame_bytes=FRAME_BYTES)


async def test_few_bytes_are_sent_as_one_frame(window: AppendWindow) -> None:
    little = HALVED_BYTES // SIZE
    _enqueue(window, little)
    assert _packed(window) == little


@pytest.mark.parametrize("count", [1000, 4000])
async def test_no_more_than_half_of_what_is_pending_is_one_frame_and_so_it_stays_while_answers_come(window: AppendWindow, count: int) -> None:
    _enqueue(window, count)
    assert [_packed(window), _packed(window), _packed(window)] == [count // 2, count // 2, 0]
    for turn in range(4):
        window.commit(1 + turn * count // 2, count // 2, turn * count, 0)
        _enqueue(window, count // 2)
        assert _packed(window) == count // 2


async def test_much_goes_in_full_frames(window: AppendWindow) -> None:
    _enqueue(window, 16_000)
    full = FRAME_BYTES // SIZE
    assert [_packed(window) for _ in range(5)] == [full, full, full, full, 16_000 - 4 * full]
