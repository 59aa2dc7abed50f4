"""`waltz bundle` hides secrets and is written without a cluster too; `waltz selftest` measures, and names what does not answer."""

from __future__ import annotations

import asyncio
import json
import os
import re
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any  # messages of any method

import pytest

from waltz_log.cli.support import bundle, selftest
from waltz_log.coordination.survey import survey
from waltz_log.core.metadata import ASSIGNMENT, REPLICAS
from waltz_log.core.ports import Channel, Coordinator, Network
from waltz_log.core.topics.catalogue import CATALOGUE
from waltz_log.errors import ClusterUnavailable, InvalidSetting, Unavailable
from waltz_log.exit_codes import FAILED, OK
from waltz_log.testing import InMemoryCluster
from waltz_log.testing.network import MemoryHost
from waltz_log.transport import methods


def _contents(archive: Path) -> dict[str, str]:
    with tarfile.open(archive) as opened:
        files = {entry.name.removeprefix("waltz-bundle/"): opened.extractfile(entry) for entry in opened.getmembers()}
        return {name: file.read().decode() for name, file in files.items() if file is not None}


@pytest.fixture
async def cluster(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[InMemoryCluster]:
    async with InMemoryCluster(partitions=2, storages=3, servers=1) as made:
        await made.create_topic("shop/orders", 1)
        async with await made.client() as client:
            topic = await client.topic("shop/orders")
            await topic.append(b"a confidential payload")

        @asynccontextmanager
        async def connected(address: str, timeout_s: float) -> AsyncIterator[tuple[Coordinator, Network]]:
            yield made.ensemble.session(), made.network

        loop = asyncio.get_running_loop()

        async def of_cluster(address: str, problems: dict[str, str], timeout_s: float) -> dict[str, str]:
            """In the loop of the cluster, from the one of the command."""
            collected = bundle.collect(made.ensemble.session(), made.network, address, problems)
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(collected, loop))

        monkeypatch.setattr(bundle, "_of_cluster", of_cluster)
        monkeypatch.setattr(selftest, "connected", connected)
        yield made


