"""A server that is cut off from a majority of the replicas, and not from the coordinator, hands its partitions to one that reaches them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random

import pytest

from waltz_log.core import metadata as paths
from waltz_log.core.metadata import Assignment, Ownership
from waltz_log.server.base.settings import ServerSettings
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.testing.links import Links, Weather
from waltz_log.testing.virtual_time import run_in_virtual_time

AFTER_S = 4.0
SETTINGS = {"hand_over_after_s": AFTER_S, "replica_retry_s": 0.1, "replica_retry_max_s": 5.0, "rpc_timeout_s": 10.0}
BOUND_S = AFTER_S + 6.0
"""What `docs/concepts/guarantees.md` promises."""


def now_s() -> float:
    return asyncio.get_running_loop().time()


class Cut:
    """A cluster whose links a test shuts and opens."""

    def __init__(self, settings: Mapping[str, object] = SETTINGS) -> None:
        self.links = Links(Weather(delay_s=(0.0, 0.002), patience_s=2.0), Random(7))
        self.cluster = MemoryCluster(servers=0, links=self.links, settings=dict(settings))

    def shut(self, server: str, storages: Sequence[str], way: str = "both") -> None:
        """`way`: `out` for what the server sends, `in` for what it receives, or `both`."""
        for name in storages:
            if way != "in":
                self.links.shut(server, name)
            if way != "out":
                self.links.shut(name, server)

    def open(self, server: str, storages: Sequence[str]) -> None:
        for name in storages:
            self.links.open(server, name)
            self.links.open(name, server)

    async def assignment(self) -> Assignment:
        node = await self.cluster.ensemble.session().get(paths.ASSIGNMENT)
        assert node is not None
        return Assignment.from_bytes(node.data)

    async def owned(self) -> Ownership:
        return (await self.assignment()).partitions[0]

    def server_id(self, name: str) -> int:
        return self.cluster.servers[name][0].server_id

    async def published(self) -> list[str]:
        session = self.cluster.ensemble.session()
        return [*await session.children(paths.STRANDED), *await session.children(paths.REACH)]


async def until(condition: Callable[[], bool], seconds: float) -> None:
    deadline_s = now_s() + seconds
    while not condition():
        assert now_s() < deadline_s
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("way", ["both", "out", "in"])
@pytest.mark.parametrize("others", [("server-1",), ("server-1", "server-2")])
def test_a_partition_moves_to_a_server_that_reaches_a_majority_and_its_appends_go_on(others: tuple[str, ...], way: str) -> None:
    async def run() -> None:
        cut = Cut()
        cluster = cut.cluster
        await cluster.start()
        await cluster.start_server("server-0")
        for name in others:
            await cluster.start_server(name)
        client = await cluster.connect()
        await client.append(0, b"before")
        if len(others) == 2:
            cut.shut("server-1", ["storage-0", "storage-1", "storage-2"])  # it does no better
        await asyncio.sleep(5)
        assert await cut.published() == [], "in peace nothing is pinged and published"
        cut.shut("server-0", ["storage-0", "storage-1"], way)
        cut_s = now_s()
        await client.append(0, b"meanwhile", timeout_s=60.0)
        assert now_s() - cut_s < BOUND_S
        assert await cut.owned() == Ownership(cut.server_id(others[-1]), 2)
        await asyncio.sleep(60)
        assert await cut.owned() == Ownership(cut.server_id(others[-1]), 2), "it stays"
        await client.close()
        await cluster.stop()

    run_in_virtual_time(run())


@pytest.mark.parametrize("way", ["both", "out", "in"])
def test_with_the_default_settings_appends_go_on_within_eleven_seconds(way: str) -> None:
    """As `docs/concepts/guarantees.md` states it for operators who set nothing."""
    after_s = ServerSettings.model_fields["hand_over_after_s"].default
    assert after_s == 5.0
    guarantees = (Path(__file__).resolve().parents[2] / "docs" / "concepts" / "guarantees.md").read_text()
    assert f"after `hand_over_after_s` ({after_s:g} s)" in guarantees
    assert f"`hand_over_after_s` + {BOUND_S - AFTER_S:g} s" in guarantees

    async def run() -> None:
        cut = Cut({})
        cluster = cut.cluster
        await cluster.start()
        await cluster.start_server("server-0")
        await cluster.start_server("server-1")
        client = await cluster.connect()
        await client.append(0, b"before")
        cut.shut("server-0", ["storage-0", "storage-1"], way)
        cut_s = now_s()
        await client.append(0, b"meanwhile", timeout_s=60.0)
        assert now_s() - cut_s < after_s + (BOUND_S - AFTER_S)
        await client.close()
        await cluster.stop()

    run_in_virtual_time(run())


def test_a_partition_that_never_opened_moves_too() -> None:
    """Its owner waits in recovery for a majority that it cannot reach."""

    async def run() -> None:
        cut = Cut()
        cluster = cut.cluster
        await cluster.start()
        cut.shut("server-0", ["storage-0", "storage-1", "storage-2"])
        await cluster.start_server("server-0")
        await cluster.start_server("server-1")
        client = await cluster.connect()
        began_s = now_s()
        await client.append(0, b"first", timeout_s=60.0)
        assert now_s() - began_s < BOUND_S
        assert await cut.owned() == Ownership(cut.server_id("server-1"), 2)
        await client.close()
        await cluster.stop()

    run_in_virtual_time(run())


def test_the_partition_stays_if_no_server_reaches_a_majority() -> None:
    async def run() -> None:
        cut = Cut()
        cluster = cut.cluster
        await cluster.start()
        await cluster.start_server("server-0")
        await cluster.start_server("server-1")
        client = await cluster.connect()
        await client.append(0, b"before")
        before = await cut.owned()
        await cluster.stop_storage("storage-0")  # down for all of them
        cut.shut("server-0", ["storage-1"])
        cut.shut("server-1", ["storage-2"])
        waiting = asyncio.create_task(client.append(0, b"meanwhile", timeout_s=600.0))
        await asyncio.sleep(120)
        assert await cut.owned() == before
        assert not waiting.done()
        assert await cut.published() != [], "servers know that somebody needs a majority"
        await cluster.start_storage("storage-0")
        await waiting
        assert (await cut.owned()) == before
        await until_peace(cut)
        await client.close()
        await cluster.stop()

    run_in_virtual_time(run())


async def until_peace(cut: Cut) -> None:
    """Nothing is published any more."""
    deadline_s = now_s() + 3 * AFTER_S
    while await cut.published() != []:
        assert now_s() < deadline_s
        await asyncio.sleep(0.1)


def test_a_preferring_server_gets_its_partition_back_later_each_time_that_it_loses_it() -> None:
    """Its link goes up and down without end: moves become rarer, and between them nothing moves."""

    async def run() -> None:
        cut = Cut()
        cluster = cut.cluster
        await cluster.start()
        await cluster.start_server("server-0", preferred_partitions=(0,))
        await cluster.start_server("server-1")
        client = await cluster.connect()
        await client.append(0, b"before")
        first, second = cut.server_id("server-0"), cut.server_id("server-1")
        away_s: list[float] = []
        for _ in range(4):
            assert (await cut.owned()).server_id == first
            cut.shut("server-0", ["storage-0", "storage-1"])
            cut_s = now_s()
            await client.append(0, b"meanwhile", timeout_s=600.0)
            assert now_s() - cut_s < BOUND_S + sum(away_s)  # the pause before another hand-over grows too
            assert (await cut.owned()).server_id == second
            cut.open("server-0", ["storage-0", "storage-1"])
            back_s = now_s()
            while (await cut.owned()).server_id == second:
                await asyncio.sleep(0.05)
                assert now_s() - back_s < 600
            away_s.append(now_s() - back_s)
            await client.append(0, b"it serves again", timeout_s=60.0)
        assert away_s[0] >= AFTER_S
        assert all(later > 1.5 * earlier for earlier, later in itertools.pairwise(away_s)), away_s
        assert (await cut.assignment()).handed_over[0].moves == 4
        await asyncio.sleep(20 * AFTER_S * 2**4)
        assert (await cut.assignment()).handed_over == {}, "when all was calm for long, pauses begin anew"
        assert await cut.published() == []
        assert (await cut.owned()).generation == 1 + 2 * 4
        await client.close()
        await cluster.stop()

    run_in_virtual_time(run())


def test_full_disks_and_restarted_nodes_hand_nothing_over() -> None:
    async def run() -> None:
        cut = Cut()
        cluster = cut.cluster
        await cluster.start()
        await cluster.start_server("server-0")
        await cluster.start_server("server-1")
        client = await cluster.connect()
        await client.append(0, b"before")
        before = await cut.owned()
        for name in ("storage-0", "storage-1"):
            disk = cluster.disks[name]
            disk.total -= disk.free_bytes() - 1000
        waiting = asyncio.create_task(client.append(0, b"finds out", timeout_s=600.0))
        await asyncio.sleep(60)
        for name in ("storage-0", "storage-1"):
            cluster.disks[name].total = 1 << 40
        await waiting
        for _ in range(5):
            for name in ("storage-0", "storage-1"):
                await cluster.stop_storage(name)
            await asyncio.sleep(AFTER_S / 2)
            for name in ("storage-0", "storage-1"):
                await cluster.start_storage(name)
            await client.append(0, b"between", timeout_s=60.0)
        assert await cut.owned() == before
        await client.close()
        await cluster.stop()

    run_in_virtual_time(run())
