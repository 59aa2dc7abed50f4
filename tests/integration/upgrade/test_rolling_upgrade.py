"""The nodes of a cluster are replaced one at a time by those of this version, back, and again. Before and after, applications append.

Nodes of 0.2.0 and of this version read each other's files, and misunderstand each other's headers of records on the wire. So applications pause while
both versions run: docs/guides/upgrades.md. The short version is marked `long`: back once. `make upgrade-test` also goes back three times with more
servers.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

import pytest

from tests.integration.upgrade.released import Release, python
from waltz_log.client import SyncWaltzClient
from waltz_log.processes.local_cluster import LocalCluster

RATE = 500
"""Appends a second of both applications together."""

APPENDS_S = 5.0
"""How long applications append between two replacements of all nodes."""

LATENCY_P99_MAX_S = 2.0
PARTITIONS = 4
WAIT_S = 90.0
SERVES = "\nready "
"""Begins the line that a node prints when it serves."""
APPENDER = Path(__file__).with_name("appender.py")


class Result(TypedDict):
    """What `appender.py` prints."""

    acknowledged: dict[str, tuple[int, int]]
    rejected: list[str]
    latencies_ms: list[tuple[float, float]]


class VersionedCluster(LocalCluster):
    """Each process runs the modules in `modules[name]`; a process that is not there runs this version."""

    def __init__(self, directory: Path, modules: dict[str, Path | None], servers: int) -> None:
        super().__init__(directory, partitions=PARTITIONS, servers=servers)
        self.modules = modules

    def program(self, name: str) -> Sequence[str]:
        return (*python(self.modules.get(name)), "-m", "waltz_log.cli")

    def _configure(self, kind: str, name: str, port: int) -> Path:
        """In 0.2.0, the address of the coordinator has another name."""
        path = super()._configure(kind, name, port)
        if self.modules.get(name) is not None:
            path.write_text(path.read_text().replace("coordinator:", "cluster:"))
        return path

    def replace(self, name: str, modules: Path | None) -> None:
        """As an operator does it: stop the node, start the other version in its directory, wait until it serves and all is well. The status
        alone is not enough: it is complete before a new server has registered."""
        code = self.stop(name)
        assert code == 0, self.how_ended(name)
        self.modules[name] = modules
        lives = self.log(name).read_text().count(SERVES)
        self.start(name)
        deadline = time.monotonic() + WAIT_S
        while self.log(name).read_text().count(SERVES) == lives:
            assert time.monotonic() < deadline, self.how_ended(name)
            time.sleep(0.05)
        self.wait_ready(WAIT_S)


class Application:
    """`appender.py` in a process of its own, with one version's client. The release finds the cluster by its coordinator, this version by its log
    servers."""

    def __init__(self, name: str, modules: Path | None, cluster: LocalCluster) -> None:
        address = cluster.cluster if modules is None else cluster.coordinator
        command = [*python(modules), str(APPENDER), address, name, str(RATE // 2), str(PARTITIONS)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "appending\n"

    def end(self) -> Result:
        output, _ = self._process.communicate("stop\n", timeout=120)
        assert self._process.returncode == 0
        found: Result = json.loads(output.splitlines()[-1])  # the lines before it are log events of the client
        return found

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Release().build(tmp_path_factory.mktemp("released"))


def running(cluster: LocalCluster, modules: Path) -> set[str]:
    """The processes that have the modules of the release on their path."""
    marked = f"PYTHONPATH={modules}".encode()
    return {name for name, pid in cluster.processes.items() if marked in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")}


def appended(cluster: LocalCluster, applications: dict[str, Path | None]) -> list[Result]:
    """What applications appended together for some seconds; each name has the modules of its client."""
    started: list[Application] = []
    try:
        for name, modules in applications.items():
            started.append(Application(name, modules, cluster))
        time.sleep(APPENDS_S)
        return [each.end() for each in started]
    finally:
        for each in started:
            each.kill()


def there_and_back(cluster: VersionedCluster, released: Path, rounds: int) -> list[Result]:
    """Storage nodes first on the way up, servers first on the way down. Every time, clients of the release append with nodes of either version, and
    those of this version with its nodes. Ends with nodes of this version."""
    nodes = [*cluster.storage_names, *cluster.server_names]
    results: list[Result] = []
    for number in range(rounds + 1):
        if number:
            for name in reversed(nodes):
                cluster.replace(name, released)
        assert running(cluster, released) == set(nodes)
        results += appended(cluster, {f"old-{number}": released})
        for name in nodes:
            cluster.replace(name, None)
        assert running(cluster, released) == set()
        results += appended(cluster, {f"new-{number}": None, f"late-{number}": released})
    return results


def check(cluster: LocalCluster, results: list[Result]) -> None:
    """Every acknowledged append is in the log once, where its receipt said, and nothing else is."""
    acknowledged = {value: (place[0], place[1]) for result in results for value, place in result["acknowledged"].items()}
    rejected = {value for result in results for value in result["rejected"]}
    found: dict[str, tuple[int, int]] = {}
    with SyncWaltzClient(cluster.cluster) as client:
        for partition in range(PARTITIONS):
            last = client.high_water_mark(partition)
            for expected, transaction in enumerate(client.feed(partition, after=-1)):
                assert transaction.transaction_id == expected
                value = transaction.data.decode()
                assert value not in found, "appended twice"
                found[value] = (partition, transaction.transaction_id)
                if transaction.transaction_id == last:
                    break
    firsts = {value for value in found if value.endswith("-first")}
    assert {value: place for value, place in found.items() if value not in firsts} == acknowledged
    assert not rejected & set(found)
    latencies = sorted(latency for result in results for _, latency in result["latencies_ms"])
    assert len(latencies) == len(acknowledged) + len(rejected)
    p99_s, longest_s = latencies[int(len(latencies) * 0.99)] / 1000, latencies[-1] / 1000
    print(f"appends={len(latencies)} rejected={len(rejected)} p99_s={p99_s:.3f} longest_s={longest_s:.3f}")
    assert p99_s <= LATENCY_P99_MAX_S


@pytest.mark.parametrize(
    ("rounds", "servers"),
    [
        pytest.param(1, 2, marks=[pytest.mark.long, pytest.mark.timeout(600)]),
        pytest.param(3, 3, marks=[pytest.mark.slow, pytest.mark.timeout(1800)]),
    ],
)
def test_nothing_is_lost_while_nodes_are_upgraded_and_downgraded_one_at_a_time(rounds: int, servers: int, released: Path, tmp_path: Path) -> None:
    names = [*(f"storage-{number}" for number in range(3)), *(f"server-{number}" for number in range(servers))]
    with VersionedCluster(tmp_path / "cluster", dict.fromkeys(names, released), servers) as cluster:
        results = there_and_back(cluster, released, rounds)
        check(cluster, results)


def test_the_last_release_is_in_the_history() -> None:
    release = Release()
    changes = subprocess.run(
        ["git", "show", f"{release.commit}:CHANGELOG.md"], cwd=APPENDER.parent, capture_output=True, text=True, check=True, timeout=60
    )
    assert f"\n## {release.version}\n" in changes.stdout
