"""Nodes of several worker processes: kill -9 of one worker while clients append and read, growth, hand-over, and the end of the supervisor."""

from __future__ import annotations

import asyncio
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from waltz_log.client import WaltzClient
from waltz_log.coordination.cluster import grow_cluster
from waltz_log.coordination.coordinator import ZooKeeperCoordinator
from waltz_log.coordination.survey import survey
from waltz_log.core.topics.sharding import worker_of
from waltz_log.errors import NotAppended, OutcomeUnknown
from waltz_log.processes.local_cluster import LocalCluster
from waltz_log.transport.grpc import GrpcNetwork

pytestmark = pytest.mark.timeout(240)

WORKERS = 2
PARTITIONS = 4
PATIENCE_S = 60.0
IN_FLIGHT = 4

Json = dict[str, Any]


async def _status(cluster: LocalCluster) -> Json:
    coordinator = await ZooKeeperCoordinator.connect(cluster.coordinator)
    try:
        return asdict(await survey(coordinator, GrpcNetwork(), cluster.coordinator))
    finally:
        await coordinator.close()


def _node(found: Json, name: str) -> Json:
    status: Json = (found["servers"][0] if name == "server-0" else next(each for each in found["storages"] if each["name"] == name))["status"]
    return status


def _lives(found: Json) -> dict[tuple[str, int], tuple[int, int]]:
    """Process id and restarts of every worker that answers."""
    names = ["server-0", *(each["name"] for each in found["storages"])]
    reported = {(name, each["worker"]): each for name in names for each in _node(found, name).get("workers", ())}
    return {which: (each["pid"], each["restarts"]) for which, each in reported.items() if each["answers"]}


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(0.05)


def _cluster(directory: Path, storages: int, storage_ports: int) -> LocalCluster:
    """Clients know the server's one port alone, so that half of their streams are passed on."""
    return LocalCluster(
        directory,
        partitions=PARTITIONS,
        storages=storages,
        servers=1,
        session_timeout_s=2,
        server_settings={"workers": WORKERS, "worker_ports": -1, "direct_port": -1},
        storage_settings={"workers": WORKERS, "worker_ports": storage_ports},
    )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """With one storage node: where a worker of it is away, so are its partitions."""
    with _cluster(tmp_path_factory.mktemp("workers"), 1, 0) as found:
        yield found


class _Load:
    """Appends to one partition until it is ended, and keeps the outcome of each."""

    def __init__(self, client: WaltzClient, partition: int) -> None:
        self._client = client
        self.partition = partition
        self.reported: dict[str, int] = {}
        self.never: set[str] = set()
        self._over = False

    async def run(self) -> None:
        await asyncio.gather(*(self._lane(lane) for lane in range(IN_FLIGHT)))

    async def _lane(self, lane: int) -> None:
        number = 0
        while not self._over:
            value = f"{self.partition}-{lane}-{number}"
            number += 1
            try:
                self.reported[value] = (await self._client.append(self.partition, value.encode(), timeout_s=PATIENCE_S)).transaction_id
            except NotAppended:
                self.never.add(value)
            except OutcomeUnknown as unknown:
                found = await self._client.resolve(unknown)
                if found is None:
                    self.never.add(value)
                else:
                    self.reported[value] = found.transaction_id
            await asyncio.sleep(0.02)  # the machine is for what is tested, not for the load

    def end(self) -> None:
        self._over = True

    async def moves(self) -> None:
        """Returns when the log has accepted more."""
        before = len(self.reported)
        async with asyncio.timeout(PATIENCE_S):
            while len(self.reported) <= before + IN_FLIGHT:
                await asyncio.sleep(0.01)

    async def check(self) -> None:
        """What was acknowledged is in the log, once each and where it was said to be; what was denied is not."""
        places: dict[str, int] = {}
        mark = await self._client.high_water_mark(self.partition)
        async for batch in self._client.feed_batches(self.partition, after=-1):
            for transaction in batch:
                assert transaction.transaction_id == len(places)
                assert places.setdefault(bytes(transaction.data).decode(), transaction.transaction_id) == transaction.transaction_id
            if batch[-1].transaction_id >= mark:
                break
        assert {value: places.get(value) for value in self.reported} == self.reported
        assert not self.never & set(places)


async def _until_all_answer(cluster: LocalCluster, holds: Callable[[dict[tuple[str, int], tuple[int, int]]], bool]) -> Json:
    """The cluster's state when every worker answers and that holds."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = await _status(cluster)
            lives = _lives(found)
            if len(lives) == (cluster.servers + cluster.storages) * WORKERS and holds(lives):
                return found
            await asyncio.sleep(0.05)


async def _whole(cluster: LocalCluster) -> Json:
    """The cluster's state when every replica takes part: with one more away than may be, partitions stand still, and rightly."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = await _until_all_answer(cluster, lambda lives: True)
            replicas = [each.get("replicas", {}) for each in _node(found, "server-0")["partitions"].values()]
            if all(len(each) == cluster.storages and {of["state"] for of in each.values()} == {"live"} for each in replicas):
                return found
            await asyncio.sleep(0.05)


