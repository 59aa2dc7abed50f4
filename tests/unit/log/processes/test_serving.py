"""What serves runs on libuv's event loop, and everything else on the one it was given (decision 19)."""

from __future__ import annotations

import asyncio

from waltz_log.processes.serving import run


async def _loop() -> str:
    return type(asyncio.get_running_loop()).__module__


def test_serving_processes_run_on_libuv_and_others_as_before() -> None:
    assert run(_loop()) == "uvloop"
    assert asyncio.run(_loop()).startswith("asyncio")
