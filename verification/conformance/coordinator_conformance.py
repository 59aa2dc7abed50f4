"""What every coordinator must do: one suite for the fake and for ZooKeeper. A test class inherits it and provides the fixture `ensemble`. pytest
collects the tests there; nothing here imports pytest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from waltz_log.core.metadata import NODE_BYTES_MAX
from waltz_log.core.ports import Coordinator, Node
from waltz_log.errors import ClusterUnavailable, InvalidRequest

__all__ = ["CoordinatorConformance", "EnsembleUnderTest"]

TIMEOUT_S = 20.0
"""The limit for a wait that must end, also on a busy machine."""


class EnsembleUnderTest(Protocol):
    async def session(self) -> Coordinator: ...
    async def expire(self, session: Coordinator) -> None:
        """The session expires, as after silence. It is not closed."""
        ...


async def _still_waits(task: asyncio.Task[None]) -> bool:
    """A wait that must not return. Observed for a short time only."""
    done, _ = await asyncio.wait({task}, timeout=0.1)
    return not done


class CoordinatorConformance:
    async def test_a_node_is_read_as_it_was_created(self, ensemble: EnsembleUnderTest) -> None:
        mine, other = await ensemble.session(), await ensemble.session()
        assert await mine.get("/a/b/c") is None
        assert await mine.create("/a/b/c", b"one")
        assert await other.get("/a/b/c") == Node(b"one", 0)
        assert await mine.get("/a/b") == Node(b"", 0), "parents are made"

    async def test_create_refuses_what_exists(self, ensemble: EnsembleUnderTest) -> None:
        mine, other = await ensemble.session(), await ensemble.session()
        assert await mine.create("/once", b"mine")
        assert not await other.create("/once", b"other")
        assert not await other.create("/once", b"other", ephemeral=True)
        assert await mine.get("/once") == Node(b"mine", 0)

    async def test_more_than_a_node_holds_is_refused_and_as_much_is_kept(self, ensemble: EnsembleUnderTest) -> None:
        mine = await ensemble.session()
        most, more = bytes(NODE_BYTES_MAX), bytes(NODE_BYTES_MAX + 1)
        assert await mine.create("/full", most)
        assert await mine.set("/full", most, 0) == 1
        attempts: list[Awaitable[object]] = [mine.create("/more", more), mine.set("/full", more, 1)]
        reported = [str(each) for each in await asyncio.gather(*attempts, return_exceptions=True) if isinstance(each, InvalidRequest)]
        assert len(reported) == 2
        assert all(str(NODE_BYTES_MAX) in each for each in reported)
        assert await mine.get("/full") == Node(most, 1)
        assert await mine.get("/more") is None

    async def test_set_compares_versions(self, ensemble: EnsembleUnderTest) -> None:
        mine, other = await ensemble.session(), await ensemble.session()
        assert await mine.set("/n", b"x", 0) is None, "does not exist"
        await mine.create("/n", b"0")
        assert await mine.set("/n", b"1", 0) == 1
        assert await other.set("/n", b"lost", 0) is None
        assert await other.set("/n", b"2", 1) == 2
        assert await other.set("/n", b"3", -1) == 3
        assert await mine.get("/n") == Node(b"3", 3)

    async def test_of_many_writers_one_wins_each_version(self, ensemble: EnsembleUnderTest) -> None:
        sessions = [await ensemble.session() for _ in range(3)]
        await sessions[0].create("/count", b"0")

        async def add(session: Coordinator) -> None:
            for _ in range(5):
                while True:
                    node = await session.get("/count")
                    assert node is not None
                    if await session.set("/count", str(int(node.data) + 1).encode(), node.version) is not None:
                        break

        await asyncio.gather(*(add(session) for session in sessions))
        assert await sessions[0].get("/count") == Node(b"15", 15)

    async def test_a_latest_read_gives_what_other_sessions_wrote(self, ensemble: EnsembleUnderTest) -> None:
        mine, other = await ensemble.session(), await ensemble.session()
        assert await mine.get("/now/x", latest=True) is None
        assert await mine.children("/now", latest=True) == []
        for number in range(5):
            if number:
                assert await other.set("/now/x", b"%d" % number, number - 1) == number
            else:
                assert await other.create("/now/x", b"0")
            assert await mine.get("/now/x", latest=True) == Node(b"%d" % number, number)
        assert await mine.children("/now", latest=True) == ["x"]
        assert await mine.get("/now/x") == Node(b"4", 4), "a session never goes back"

    async def test_changes_of_all_nodes_are_numbered_in_one_order(self, ensemble: EnsembleUnderTest) -> None:
        mine = await ensemble.session()
        numbers = []
        await mine.create("/numbered/a", b"")
        await mine.create("/numbered/b", b"")
        for path in ("/numbered/a", "/numbered/b"):
            node = await mine.get(path)
            numbers.append(0 if node is None else node.changed)
        for path, version in (("/numbered/b", 0), ("/numbered/a", 0), ("/numbered/b", 1)):
            await mine.set(path, b"", version)
            node = await mine.get(path)
            numbers.append(0 if node is None else node.changed)
        await mine.delete("/numbered/a")
        await mine.create("/numbered/a", b"")
        node = await mine.get("/numbered/a")
        numbers.append(0 if node is None else node.changed)
        assert numbers == sorted(set(numbers))
        assert numbers[0] > 0

    async def test_a_refused_write_brings_a_session_up_to_date(self, ensemble: EnsembleUnderTest) -> None:
        mine, other = await ensemble.session(), await ensemble.session()
        await other.create("/written", b"0")
        await other.set("/written", b"1", 0)
        assert await mine.set("/written", b"mine", 0) is None
        assert await mine.get("/written") == Node(b"1", 1)
        await other.set("/written", b"2", 1)
        assert not await mine.create("/written", b"mine")
        assert await mine.get("/written") == Node(b"2", 2)

    async def test_delete_compares_versions_and_spares_parents(self, ensemble: EnsembleUnderTest) -> None:
        mine = await ensemble.session()
        await mine.create("/d/child", b"")
        assert not await mine.delete("/d"), "has a child"
        assert not await mine.delete("/d/child", 7)
        assert await mine.delete("/d/child", 0)
        assert not await mine.delete("/d/child")
        assert await mine.delete("/d")
        assert await mine.get("/d") is None

    async def test_children_are_names_in_order(self, ensemble: EnsembleUnderTest) -> None:
        mine = await ensemble.session()
        assert await mine.children("/list") == []
        for name in ("b", "a", "c"):
            await mine.create(f"/list/{name}/deeper", b"")
        assert await mine.children("/list") == ["a", "b", "c"]
        assert "list" in await mine.children("/")

    async def test_ephemeral_nodes_vanish_when_their_session_closes(self, ensemble: EnsembleUnderTest) -> None:
        mine, other = await ensemble.session(), await ensemble.session()
        await mine.create("/members/mine", b"", ephemeral=True)
        await other.create("/members/other", b"", ephemeral=True)
        assert await other.children("/members") == ["mine", "other"]
        await mine.close()
        assert await other.children("/members") == ["other"]

    async def test_an_ephemeral_node_has_no_children(self, ensemble: EnsembleUnderTest) -> None:
        mine = await ensemble.session()
        await mine.create("/leaf", b"", ephemeral=True)
        try:
            await mine.create("/leaf/child", b"")
        except InvalidRequest:
            return
        raise AssertionError("a child of an ephemeral node was accepted")

    async def test_an_expired_session_loses_its_members_and_notices(self, ensemble: EnsembleUnderTest) -> None:
        mine, other = await ensemble.session(), await ensemble.session()
        await mine.create("/members/mine", b"", ephemeral=True)
        await mine.create("/kept", b"")
        lost = asyncio.create_task(mine.wait_session_lost())
        waiting = asyncio.create_task(mine.wait_changed("/kept", 0))
        members = asyncio.create_task(mine.wait_children("/members", ["mine"]))
        assert await _still_waits(lost)
        await ensemble.expire(mine)
        async with asyncio.timeout(TIMEOUT_S):
            await lost
            await other.wait_children("/members", ["mine"])
        assert await other.children("/members") == []
        assert await other.get("/kept") == Node(b"", 0)
        async with asyncio.timeout(TIMEOUT_S):
            reported = await asyncio.gather(waiting, mine.get("/kept"), mine.create("/again", b"", ephemeral=True), return_exceptions=True)
            await asyncio.gather(members, return_exceptions=True)
        assert [type(each) for each in reported] == [ClusterUnavailable] * 3, "a coordinator is used up when its session ended"
        assert await other.get("/again") is None

    async def test_a_closed_session_answers_no_more(self, ensemble: EnsembleUnderTest) -> None:
        mine = await ensemble.session()
        await mine.close()
        async with asyncio.timeout(TIMEOUT_S):
            await mine.wait_session_lost()
            reported = await asyncio.gather(mine.get("/"), mine.wait_changed("/", None), return_exceptions=True)
        assert [type(each) for each in reported] == [ClusterUnavailable] * 2
        await mine.close()

    async def test_wait_changed_sees_creation_change_and_deletion(self, ensemble: EnsembleUnderTest) -> None:
        mine, other = await ensemble.session(), await ensemble.session()

        async def create() -> bool:
            return await other.create("/w", b"")

        async def change() -> bool:
            return await other.set("/w", b"x", 0) == 1

        async def delete() -> bool:
            return await other.delete("/w")

        steps: list[tuple[int | None, Callable[[], Awaitable[bool]]]] = [(None, create), (0, change), (1, delete)]
        for known, step in steps:
            waiting = asyncio.create_task(mine.wait_changed("/w", known))
            assert await _still_waits(waiting)
            assert await step()
            async with asyncio.timeout(TIMEOUT_S):
                await waiting

    async def test_wait_changed_misses_no_change_between_two_waits(self, ensemble: EnsembleUnderTest) -> None:
        mine, other = await ensemble.session(), await ensemble.session()
        await mine.create("/w", b"")
        await other.set("/w", b"1", 0)
        async with asyncio.timeout(TIMEOUT_S):
            await mine.wait_changed("/w", 0)
            await mine.wait_changed("/w", None)
        waiting = asyncio.create_task(mine.wait_changed("/w", 1))
        assert await _still_waits(waiting)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        again = [asyncio.create_task(mine.wait_changed("/w", 1)) for _ in range(2)]
        assert await _still_waits(again[0])
        await other.set("/w", b"2", 1)
        async with asyncio.timeout(TIMEOUT_S):
            await asyncio.gather(*again)

    async def test_wait_children_sees_members_come_and_go(self, ensemble: EnsembleUnderTest) -> None:
        mine, other = await ensemble.session(), await ensemble.session()
        waiting = asyncio.create_task(mine.wait_children("/group", []))
        assert await _still_waits(waiting)
        await other.create("/group/one", b"", ephemeral=True)
        async with asyncio.timeout(TIMEOUT_S):
            await waiting
        waiting = asyncio.create_task(mine.wait_children("/group", ["one"]))
        await other.set("/group/one", b"data is no matter", -1)
        assert await _still_waits(waiting)
        await other.close()
        async with asyncio.timeout(TIMEOUT_S):
            await waiting
            await mine.wait_children("/group", ["one"])
        waiting = asyncio.create_task(mine.wait_children("/group", []))
        assert await _still_waits(waiting), "an empty group and a missing one are the same"
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

    async def test_what_is_no_path_is_refused(self, ensemble: EnsembleUnderTest) -> None:
        mine = await ensemble.session()
        for path in ("", "a", "/a/", "/a//b"):
            try:
                await mine.get(path)
            except InvalidRequest:
                continue
            raise AssertionError(f"{path!r} was accepted")