async def _kill(cluster: LocalCluster, name: str, worker: int, others: list[_Load]) -> None:
    """Kills one worker and waits until it serves again. `others` go on before that, and no other process notices."""
    before = await _whole(cluster)
    pid, restarts = _lives(before)[name, worker]
    os.kill(pid, signal.SIGKILL)
    moved = asyncio.gather(*(load.moves() for load in others))
    seen_without = False

    def again(lives: dict[tuple[str, int], tuple[int, int]]) -> bool:
        nonlocal seen_without
        seen_without = seen_without or moved.done()
        return lives[name, worker] != (pid, restarts)

    found = await _until_all_answer(cluster, again)
    assert seen_without, "the others stood still until the worker was there again"
    now = _lives(found)
    assert now[name, worker][1] == restarts + 1
    unchanged = {which: life for which, life in _lives(before).items() if which != (name, worker)}
    assert {which: life for which, life in now.items() if which != (name, worker)} == unchanged
    for each in found["partitions"]:
        was = before["partitions"][each["partition"]]
        assert each["generation"] == was["generation"]
        if _spared(cluster, name, worker, each["partition"]):
            assert each["session"] == was["session"], "the session of another worker's partition ended"


def _spared(cluster: LocalCluster, name: str, worker: int, partition: int) -> bool:
    """Whether the partition is served on without that worker."""
    return worker_of(partition, WORKERS) != worker or (name != "server-0" and cluster.storages > 2)


async def _killed_in_turn(cluster: LocalCluster, kills: list[tuple[str, int]]) -> None:
    client = await WaltzClient.connect(cluster.cluster)
    loads = [_Load(client, partition) for partition in range(PARTITIONS)]
    running = [asyncio.ensure_future(load.run()) for load in loads]
    try:
        for name, worker in kills:
            await asyncio.gather(*(load.moves() for load in loads))
            spared = [load for load in loads if _spared(cluster, name, worker, load.partition)]
            await _kill(cluster, name, worker, spared)
        await asyncio.gather(*(load.moves() for load in loads))
        workers = _node(await _until_all_answer(cluster, lambda lives: True), "server-0")["workers"]
        assert sum(each["passed_on"]["open_calls"] for each in workers) >= PARTITIONS // WORKERS
        for load in loads:
            load.end()
        await asyncio.gather(*running)
        for load in loads:
            await load.check()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await client.close()


def test_a_killed_worker_starts_again_alone_and_nothing_is_lost_or_doubled(cluster: LocalCluster) -> None:
    asyncio.run(asyncio.wait_for(_killed_in_turn(cluster, [("server-0", 1), ("storage-0", 0)]), 2 * PATIENCE_S))


@pytest.mark.slow
@pytest.mark.timeout(700)
def test_workers_of_every_kind_are_killed_again_and_again(tmp_path: Path) -> None:
    kills = [(name, worker) for worker in range(WORKERS) for name in ("server-0", "storage-0", "storage-1", "storage-2")]
    with _cluster(tmp_path / "cluster", 3, -1) as cluster:
        asyncio.run(asyncio.wait_for(_killed_in_turn(cluster, kills * 2), 600))


@pytest.mark.slow
def test_the_number_of_workers_may_change_at_every_start(tmp_path: Path) -> None:
    async def append_and_read(cluster: str, before: int) -> None:
        async with WaltzClient.open(cluster) as client:
            for partition in range(PARTITIONS):
                assert (await client.append(partition, b"%d" % before, timeout_s=PATIENCE_S)).transaction_id == before
                async for batch in client.feed_batches(partition, after=-1):
                    assert [bytes(each.data) for each in batch] == [b"%d" % number for number in range(before + 1)]
                    break

    for number, workers in enumerate((1, 3, 2, 1)):
        settings = {"workers": workers}
        with LocalCluster(tmp_path, partitions=PARTITIONS, storages=1, servers=1, server_settings=settings, storage_settings=settings) as cluster:
            asyncio.run(asyncio.wait_for(append_and_read(cluster.cluster, number), PATIENCE_S))


