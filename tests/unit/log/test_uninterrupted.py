"""Cleanup is done whole, and the caller still ends as cancelled."""

from __future__ import annotations

import asyncio

import pytest

from waltz_log.testing.virtual_time import run_in_virtual_time
from waltz_log.uninterrupted import uninterrupted


def test_work_is_done_however_often_its_caller_is_cancelled() -> None:
    steps: list[int] = []

    async def work() -> None:
        for step in range(3):
            await asyncio.sleep(1)
            steps.append(step)

    async def run() -> None:
        task = asyncio.ensure_future(uninterrupted(work()))
        for _ in range(2):
            await asyncio.sleep(0.5)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert steps == [0, 1, 2]

    run_in_virtual_time(run())


def test_its_error_is_raised_in_place_of_the_cancellation() -> None:
    async def work() -> None:
        await asyncio.sleep(1)
        raise OSError("the disk is full")

    async def run() -> None:
        task = asyncio.ensure_future(uninterrupted(work()))
        await asyncio.sleep(0.5)
        task.cancel()
        with pytest.raises(OSError, match="full"):
            await task

    run_in_virtual_time(run())


def test_without_a_cancellation_it_returns() -> None:
    async def work() -> None:
        await asyncio.sleep(0)

    run_in_virtual_time(uninterrupted(work()))
