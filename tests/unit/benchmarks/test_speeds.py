"""The speed of the machine during a load, from what a client did in windows of it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.scaling.costs import Cost
from benchmarks.scaling.speeds import WINDOW_S, Window, sampled, slowness, without

COST = Cost(per_transaction=4.0, per_block=200.0, per_kib=0.0)


def window(end_s: float, factor: float, frames: int = 10, transactions: int = 1_000) -> Window:
    spent_s = factor * (COST.per_transaction * transactions + COST.per_block * frames) / 1e6
    return Window(end_s, spent_s, transactions, frames)


def test_a_window_is_as_slow_as_its_work_needs_more_than_the_model_says() -> None:
    found = slowness([window(0.05, 1.2), window(0.1, 0.9), window(0.15, 1.8)], COST, 200)
    assert [until_ms for until_ms, _ in found] == pytest.approx([50.0, 100.0, 150.0])
    assert [factor for _, factor in found] == pytest.approx([1.2, 0.9, 1.8])


def test_smaller_frames_cost_more_and_do_not_count_as_a_slow_machine() -> None:
    found = slowness([window(0.05, 1.0), window(0.1, 1.0, frames=40), window(0.15, 1.0, transactions=600)], COST, 200)
    assert [factor for _, factor in found] == pytest.approx([1.0] * 3)


def test_a_window_with_little_work_says_nothing() -> None:
    idle = Window(0.2, 0.003, 0, 0)
    found = slowness([window(0.05, 1.3), window(0.1, 1.3), window(0.15, 3.0, transactions=100), idle], COST, 200)
    assert [factor for _, factor in found] == pytest.approx([1.3, 1.3, 1.0, 1.0])


def test_no_window_is_no_slowness() -> None:
    assert slowness([], COST, 200) == []


def test_what_the_load_itself_does_is_no_slowness() -> None:
    """A tenth of a processor, in windows of 50 and of 100 ms. What is left is never negative."""
    busy = [replace(window(0.05, 1.0), spent_s=0.006 + 0.005), replace(window(0.15, 1.0), spent_s=0.006 + 0.01), Window(0.2, 0.001, 0, 0)]
    left = without(busy, 0.1)
    assert [each.spent_s for each in left] == pytest.approx([0.006, 0.006, 0.0])
    assert [factor for _, factor in slowness(left, COST, 200)] == pytest.approx([1.0, 1.0, 1.0])


class CountingClient:
    """Two partitions. One of them commits 30 appends, accepts 40 and sends a frame each time it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def statistics(self) -> Any:
        self.asked += 1
        busy = SimpleNamespace(appended=30 * self.asked, pending=10 * self.asked, frames=self.asked)
        return SimpleNamespace(partitions={0: busy, 1: SimpleNamespace(appended=7, pending=0, frames=1)})


async def test_windows_hold_what_was_done_since_the_one_before() -> None:
    client: Any = CountingClient()
    async with sampled(client) as windows:
        while len(windows) < 3:
            await asyncio.sleep(WINDOW_S / 5)
    assert [(each.transactions, each.frames) for each in windows[:3]] == [(35.0, 1)] * 3
    assert all(each.spent_s >= 0 for each in windows)
    ends = [0.0, *(each.end_s for each in windows[:3])]
    assert all(after - before >= WINDOW_S * 0.9 for before, after in pairwise(ends))
    count = len(windows)
    await asyncio.sleep(2 * WINDOW_S)
    assert len(windows) == count, "no sample after the load"
