"""What serves runs on an event loop of libuv, and everything else on the one it was given (decision 19). Its collector leaves modules alone."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest

from waltz_log.processes.event_loop import NodeLoop
from waltz_log.processes.serving import run


@pytest.fixture(autouse=True)
def _collector() -> Iterator[None]:
    """As Python starts it, and after each test as tests/conftest.py left it: this process is no serving process."""
    threshold = gc.get_threshold()
    gc.unfreeze()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*threshold)
    gc.freeze()


async def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


def test_serving_processes_run_on_libuv_and_others_as_before() -> None:
    assert isinstance(run(_loop()), NodeLoop)
    assert type(asyncio.run(_loop())).__module__.startswith("asyncio")


def test_what_exists_before_a_process_serves_is_never_collected_again() -> None:
    async def visited() -> tuple[int, int]:
        return len(gc.get_objects()), gc.get_freeze_count()

    before = len(gc.get_objects())
    seen, frozen = run(visited())
    assert frozen > before // 2
    assert seen < before // 10
    assert gc.get_threshold()[0] > 700
