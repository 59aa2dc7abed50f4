"""A coordinator session that lags: it reads and writes, and hears of no change before it has caught up."""

from __future__ import annotations

import asyncio

from waltz_log.testing.memory_coordinator import MemoryEnsemble
from waltz_log.testing.virtual_time import run_in_virtual_time


def test_watches_of_a_lagging_session_wait_and_its_calls_do_not() -> None:
    async def main() -> None:
        ensemble = MemoryEnsemble()
        one, other = ensemble.session(), ensemble.session()
        await other.create("/a/x", b"1")
        ensemble.lag(one)
        watches = [asyncio.ensure_future(one.wait_changed("/a/x", 0)), asyncio.ensure_future(one.wait_children("/a", ["x"]))]
        await other.set("/a/x", b"2", 0)
        await other.create("/a/y", b"")
        await asyncio.sleep(5)
        assert not any(watch.done() for watch in watches)
        found = await one.get("/a/x")
        assert found is not None
        assert found.data == b"2"
        assert await one.set("/a/x", b"3", found.version) == 2
        ensemble.catch_up(one)
        async with asyncio.timeout(1):
            await asyncio.gather(*watches)
        await one.wait_changed("/a/x", 0)

    run_in_virtual_time(main())
