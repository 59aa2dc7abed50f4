"""`waltz cluster status` over a cluster in memory: every replica by its own word, and exit code 3 exactly where appends cannot be committed."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from rich.console import Console

from waltz_log.cli.cluster import cluster as command
from waltz_log.coordination.survey import Survey, survey
from waltz_log.core import metadata as paths
from waltz_log.core.metadata import ReplicaAssignment
from waltz_log.errors import NotAppended
from waltz_log.exit_codes import OK, UNAVAILABLE
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.testing.virtual_time import run_in_virtual_time


async def _survey(cluster: MemoryCluster) -> Survey:
    return await survey(cluster.ensemble.session(), cluster.network, "memory/test")


async def _until(cluster: MemoryCluster, holds: Callable[[dict[str, str]], bool]) -> Survey:
    """The survey in which the states of partition 0, by the names of its replicas, are as wanted."""
    found: dict[str, str] = {}
    async with asyncio.timeout(60):
        while True:
            survey = await _survey(cluster)
            found = {each.name: each.status for each in survey.partitions[0].replicas}
            if holds(found):
                return survey
            await asyncio.sleep(0.05)


def _table(found: Survey) -> str:
    reported = io.StringIO()
    command.show(found, Console(file=reported, width=250))
    return reported.getvalue()


def _run(scenario: Callable[[MemoryCluster], Coroutine[Any, Any, None]], **arguments: Any) -> None:
    async def whole() -> None:
        cluster = MemoryCluster(servers=1, **arguments)
        await cluster.start()
        await _until(cluster, lambda states: set(states.values()) == {"live"})
        await scenario(cluster)
        await cluster.stop()

    run_in_virtual_time(whole())


def test_a_stopped_replica_is_unreachable_and_two_of_them_leave_no_majority() -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        await cluster.kill_storage("storage-1")
        found = await _until(cluster, lambda states: states["storage-1"] == "unreachable")
        assert found.ready
        assert "storage-0 live, storage-1 unreachable, storage-2 live" in _table(found)
        await cluster.kill_storage("storage-2")
        found = await _until(cluster, lambda states: states["storage-2"] == "unreachable")
        assert found.partitions[0].high_water_mark is not None, "an owner serves it all the same"
        assert not found.ready
        assert "partitions without a majority that can take appends: 0 (storage-1 unreachable, storage-2 unreachable)" in found.missing
        await cluster.start_storage("storage-1")
        assert (await _until(cluster, lambda states: states["storage-1"] == "live")).ready

    _run(scenario)


def test_a_replica_whose_stored_data_is_damaged_is_corrupt() -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        client = await cluster.connect()
        for _ in range(20):
            await client.append(0, bytes(100))
        await client.close()
        await cluster.stop_storage("storage-1")
        disk = cluster.disks["storage-1"]
        segment = next(f"0/{name}" for name in disk.list("0") if name.endswith(".seg"))
        content = bytearray(disk.content(segment))
        content[200] ^= 1
        disk.replace(segment, bytes(content))
        await cluster.stop_server("server-0")
        await cluster.start_storage("storage-1")
        found = await _until(cluster, lambda states: states["storage-1"] == "corrupt")  # without an owner too: the node says it
        assert not found.ready
        await cluster.start_server("server-0")
        found = await _until(cluster, lambda states: [states[f"storage-{n}"] for n in range(3)] == ["live", "corrupt", "live"])
        assert found.ready
        reported = _table(found)
        assert "storage-1 corrupt" in reported
        assert "corrupt data" in reported, "and why"

    _run(scenario)


def test_a_replica_of_a_node_that_was_never_started_and_replicas_without_an_owner_have_their_words() -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        more = ReplicaAssignment({0: ("storage-0", "storage-1", "storage-2", "nobody")})
        await cluster.ensemble.session().set(paths.REPLICAS, more.to_bytes(), -1)
        await _until(cluster, lambda states: states.get("nobody") == "never started")
        await cluster.stop_server("server-0")
        found = await _until(cluster, lambda states: states["storage-0"] == "waiting")
        assert not found.ready
        assert found.missing.startswith("partitions without an owner: 0 (assigned to ")

    _run(scenario)


def test_full_replicas_leave_no_majority_that_can_accept_appends() -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        client = await cluster.connect()
        await client.append(0, b"first")
        for name in ("storage-0", "storage-2"):
            disk = cluster.disks[name]
            disk.total -= disk.free_bytes() - 1000
        probe = await client.append_nowait(0, b"finds out")
        found = await _until(cluster, lambda states: list(states.values()).count("full") == 2)
        assert not found.ready
        with pytest.raises(NotAppended):
            await client.append(0, b"refused")
        for name in ("storage-0", "storage-2"):
            cluster.disks[name].total = 1 << 40
        await probe
        assert (await _until(cluster, lambda states: set(states.values()) == {"live"})).ready
        await client.close()

    _run(scenario)


def test_the_exit_code_is_3_without_a_majority_and_wait_waits_for_exactly_that(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One node of three may be down, whether one waits or not; `--complete` asks for all of them."""

    async def scenario(cluster: MemoryCluster) -> None:
        class Session:
            @staticmethod
            async def connect(address: str, *, timeout_s: float) -> Any:
                return cluster.ensemble.session()

        monkeypatch.setattr(command, "ZooKeeperCoordinator", Session)
        monkeypatch.setattr(command, "GrpcNetwork", lambda: cluster.network)
        monkeypatch.setattr(command, "monotonic", asyncio.get_running_loop().time)

        async def status(*, wait_s: float = 0.0, complete: bool = False) -> int:
            return await command.status("memory/test", output="json", wait_s=wait_s, complete=complete, timeout_s=1)

        assert (await status(), await status(complete=True)) == (OK, OK)
        await cluster.kill_storage("storage-0")
        await _until(cluster, lambda states: states["storage-0"] == "unreachable")
        assert (await status(), await status(wait_s=5), await status(wait_s=5, complete=True)) == (OK, OK, UNAVAILABLE)
        await cluster.kill_storage("storage-1")
        await _until(cluster, lambda states: states["storage-1"] == "unreachable")
        capsys.readouterr()
        assert await status() == UNAVAILABLE
        found = json.loads(capsys.readouterr().out)
        assert [each["status"] for each in found["partitions"][0]["replicas"]] == ["unreachable", "unreachable", "live"]
        assert (found["partitions"][0]["accepts_appends"], found["ready"]) == (False, False)
        assert await status(wait_s=5) == UNAVAILABLE
        waiting = asyncio.ensure_future(status(wait_s=30))
        await asyncio.sleep(1)
        await cluster.start_storage("storage-1")
        assert await waiting == OK

    _run(scenario)
