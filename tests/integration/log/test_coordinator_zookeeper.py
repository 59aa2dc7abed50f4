"""The coordinator over a real ZooKeeper: the same conformance suite as the fake, then outages, restarts and bad addresses."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from tests.integration.free_ports import free_port
from verification.conformance.coordinator_conformance import CoordinatorConformance
from waltz_log.coordination import embedded
from waltz_log.coordination.coordinator import ZooKeeperCoordinator
from waltz_log.core.metadata import CLUSTER
from waltz_log.core.ports import Coordinator
from waltz_log.errors import ClusterUnavailable, InvalidSetting

_numbers = itertools.count()


class _Server:
    def __init__(self, directory: Path, longest_session_s: float = 10) -> None:
        self.directory, self.port = directory, free_port()
        self.hosts = f"127.0.0.1:{self.port}"
        self._longest_session_s = longest_session_s

    def start(self) -> None:
        command = embedded.prepare(self.directory, self.port)
        with (self.directory / "zoo.cfg").open("a") as config:
            config.write(f"maxSessionTimeout={int(self._longest_session_s * 1000)}\n")
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        embedded.wait_until_answering("127.0.0.1", self.port, 60, lambda: self.process.poll() is None)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)
        self.process.wait(30)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Server]:
    server = _Server(tmp_path_factory.mktemp("zookeeper"))
    server.start()
    yield server
    server.stop()


class _Ensemble:
    """A fresh root on the shared server."""

    def __init__(self, server: _Server) -> None:
        self.address = f"{server.hosts}/test/{next(_numbers)}"
        self._hosts = server.hosts
        self._sessions: list[ZooKeeperCoordinator] = []

    async def session(self) -> Coordinator:
        session = await ZooKeeperCoordinator.connect(self.address, session_timeout_s=10, new=True)
        self._sessions.append(session)
        return session

    async def expire(self, session: Coordinator) -> None:
        """A second connection claims the session id and closes it: to the first this is an expired session."""
        assert isinstance(session, ZooKeeperCoordinator)
        thief = KazooClient(self._hosts, client_id=session.session)
        await asyncio.to_thread(thief.start)
        await asyncio.to_thread(thief.stop)
        thief.close()

    async def close(self) -> None:
        for session in self._sessions:
            await session.close()


@pytest.fixture
async def ensemble(server: _Server) -> AsyncIterator[_Ensemble]:
    ensemble = _Ensemble(server)
    yield ensemble
    await ensemble.close()


class TestZooKeeperCoordinatorConforms(CoordinatorConformance):
    pass


async def test_connecting_where_no_cluster_is_names_the_address(ensemble: _Ensemble) -> None:
    with pytest.raises(ClusterUnavailable, match="no cluster there") as reported:
        await ZooKeeperCoordinator.connect(ensemble.address)
    assert reported.value.address == ensemble.address
    await (await ensemble.session()).create(CLUSTER, b"{}")
    await (await ZooKeeperCoordinator.connect(ensemble.address)).close()


async def test_connecting_without_a_listener_fails_in_time() -> None:
    address = f"127.0.0.1:{free_port()}/waltz"
    start = time.monotonic()
    with pytest.raises(ClusterUnavailable, match=address):
        await ZooKeeperCoordinator.connect(address, timeout_s=0.5)
    assert time.monotonic() - start < 15


async def test_connecting_to_a_port_that_never_answers_fails_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}/waltz"
        start = time.monotonic()
        with pytest.raises(ClusterUnavailable, match=address):
            await ZooKeeperCoordinator.connect(address, timeout_s=0.5)
        assert time.monotonic() - start < 15


@pytest.mark.parametrize("address", ["", "localhost", "localhost:2181/", ":2181/a", "localhost:no/a", "localhost:2181//a", "h:0/a"])
async def test_an_unusable_address_is_refused(address: str) -> None:
    sentence = rf"^coordinator has no (host and port|root path): '{address}', wanted host:port\[,host:port\]/root of ZooKeeper$"
    with pytest.raises(InvalidSetting, match=sentence):
        await ZooKeeperCoordinator.connect(address)


async def test_a_session_outlives_a_killed_and_restarted_server(tmp_path: Path) -> None:
    server = _Server(tmp_path, longest_session_s=60)  # a busy machine's new server has accepted a connection and answered it 10 s later
    server.start()
    coordinator = await ZooKeeperCoordinator.connect(f"{server.hosts}/waltz", session_timeout_s=60, timeout_s=90, new=True)
    other = await ZooKeeperCoordinator.connect(f"{server.hosts}/waltz", session_timeout_s=60, timeout_s=90, new=True)
    try:
        await coordinator.create("/member", b"", ephemeral=True)
        await coordinator.create("/count", b"0")
        waiting = asyncio.create_task(other.wait_changed("/count", 0))
        await other.get("/count")
        server.stop(signal.SIGKILL)
        setting = asyncio.create_task(coordinator.set("/count", b"1", 0))
        await asyncio.to_thread(server.start)
        async with asyncio.timeout(120):
            await setting
            await waiting
        count = await other.get("/count")
        assert count is not None
        assert (count.data, count.version) == (b"1", 1)
        assert await other.get("/member") is not None, "the session was not lost, nor its member"
    finally:
        await coordinator.close()
        await other.close()
        server.stop()


async def test_a_call_waits_as_long_as_one_of_a_node_that_joins_and_then_as_one_of_a_node_that_joined(tmp_path: Path) -> None:
    """The server stands still, as while its disk does not answer. A node is patient while it joins; here it is the other way round, so that neither
    wait is long."""
    server = _Server(tmp_path)
    server.start()
    coordinator = await ZooKeeperCoordinator.connect(f"{server.hosts}/waltz", session_timeout_s=10, timeout_s=30, join_timeout_s=0.5, new=True)
    server.process.send_signal(signal.SIGSTOP)
    with pytest.raises(ClusterUnavailable, match=r"no answer within 0.5 s"):
        await coordinator.create("/member", b"")
    coordinator.joined()
    waiting = asyncio.create_task(coordinator.create("/other", b""))
    await asyncio.sleep(1.5)
    server.process.send_signal(signal.SIGCONT)
    assert await waiting
    server.stop(signal.SIGKILL)
    async with asyncio.timeout(20):
        await coordinator.close()


async def test_a_paused_process_loses_its_session_and_learns_of_it(ensemble: _Ensemble, server: _Server, tmp_path: Path) -> None:
    """The real case: a process stands still for longer than its session."""
    script = tmp_path / "member.py"
    script.write_text(
        "import asyncio, sys\n"
        "from waltz_log.coordination.coordinator import ZooKeeperCoordinator\n"
        "async def main():\n"
        f"    mine = await ZooKeeperCoordinator.connect({ensemble.address!r}, session_timeout_s=1, new=True)\n"
        "    await mine.create('/members/paused', b'', ephemeral=True)\n"
        "    await mine.wait_session_lost()\n"
        "asyncio.run(main())\n"
    )
    process = await asyncio.to_thread(lambda: subprocess.Popen([sys.executable, script]))
    try:
        other = await ensemble.session()
        async with asyncio.timeout(60):
            await other.wait_children("/members", [])
            os.kill(process.pid, signal.SIGSTOP)
            await other.wait_children("/members", ["paused"])
            os.kill(process.pid, signal.SIGCONT)
            assert await asyncio.to_thread(process.wait) == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait()
