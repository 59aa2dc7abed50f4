"""Sessions that read from a follower: old answers within a bound, and ZooKeeper's promises all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from waltz_log.core.ports import Node
from waltz_log.testing.memory_coordinator import MemoryCoordinator, MemoryEnsemble
from waltz_log.testing.virtual_time import run_in_virtual_time

LAG_S = 0.5

Play = Callable[[MemoryCoordinator, MemoryCoordinator], Awaitable[None]]


def _play(play: Play) -> None:
    """With a session at a follower and one at the leader."""

    async def main() -> None:
        ensemble = MemoryEnsemble()
        lags = iter((LAG_S, 0.0))
        ensemble.follower_lag_s = lambda: next(lags)
        behind, other = ensemble.session(), ensemble.session()
        await other.create("/n", b"0")
        await asyncio.sleep(1)
        await play(behind, other)

    run_in_virtual_time(main())


def test_a_read_is_old_for_as_long_as_the_follower_lags() -> None:
    async def play(behind: MemoryCoordinator, other: MemoryCoordinator) -> None:
        await other.set("/n", b"1", 0)
        await other.create("/new/x", b"")
        assert await behind.get("/n") == Node(b"0", 0)
        assert await behind.get("/new/x") is None
        assert await behind.children("/new") == []
        await asyncio.sleep(LAG_S - 0.01)
        assert await behind.get("/n") == Node(b"0", 0)
        await asyncio.sleep(0.02)
        assert await behind.get("/n") == Node(b"1", 1)
        assert await behind.children("/new") == ["x"]

    _play(play)


def test_a_deleted_topic_is_read_until_the_follower_learns_of_it() -> None:
    async def play(behind: MemoryCoordinator, other: MemoryCoordinator) -> None:
        await other.delete("/n")
        assert await behind.get("/n") == Node(b"0", 0)
        assert await behind.children("/") == ["n"]
        await asyncio.sleep(LAG_S)
        assert await behind.get("/n") is None
        assert await behind.children("/") == []

    _play(play)


def test_a_latest_read_is_of_now_and_the_session_stays_there() -> None:
    async def play(behind: MemoryCoordinator, other: MemoryCoordinator) -> None:
        await other.set("/n", b"1", 0)
        assert await behind.get("/n", latest=True) == Node(b"1", 1)
        assert await behind.get("/n") == Node(b"1", 1)
        await other.create("/new/x", b"")
        assert await behind.children("/new", latest=True) == ["x"]

    _play(play)


def test_a_write_is_seen_by_its_session_with_all_before_it() -> None:
    async def play(behind: MemoryCoordinator, other: MemoryCoordinator) -> None:
        await other.set("/n", b"1", 0)
        await behind.create("/mine", b"")
        assert await behind.get("/mine") == Node(b"", 0)
        assert await behind.get("/n") == Node(b"1", 1)
        await other.set("/n", b"2", 1)
        assert await behind.set("/n", b"lost", 1) is None, "compared with what there is, not with what the follower has"
        assert await behind.get("/n") == Node(b"2", 2)

    _play(play)


def test_a_wait_returns_when_the_follower_has_the_change_and_the_read_after_it_shows_it() -> None:
    async def play(behind: MemoryCoordinator, other: MemoryCoordinator) -> None:
        loop = asyncio.get_running_loop()
        waits = [asyncio.ensure_future(behind.wait_changed("/n", 0)), asyncio.ensure_future(behind.wait_children("/new", []))]
        await asyncio.sleep(0)
        began = loop.time()
        await other.set("/n", b"1", 0)
        await other.create("/new/x", b"")
        await asyncio.gather(*waits)
        assert LAG_S <= loop.time() - began < LAG_S + 0.1
        assert await behind.get("/n") == Node(b"1", 1)
        assert await behind.children("/new") == ["x"]

    _play(play)


def test_members_of_an_expired_session_go_from_a_follower_too() -> None:
    async def play(behind: MemoryCoordinator, other: MemoryCoordinator) -> None:
        await other.create("/members/one", b"", ephemeral=True)
        await behind.wait_children("/members", [])
        await other.close()
        assert await behind.children("/members") == ["one"]
        await behind.wait_children("/members", ["one"])
        assert await behind.children("/members") == []

    _play(play)
