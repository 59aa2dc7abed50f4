"""Append times while clocks are wrong: one that is far ahead dates nothing ahead, and leaves nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from waltz_log.client import ClientSettings
from waltz_log.server.base import agreed_clock
from waltz_log.server.base.agreed_clock import AHEAD_MAX_MS, AgreedClock
from waltz_log.testing.cluster import LoopClock, MemoryCluster

YEAR_MS = 365 * 24 * 3600 * 1000


class Skewed(LoopClock):
    def __init__(self, ahead_ms: int) -> None:
        self.ahead_ms = ahead_ms

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


@pytest.fixture
async def cluster(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MemoryCluster]:
    monkeypatch.setattr(agreed_clock, "PAUSE_S", 0.02)
    made = MemoryCluster(storages=3, servers=1)
    yield made
    await made.stop()


def _skew(cluster: MemoryCluster, name: str, ahead_ms: int = 0) -> Skewed:
    cluster.clocks[name] = found = Skewed(ahead_ms)
    return found


async def _append_time(cluster: MemoryCluster) -> int:
    """How far ahead of the true time an append is dated, in milliseconds."""
    client = await cluster.connect(ClientSettings(retry_base_s=0.001, retry_cap_s=0.02))
    try:
        receipt = await client.append(0, b"x")
        return receipt.append_time_ms - cluster.clock.now_ms()
    finally:
        await client.close()


async def test_a_server_that_starts_a_year_ahead_dates_appends_as_the_storage_nodes_do(cluster: MemoryCluster) -> None:
    ahead = _skew(cluster, "server-0", YEAR_MS)
    await cluster.start()
    assert abs(await _append_time(cluster)) < AHEAD_MAX_MS
    ahead.ahead_ms = 0
    assert abs(await _append_time(cluster)) < 5_000, "nothing is left of it"


async def test_a_clock_that_is_set_ahead_while_it_runs_dates_nothing_ahead(cluster: MemoryCluster) -> None:
    clock = _skew(cluster, "server-0")
    await cluster.start()
    assert abs(await _append_time(cluster)) < 5_000
    clock.ahead_ms = YEAR_MS
    assert abs(await _append_time(cluster)) <= AHEAD_MAX_MS, "at once, not only when storage nodes are asked again"


async def test_one_storage_node_that_is_ahead_changes_nothing(cluster: MemoryCluster) -> None:
    _skew(cluster, "storage-1", YEAR_MS)
    await cluster.start()
    assert abs(await _append_time(cluster)) < 5_000


async def test_a_clock_that_is_behind_is_followed_when_it_is_corrected(cluster: MemoryCluster) -> None:
    clock = _skew(cluster, "server-0", -YEAR_MS)
    await cluster.start()
    assert await _append_time(cluster) < -AHEAD_MAX_MS
    clock.ahead_ms = 0
    assert abs(await _append_time(cluster)) < 5_000


async def test_the_log_says_when_a_clock_is_ahead_and_when_it_agrees_again(cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]) -> None:
    clock = _skew(cluster, "server-0")
    await cluster.start()
    for ahead_ms, event in ((YEAR_MS, "clock is ahead of the storage nodes"), (0, "clock agrees with the storage nodes again")):
        clock.ahead_ms = ahead_ms
        async with asyncio.timeout(10):
            while event not in "".join(capsys.readouterr()):
                await asyncio.sleep(0.01)


async def test_without_an_answer_of_storage_nodes_a_server_has_its_own_clock(cluster: MemoryCluster) -> None:
    clock = AgreedClock(Skewed(0), cluster.network.host("server-0"))
    asking = asyncio.ensure_future(clock.run(b"", lambda: ["nowhere:1", "nowhere:2"]))
    await asyncio.sleep(0.05)
    assert abs(clock.now_ms() - cluster.clock.now_ms()) < 5_000
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
