"""`waltz drain`, `waltz rebalance`, `waltz owner` and changes of many replicas, on a whole cluster in virtual time, with appends going on.

A command is killed by cancelling it: nothing of it runs afterwards, as after SIGKILL.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from waltz_log.cli.cluster import drain as drain_command
from waltz_log.cli.cluster import owner as owner_command
from waltz_log.cli.cluster import replicas as replicas_command
from waltz_log.cli.cluster.replica_moves import read_replicas
from waltz_log.cli.storage import storage_forget
from waltz_log.client import WaltzClient
from waltz_log.coordination.placement import read_moves
from waltz_log.coordination.survey import Survey, survey
from waltz_log.core.metadata import ASSIGNMENT, Assignment
from waltz_log.core.ports import Coordinator, Network
from waltz_log.errors import InvalidRequest, Unavailable, WaltzError
from waltz_log.exit_codes import OK, UNAVAILABLE
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.testing.virtual_time import run_in_virtual_time

ADDRESS = "memory/test"
PARTITIONS = 6
MOVING: dict[str, Any] = {"at_once": 2, "dry_run": False, "output": "json", "wait_s": 60.0, "timeout_s": 1.0}


@pytest.fixture
def under_load(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[MemoryCluster], Awaitable[None]]], None]:
    """Runs a scenario while a client appends to every partition; no acknowledged transaction may be missing in the end."""

    def run(scenario: Callable[[MemoryCluster], Awaitable[None]]) -> None:
        async def within() -> None:
            cluster = MemoryCluster(partitions=PARTITIONS, delay_s=lambda: 0.001)
            await cluster.start()
            await cluster.start_storage("storage-3")

            @asynccontextmanager
            async def connected(address: str, timeout_s: float) -> AsyncIterator[tuple[Coordinator, Network]]:
                session = cluster.ensemble.session()
                try:
                    yield session, cluster.network
                finally:
                    await session.close()

            for module in (drain_command, owner_command, replicas_command, storage_forget):
                monkeypatch.setattr(module, "connected", connected)
            client, done = await cluster.connect(), asyncio.Event()
            appended: list[list[tuple[int, bytes]]] = [[] for _ in range(PARTITIONS)]
            appending = [asyncio.ensure_future(_append_on(client, partition, done, found)) for partition, found in enumerate(appended)]
            await _until(lambda: _served(cluster))
            await scenario(cluster)
            await _until(lambda: _enough(appended))
            done.set()
            await asyncio.gather(*appending)
            for partition, found in enumerate(appended):
                assert found == await _read(client, partition)
            await client.close()
            await cluster.stop()

        run_in_virtual_time(within())

    return run


async def _append_on(client: WaltzClient, partition: int, done: asyncio.Event, found: list[tuple[int, bytes]]) -> None:
    while not done.is_set():
        data = b"%d" % len(found)
        found.append(((await client.append(partition, data)).transaction_id, data))
        await asyncio.sleep(0.02)


async def _enough(appended: list[list[tuple[int, bytes]]]) -> bool:
    return all(len(found) > 2 for found in appended)


async def _read(client: WaltzClient, partition: int) -> list[tuple[int, bytes]]:
    mark, found = await client.high_water_mark(partition), []
    async for each in client.feed(partition):
        found.append((each.transaction_id, each.data))
        if each.transaction_id >= mark:
            break
    return found


async def _until(condition: Callable[[], Awaitable[bool]], timeout_s: float = 60.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not await condition():
            await asyncio.sleep(0.05)


async def _served(cluster: MemoryCluster) -> bool:
    return (await survey(cluster.ensemble.session(), cluster.network, ADDRESS)).ready


async def _owners(cluster: MemoryCluster) -> dict[int, str | None]:
    node = await cluster.ensemble.session().get(ASSIGNMENT)
    assert node is not None
    assignment = Assignment.from_bytes(node.data)
    return {partition: assignment.address_of(partition) for partition in range(PARTITIONS)}


async def _held(cluster: MemoryCluster, name: str) -> list[int]:
    return [partition for partition, names in (await read_replicas(cluster.ensemble.session())).items() if name in names]


@contextmanager
def _printed(capsys: pytest.CaptureFixture[str]) -> Iterator[dict[str, Any]]:
    """The JSON that a command printed last, among the log lines of the nodes."""
    capsys.readouterr()
    found: dict[str, Any] = {}
    yield found
    out = capsys.readouterr().out
    start = out.index("{\n")
    found |= json.JSONDecoder().raw_decode(out[start:])[0]


Run = Callable[[Callable[[MemoryCluster], Awaitable[None]]], None]


def test_a_storage_node_is_drained_although_the_command_is_killed_halfway(under_load: Run, capsys: pytest.CaptureFixture[str]) -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        with _printed(capsys) as planned:
            assert await drain_command.drain(ADDRESS, "storage-0", **(MOVING | {"dry_run": True})) == OK
        assert [each["partition"] for each in planned["moves"]] == list(range(PARTITIONS))
        assert {each["to"] for each in planned["moves"]} == {"storage-3"}
        assert await _held(cluster, "storage-0") == list(range(PARTITIONS)), "a dry run changes nothing"
        draining = asyncio.ensure_future(drain_command.drain(ADDRESS, "storage-0", **MOVING))

        async def halfway() -> bool:
            return 0 < len(await _held(cluster, "storage-0")) < PARTITIONS - 1

        await _until(halfway)
        draining.cancel()
        await asyncio.gather(draining, return_exceptions=True)
        assert await read_moves(cluster.ensemble.session()), "a move is under way"
        with _printed(capsys) as result:
            assert await drain_command.drain(ADDRESS, "storage-0", **MOVING) == OK
        assert (result["drained"], result["left"]) == (True, [])
        assert await _held(cluster, "storage-0") == []
        assert await _held(cluster, "storage-3") == list(range(PARTITIONS))
        assert {len(names) for names in (await read_replicas(cluster.ensemble.session())).values()} == {3}
        assert await read_moves(cluster.ensemble.session()) == {}
        await cluster.kill_storage("storage-0")
        with _printed(capsys) as again:
            assert await drain_command.drain(ADDRESS, "storage-0", **MOVING) == OK
        assert again["moves"] == []

    under_load(scenario)


def test_a_drained_node_that_is_gone_makes_no_cluster_incomplete_and_can_be_forgotten(under_load: Run, capsys: pytest.CaptureFixture[str]) -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        forgetting: dict[str, Any] = {"dry_run": False, "output": "json", "timeout_s": 1.0}
        with pytest.raises(InvalidRequest, match="storage-0 answers at"):
            await storage_forget.forget(ADDRESS, "storage-0", **forgetting)
        with pytest.raises(InvalidRequest, match="no storage node is named storage-9; there are storage-0, "):
            await storage_forget.forget(ADDRESS, "storage-9", **forgetting)
        assert await drain_command.drain(ADDRESS, "storage-0", **MOVING) == OK
        await cluster.kill_storage("storage-0")
        await cluster.kill_storage("storage-1")
        with pytest.raises(InvalidRequest, match="storage-1 still has replicas of 6 partitions, such as 0: run `waltz drain` first"):
            await storage_forget.forget(ADDRESS, "storage-1", **forgetting)
        found = await _surveyed(cluster)
        assert not found.complete
        assert "storage nodes that do not answer: storage-1" in found.missing
        await cluster.start_storage("storage-1")
        await _until(lambda: _complete(cluster))
        assert "storage-0" in {each.name for each in (await _surveyed(cluster)).storages}
        with _printed(capsys) as planned:
            assert await storage_forget.forget(ADDRESS, "storage-0", **(forgetting | {"dry_run": True})) == OK
        assert planned == {"node": "storage-0", "dry_run": True, "forgotten": False}
        with _printed(capsys) as done:
            assert await storage_forget.forget(ADDRESS, "storage-0", **forgetting) == OK
        assert done["forgotten"]
        found = await _surveyed(cluster)
        assert "storage-0" not in {each.name for each in found.storages}
        assert found.drained == ()
        assert found.complete

    under_load(scenario)


async def _surveyed(cluster: MemoryCluster) -> Survey:
    return await survey(cluster.ensemble.session(), cluster.network, ADDRESS)


async def _complete(cluster: MemoryCluster) -> bool:
    return (await _surveyed(cluster)).complete


def test_a_move_to_a_node_that_is_gone_is_cancelled_and_planned_again(under_load: Run, capsys: pytest.CaptureFixture[str]) -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        await cluster.start_storage("storage-4")
        draining = asyncio.ensure_future(drain_command.drain(ADDRESS, "storage-0", **(MOVING | {"at_once": 1})))

        async def begun() -> bool:
            moves = await read_moves(cluster.ensemble.session())
            return any(move.add == "storage-4" for move in moves.values())

        await _until(begun)
        draining.cancel()
        await asyncio.gather(draining, return_exceptions=True)
        await cluster.kill_storage("storage-4")
        moved = await _held(cluster, "storage-4")
        await _until(lambda: _served(cluster))
        await drain_command.drain(ADDRESS, "storage-0", **MOVING)
        assert await _held(cluster, "storage-0") == []
        assert set(await _held(cluster, "storage-3")) >= set(range(PARTITIONS)) - set(moved)

    under_load(scenario)


def test_a_storage_node_stays_where_no_other_one_can_hold_its_replicas(under_load: Run, capsys: pytest.CaptureFixture[str]) -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        await cluster.kill_storage("storage-3")
        await asyncio.sleep(1.0)
        with pytest.raises(Unavailable, match="no other storage node can hold partitions 0-5: start one more"):
            await drain_command.drain(ADDRESS, "storage-0", **MOVING)
        assert await _held(cluster, "storage-0") == list(range(PARTITIONS))

    under_load(scenario)


def test_a_server_is_drained_stays_empty_after_a_restart_and_is_readmitted(under_load: Run, capsys: pytest.CaptureFixture[str]) -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        addresses = sorted({str(each) for each in (await _owners(cluster)).values()})
        assert len(addresses) == 2
        drained, other = addresses
        with _printed(capsys) as planned:
            assert await drain_command.drain(ADDRESS, drained, **(MOVING | {"dry_run": True})) == OK
        assert len(planned["moves"]) == PARTITIONS // 2
        assert drained in (await _owners(cluster)).values(), "a dry run changes nothing"
        draining = asyncio.ensure_future(drain_command.drain(ADDRESS, drained, **MOVING))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        draining.cancel()
        await asyncio.gather(draining, return_exceptions=True)
        assert await drain_command.drain(ADDRESS, drained, **MOVING) == OK
        assert set((await _owners(cluster)).values()) == {other}
        name = drained.partition(":")[0]
        await cluster.stop_server(name)
        await cluster.start_server(name, listen=drained)
        await asyncio.sleep(1.0)
        assert set((await _owners(cluster)).values()) == {other}
        with pytest.raises(InvalidRequest, match="is the last log server that is not drained: start another one first"):
            await drain_command.drain(ADDRESS, other, **MOVING)
        found = await survey(cluster.ensemble.session(), cluster.network, ADDRESS)
        assert found.drained == (drained,)
        assert await drain_command.undo(ADDRESS, drained, dry_run=False, output="table", timeout_s=1.0) == OK
        await _until(lambda: _served(cluster))
        owners = list((await _owners(cluster)).values())
        assert {owners.count(each) for each in addresses} == {PARTITIONS // 2}

    under_load(scenario)


def test_owners_are_moved_in_a_plan_that_is_shown_first_and_released_again(under_load: Run, capsys: pytest.CaptureFixture[str]) -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        before = await _owners(cluster)
        there = next(str(each) for each in before.values() if each != before[0])
        changing: dict[str, Any] = {"output": "json", "timeout_s": 1.0}
        with _printed(capsys) as planned:
            await owner_command.move(ADDRESS, "0", there, dry_run=True, **changing)
        assert await _owners(cluster) == before
        with _printed(capsys) as done:
            await owner_command.move(ADDRESS, "0", there, dry_run=False, **changing)
        assert done["moves"] == planned["moves"]
        assert done["moved"] == {"0": there}
        await _until(lambda: _served(cluster))
        after = await _owners(cluster)
        assert after[0] == there
        assert sorted(each["partition"] for each in done["moves"]) == [each for each in before if before[each] != after[each]]
        name = there.partition(":")[0]
        await cluster.stop_server(name)
        await cluster.start_server(name, listen=there)

        async def returned() -> bool:
            return (await _owners(cluster))[0] == there

        await _until(returned)
        await owner_command.release(ADDRESS, "all", dry_run=False, **changing)
        await _until(lambda: _served(cluster))
        with pytest.raises(InvalidRequest, match="no such partition: 17, the log has 6"):
            await owner_command.move(ADDRESS, "0,17", there, dry_run=False, **changing)
        with pytest.raises(InvalidRequest, match="no log server server-9:0 is running"):
            await owner_command.move(ADDRESS, "0", "server-9:0", dry_run=False, **changing)

    under_load(scenario)


def test_replicas_are_spread_evenly_over_nodes_that_are_not_drained(under_load: Run, capsys: pytest.CaptureFixture[str]) -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        await cluster.start_storage("storage-4")
        assert await drain_command.drain(ADDRESS, "storage-4", **MOVING) == OK
        balancing = asyncio.ensure_future(drain_command.rebalance(ADDRESS, **MOVING))

        async def begun() -> bool:
            return bool(await read_moves(cluster.ensemble.session()))

        await _until(begun)
        balancing.cancel()
        await asyncio.gather(balancing, return_exceptions=True)
        assert await drain_command.rebalance(ADDRESS, **MOVING) == OK
        counts = [len(await _held(cluster, f"storage-{number}")) for number in range(5)]
        assert counts[4] == 0
        assert max(counts[:4]) - min(counts[:4]) <= 1
        with _printed(capsys) as again:
            assert await drain_command.rebalance(ADDRESS, **MOVING) == OK
        assert again["moves"] == []

    under_load(scenario)


def test_replicas_of_many_partitions_change_at_once_and_one_failure_stops_no_other(under_load: Run, capsys: pytest.CaptureFixture[str]) -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        options: dict[str, Any] = {"output": "table", "force": False, "at_once": 4, "wait_s": 60.0, "timeout_s": 1.0}
        assert await replicas_command.run(ADDRESS, "0-2,4", add="storage-3", remove=None, **options) == OK
        assert await _held(cluster, "storage-3") == [0, 1, 2, 4]
        with pytest.raises(WaltzError, match="storage-3 is not a replica of partition 3"):
            await replicas_command.run(ADDRESS, "2-4", add=None, remove="storage-3", **options)
        assert await _held(cluster, "storage-3") == [0, 1]
        assert await replicas_command.run(ADDRESS, "all", add=None, remove="storage-3", **options) == OK
        assert await _held(cluster, "storage-3") == []
        assert "2 of 2 partitions done" in capsys.readouterr().out
        with _printed(capsys) as changed:
            assert await replicas_command.run(ADDRESS, "0-1", add="storage-3", remove=None, **(options | {"output": "json"})) == OK
        assert changed == {"added": "storage-3", "removed": None, "done": [0, 1], "failed": {}}
        assert await replicas_command.run(ADDRESS, "0-1", add=None, remove="storage-3", **options) == OK
        with _printed(capsys) as found:
            assert await replicas_command.listing(ADDRESS, output="json", every_s=None, timeout_s=1.0) == OK
        assert found["nodes"] == {"storage-0": 6, "storage-1": 6, "storage-2": 6, "storage-3": 0}
        assert found["partitions"][5]["replicas"] == {"storage-0": "live", "storage-1": "live", "storage-2": "live"}

    under_load(scenario)


def test_an_unknown_node_is_refused_with_the_most_similar_name(under_load: Run) -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        for wrong, message in (
            ("storage-7", "named storage-7, did you mean storage-"),
            ("nowhere", "is named nowhere; there are 1, 2, server-0"),
        ):
            with pytest.raises(InvalidRequest, match=message):
                await drain_command.drain(ADDRESS, wrong, **MOVING)

    under_load(scenario)


def test_the_exit_code_says_that_partitions_are_left(capsys: pytest.CaptureFixture[str]) -> None:
    assert drain_command._ended({}) == OK
    assert drain_command._ended({3: Unavailable(reason="no majority\x1b[2J")}) == UNAVAILABLE
    assert capsys.readouterr().err == "waltz: 1 partitions are not moved yet, repeat the command: unavailable: no majority\\x1b[2J\n"