async def test_a_bundle_has_the_state_and_no_payload_and_no_secret(cluster: InMemoryCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WALTZ_SERVER_API_TOKEN", "s3cr3t")
    (tmp_path / "server.yaml").write_text("coordinator: here:1/x\nauth: {password: s3cr3t}\n")
    (tmp_path / "server.log").write_text(
        'started token=s3cr3t {"client_secret": "s3cr3t"} http://ada:s3cr3t@here/\n-----BEGIN PRIVATE KEY-----\ns3cr3t\n'
    )
    to = tmp_path / "bundle.tar.gz"
    options: Any = {"configs": [tmp_path / "server.yaml", tmp_path / "none.yaml"], "logs": [tmp_path / "server.log"]}
    assert await asyncio.to_thread(bundle.run, "memory/test", to, **options, timeout_s=1.0) == OK
    found = _contents(to)
    assert "s3cr3t" not in "".join(found.values())
    assert "confidential" not in "".join(found.values())
    assert json.loads(found["status.json"])["ready"] is True
    assert "shop" in found["topics.json"]
    assert "here:1/x" in found["settings/0-server.yaml"]
    assert "started" in found["logs/0-server.log"]
    assert json.loads(found["versions.json"])["packages"]["waltz-platform"]
    assert list(json.loads(found["problems.json"])) == [str(tmp_path / "none.yaml")]
    assert to.stat().st_mode & 0o077 == 0, "only its user reads it"
    with pytest.raises(InvalidSetting, match="exists already"):
        await asyncio.to_thread(bundle.run, "memory/test", to, **options, timeout_s=1.0)


def test_a_bundle_is_written_although_no_cluster_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @asynccontextmanager
    async def connected(address: str, timeout_s: float) -> AsyncIterator[tuple[Coordinator, Network]]:
        raise ClusterUnavailable(address=address, reason="no coordinator answers")
        yield

    monkeypatch.setattr(bundle, "connected", connected)
    to = tmp_path / "bundle.tar.gz"
    assert bundle.run("here:1/x", to, configs=[], logs=[], timeout_s=1.0) == OK
    found = _contents(to)
    assert "status.json" not in found
    assert "no coordinator answers" in json.loads(found["problems.json"])["cluster"]


async def test_nodes_are_measured_and_one_that_is_down_is_named(cluster: InMemoryCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert await selftest.run("memory/test", tmp_path, output="table", timeout_s=1.0) == OK
    assert "a sync of 4 KiB takes" in capsys.readouterr().out
    with pytest.raises(InvalidSetting, match="--directory must be an existing directory"):
        await selftest.run("memory/test", tmp_path / "none", output="table", timeout_s=1.0)
    await cluster.kill_storage("storage-1")
    capsys.readouterr()
    assert await selftest.run("memory/test", tmp_path, output="json", timeout_s=1.0) == FAILED
    out = capsys.readouterr().out
    found = json.JSONDecoder().raw_decode(out[out.index('{\n  "disk"') :])[0]
    assert os.listdir(tmp_path) == [], "nothing is left behind"
    assert found["disk"]["sync_ms"] > 0
    nodes = {each["node"]: each for each in found["nodes"]}
    assert nodes["storage-1"]["error"] is not None
    assert abs(nodes["storage-0"]["clock_ms"]) < 60_000
    assert nodes["storage-0"]["round_trip_ms"] <= nodes["storage-0"]["slowest_ms"]


async def test_a_storage_node_that_is_slow_for_other_nodes_is_shown(
    cluster: InMemoryCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = await survey(cluster.ensemble.session(), cluster.network, "memory/test")
    (slow_address,) = [each.address for each in found.storages if each.name == "storage-1"]
    connect = MemoryHost.connect

    def slow_connect(host: MemoryHost, address: str) -> Channel:
        channel = connect(host, address)
        call = channel.call

        async def slow_call(method: Any, request: Any, *, timeout_s: float) -> Any:
            if address == slow_address and method is methods.PING:
                await asyncio.sleep(0.1)
            return await call(method, request, timeout_s=timeout_s)

        monkeypatch.setattr(channel, "call", slow_call)
        return channel

    monkeypatch.setattr(MemoryHost, "connect", slow_connect)
    assert await selftest.run("memory/test", tmp_path, output="json", timeout_s=1.0) == OK
    out = capsys.readouterr().out
    trips = json.JSONDecoder().raw_decode(out[out.index('{\n  "disk"') :])[0]["round_trips"]
    names = [f"storage-{number}" for number in range(3)]
    between = [(source, target) for source in ("server 1", *names) for target in names if source != target]
    assert [(each["source"], each["target"]) for each in trips] == between
    for each in trips:
        assert (each["round_trip_ms"] >= 100) == (each["target"] == "storage-1"), each
    await cluster.kill_storage("storage-2")
    assert await selftest.run("memory/test", tmp_path, output="table", timeout_s=1.0) == FAILED
    out = capsys.readouterr().out
    for source in ("server 1", "storage-0", "storage-1"):
        assert re.search(rf"{source} +storage-2 +no answer", out)
    assert not re.search(r"storage-2 +storage-\d ", out), "a node that does not answer measures nothing"


async def test_a_connection_that_is_cut_between_two_storage_nodes_alone_is_found(
    cluster: InMemoryCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = await survey(cluster.ensemble.session(), cluster.network, "memory/test")
    names = {each.address: each.name for each in found.storages}
    connect = MemoryHost.connect

    def cut_connect(host: MemoryHost, address: str) -> Channel:
        channel = connect(host, address)

        async def refuse(*_: Any, **__: Any) -> Any:
            raise Unavailable(reason="connection refused")

        if {host.name, names.get(address)} == {"storage-0", "storage-2"}:
            monkeypatch.setattr(channel, "call", refuse)
        return channel

    monkeypatch.setattr(MemoryHost, "connect", cut_connect)
    assert await selftest.run("memory/test", tmp_path, output="table", timeout_s=1.0) == FAILED
    out = capsys.readouterr().out
    assert re.findall(r"(\S+) +(\S+) +no answer", out) == [("storage-0", "storage-2"), ("storage-2", "storage-0")]


async def test_a_clock_that_is_off_is_a_finding(cluster: InMemoryCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = cluster.clock.now_ms
    monkeypatch.setattr(cluster.clock, "now_ms", lambda: real() + 5_000)
    assert await selftest.run("memory/test", tmp_path, output="table", timeout_s=1.0) == FAILED


@pytest.mark.parametrize("garbage", [b"", b"{}", b"null", b"[" * 9999])
async def test_a_bundle_has_what_can_be_read_beside_values_that_cannot(cluster: InMemoryCluster, garbage: bytes) -> None:
    session, problems = cluster.ensemble.session(), dict[str, str]()
    for path in (CATALOGUE, ASSIGNMENT):
        await session.set(path, garbage, -1)
    files = await bundle.collect(session, cluster.network, "memory/test", problems)
    assert "topics.json" in problems
    assert json.loads(files["coordinator.json"])[REPLICAS]["0"] == ["storage-0", "storage-1", "storage-2"]
    assert json.loads(files["subscribers.json"]) == []