@pytest.mark.slow
def test_a_server_whose_supervisor_stood_still_loses_its_partitions_and_starts_over(tmp_path: Path) -> None:
    """Its workers live on meanwhile: they must see that they own nothing any more."""
    settings = {"workers": WORKERS}

    async def run(cluster: LocalCluster) -> None:
        async with WaltzClient.open(cluster.cluster) as client:
            for partition in range(PARTITIONS):
                await client.append(partition, b"x", timeout_s=PATIENCE_S)
            servers = {each["address"]: each["server_id"] for each in (await _status(cluster))["servers"]}
            cluster.pause("server-0")
            async with asyncio.timeout(PATIENCE_S):
                while len({each["server_id"] for each in (await _status(cluster))["partitions"]}) > 1 or len((await _status(cluster))["servers"]) > 1:
                    await asyncio.sleep(0.1)
            for partition in range(PARTITIONS):
                assert (await client.append(partition, b"x", timeout_s=PATIENCE_S)).transaction_id == 1
            cluster.resume("server-0")
            async with asyncio.timeout(PATIENCE_S):
                while len(again := {each["address"]: each["server_id"] for each in (await _status(cluster))["servers"]}) < len(servers):
                    await asyncio.sleep(0.1)
            changed = [address for address in servers if again[address] != servers[address]]
            assert len(changed) == 1
            for partition in range(PARTITIONS):
                assert (await client.append(partition, b"x", timeout_s=PATIENCE_S)).transaction_id == 2

    with LocalCluster(tmp_path, partitions=PARTITIONS, storages=1, servers=2, session_timeout_s=2, server_settings=settings) as cluster:
        asyncio.run(asyncio.wait_for(run(cluster), 3 * PATIENCE_S))


def test_a_worker_that_stands_still_is_reported_and_restarted_and_its_sibling_serves_meanwhile(tmp_path: Path) -> None:
    settings = {"workers": WORKERS, "worker_silence_s": 6}
    with LocalCluster(tmp_path, partitions=PARTITIONS, storages=1, servers=1, server_settings=settings, http=True) as cluster:
        lives = _lives(asyncio.run(_status(cluster)))
        pid, restarts = lives["server-0", 1]
        served = next(each for each in range(PARTITIONS) if worker_of(each, WORKERS) == 0)
        stuck = next(each for each in range(PARTITIONS) if worker_of(each, WORKERS) == 1)

        async def while_it_stands() -> float:
            async with await WaltzClient.connect(cluster.cluster) as client:
                await client.append(served, b"before")
                os.kill(pid, signal.SIGSTOP)
                began_s = time.monotonic()
                while _livez(cluster) == 200:
                    await asyncio.sleep(0.2)
                reported_s = time.monotonic() - began_s
                for _ in range(5):
                    await client.append(served, b"meanwhile", timeout_s=3)
                await client.append(stuck, b"when it is there again", timeout_s=PATIENCE_S)
                return reported_s

        try:
            assert asyncio.run(while_it_stands()) < 6 + 3, "it is reported before the node is restarted for it"
            _until(lambda: _livez(cluster) == 200)
        finally:
            if _alive(pid):
                os.kill(pid, signal.SIGKILL)
        lives = _lives(asyncio.run(_status(cluster)))
        assert lives["server-0", 1][0] != pid
        assert lives["server-0", 1][1] == restarts + 1


def _livez(cluster: LocalCluster) -> int:
    try:
        with urllib.request.urlopen(f"http://{cluster.http_addresses['server-0']}/livez", timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_the_log_grows_while_workers_serve_it(cluster: LocalCluster) -> None:
    async def run() -> None:
        coordinator = await ZooKeeperCoordinator.connect(cluster.coordinator)
        try:
            grown, _ = await grow_cluster(coordinator, PARTITIONS + 2)
        finally:
            await coordinator.close()
        assert grown.partitions == PARTITIONS + 2
        async with WaltzClient.open(cluster.cluster) as client:
            for partition in range(PARTITIONS + 2):
                assert (await client.append(partition, b"x", timeout_s=PATIENCE_S)).transaction_id >= 0

    asyncio.run(asyncio.wait_for(run(), 2 * PATIENCE_S))


def test_workers_end_with_their_node_and_come_back_with_it(cluster: LocalCluster) -> None:
    """The server is asked to stop and hands its partitions over in good order; the storage node's supervisor is killed, and no worker outlives it."""

    async def run() -> None:
        async with WaltzClient.open(cluster.cluster) as client:
            marks = [(await client.append(partition, b"last", timeout_s=PATIENCE_S)).transaction_id for partition in range(PARTITIONS)]
            found = await _status(cluster)
            before = {each["partition"]: each["session"] for each in found["partitions"]}
            lives = _lives(found)
            assert await asyncio.to_thread(cluster.stop, "server-0") == 0
            assert not any(_alive(pid) for (name, _), (pid, _) in lives.items() if name == "server-0")
            reported = cluster.log("server-0").read_text()
            for partition, mark in enumerate(marks):
                assert f'event="store session closed in order" partition={partition} session={before[partition]} high_water_mark={mark}' in reported
            await asyncio.to_thread(cluster.kill, "storage-0")
            orphans = [pid for (name, _), (pid, _) in lives.items() if name == "storage-0"]
            assert len(orphans) == WORKERS
            await asyncio.to_thread(_until, lambda: not any(_alive(pid) for pid in orphans))
            for name in ("storage-0", "server-0"):
                await asyncio.to_thread(cluster.start, name)
            for partition, mark in enumerate(marks):
                assert (await client.append(partition, b"next", timeout_s=PATIENCE_S)).transaction_id == mark + 1

    asyncio.run(asyncio.wait_for(run(), 2 * PATIENCE_S))
