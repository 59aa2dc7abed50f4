"""The drills of docs/guides/disaster_recovery.md, as an operator runs them: a real cluster, a disaster, and the commands of the page.

A table that was dropped is in tests/e2e/test_dropped_table.py, because it needs Spark.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.drills.operator_commands import COMMAND, TIMEOUT_S, append, log_of, refused, until, waltz
from tests.integration.free_ports import free_port
from waltz_log.client import SyncWaltzClient
from waltz_log.processes.local_cluster import LocalCluster

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

DAY_S = 86_400


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path / "dev", partitions=1, servers=1, session_timeout_s=2) as running:
        yield running


def stop(cluster: LocalCluster, *names: str) -> None:
    for name in names or [*cluster.server_names, *cluster.storage_names]:
        cluster.stop(name)


def start(cluster: LocalCluster) -> None:
    for name in (*cluster.storage_names, *cluster.server_names):
        cluster.start(name)
    waltz("cluster", "status", cluster.coordinator, "--wait", "60")


def directories(cluster: LocalCluster, *names: str) -> list[str]:
    return [f"{name}={cluster.directory / name}" for name in names or cluster.storage_names]


@contextmanager
def replaced(cluster: LocalCluster, name: str) -> Iterator[None]:
    """Runs a storage node with `--replace`; it registers before the block begins."""
    command = [*COMMAND, "storage", "--config", str(cluster.directory / "conf" / f"{name}.yaml"), "--replace"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as node:
        try:
            assert node.stdout is not None
            assert node.stdout.readline().startswith("ready storage")
            yield
        finally:
            node.terminate()
            assert node.wait(30) == 0


# ---- ZooKeeper -------------------------------------------------------------------------------------------------------------------------------------


def test_a_zookeeper_restored_from_an_old_snapshot_is_refused_and_then_rebuilt_from_the_nodes(cluster: LocalCluster, tmp_path: Path) -> None:
    data = append(cluster, "before the snapshot")
    data_of_zookeeper, snapshot = cluster.directory / "zookeeper" / "data", tmp_path / "snapshot"
    cluster.stop("zookeeper")
    shutil.copytree(data_of_zookeeper, snapshot)
    cluster.start("zookeeper")
    for change in range(2):  # each restart of a server opens a store session, which the snapshot does not know
        cluster.stop("server-0")
        cluster.start("server-0")
        waltz("cluster", "status", cluster.coordinator, "--wait", "60")
        data += append(cluster, f"after the snapshot {change}")

    stop(cluster)
    cluster.stop("zookeeper")
    shutil.rmtree(data_of_zookeeper)
    shutil.copytree(snapshot, data_of_zookeeper)
    cluster.start("zookeeper")
    for name in (*cluster.storage_names, "server-0"):
        cluster.start(name)
    until(lambda: "coordinator is behind the replicas" in cluster.log("server-0").read_text(), "the server notices")
    older = "the coordinator is older than the replicas"
    until(lambda: older in refused("cluster", "status", cluster.coordinator, "--output", "json"), "the status says why")

    stop(cluster)
    adopted = waltz("cluster", "adopt", cluster.coordinator, *directories(cluster), "--name", "dev", "--restored")
    assert "adopted coordinator=" in adopted
    start(cluster)
    assert log_of(cluster.cluster) == data
    data += append(cluster, "after the repair")
    assert log_of(cluster.cluster) == data


def test_a_zookeeper_that_lost_everything_is_rebuilt_from_the_nodes(cluster: LocalCluster) -> None:
    data = append(cluster, "before")
    stop(cluster)
    cluster.stop("zookeeper")
    shutil.rmtree(cluster.directory / "zookeeper" / "data")
    cluster.start("zookeeper")
    waltz("cluster", "adopt", cluster.coordinator, *directories(cluster), "--name", "dev")
    start(cluster)
    data += append(cluster, "after")
    assert log_of(cluster.cluster) == data


# ---- storage nodes ---------------------------------------------------------------------------------------------------------------------------------


def backed_up_at_different_times(cluster: LocalCluster, folder: Path) -> tuple[list[bytes], list[bytes]]:
    """Makes a backup of each node, 100 transactions apart. Returns what the newest backup holds at least, and everything that was appended."""
    folder.mkdir()
    data = append(cluster, "first")
    for name in cluster.storage_names:
        newest = list(data)
        waltz("storage", "backup", cluster.directory / name, folder / name)
        cluster.stop("server-0")  # the next backup is of another session
        cluster.start("server-0")
        waltz("cluster", "status", cluster.coordinator, "--wait", "60", "--complete")
        data += append(cluster, f"after {name}")
    return newest, data


def test_a_replica_set_restored_from_backups_of_different_ages_continues_from_the_newest(cluster: LocalCluster, tmp_path: Path) -> None:
    newest, data = backed_up_at_different_times(cluster, tmp_path / "backups")
    stop(cluster)
    for name in cluster.storage_names:
        shutil.rmtree(cluster.directory / name)
        waltz("storage", "restore", tmp_path / "backups" / name, cluster.directory / name, "--keep-session")
    # Before the adoption no node starts, so that no backup passes for what the cluster had.
    cluster.start("storage-0")
    until(lambda: "storage-0" in cluster.ended, "the node ends")
    assert "copy of an earlier state" in cluster.how_ended("storage-0")

    waltz("cluster", "adopt", cluster.coordinator, *directories(cluster), "--name", "dev", "--restored")
    start(cluster)
    found = log_of(cluster.cluster)
    assert found[: len(newest)] == newest
    assert found == data[: len(found)], "a prefix of the log, not a mixture"
    more = append(cluster, "afterwards")
    assert log_of(cluster.cluster) == found + more
    waltz("cluster", "status", cluster.coordinator, "--wait", "60", "--complete")


def test_one_intact_node_and_two_restored_from_older_backups_lose_nothing(cluster: LocalCluster, tmp_path: Path) -> None:
    """The intact node knows what was committed as far as it acknowledged; the two others fill up from it."""
    _, data = backed_up_at_different_times(cluster, tmp_path / "backups")
    stop(cluster)
    for name in ("storage-0", "storage-1"):
        shutil.rmtree(cluster.directory / name)
        waltz("storage", "restore", tmp_path / "backups" / name, cluster.directory / name, "--keep-session")
    waltz("cluster", "adopt", cluster.coordinator, *directories(cluster), "--name", "dev", "--restored")
    start(cluster)
    assert log_of(cluster.cluster) == data
    data += append(cluster, "afterwards")
    assert log_of(cluster.cluster) == data


def test_two_of_three_nodes_that_are_gone_for_good_are_replaced_from_the_third(cluster: LocalCluster) -> None:
    data = append(cluster, "before")
    waltz("cluster", "status", cluster.coordinator, "--wait", "60", "--complete")
    for name in ("storage-1", "storage-2"):
        cluster.kill(name)
        shutil.rmtree(cluster.directory / name)
    until(lambda: "unreachable" in refused("cluster", "status", cluster.coordinator), "the status shows it")

    stop(cluster, "server-0", "storage-0")
    waltz("cluster", "adopt", cluster.coordinator, *directories(cluster, "storage-0"), "--name", "dev", "--restored")
    cluster.start("storage-0")
    cluster.start("server-0")
    waltz("cluster", "status", cluster.coordinator, "--wait", "60")
    assert log_of(cluster.cluster) == data
    with replaced(cluster, "storage-1"), replaced(cluster, "storage-2"):
        for name in ("storage-1", "storage-2"):
            waltz("cluster", "replica", "add", cluster.coordinator, "0", name)
        waltz("cluster", "status", cluster.coordinator, "--wait", "60", "--complete")
        data += append(cluster, "afterwards")
        cluster.kill("storage-0")  # the new ones are enough
        data += append(cluster, "without the survivor")
        assert log_of(cluster.cluster) == data
        cluster.start("storage-0")
        waltz("cluster", "status", cluster.coordinator, "--wait", "60", "--complete")


# ---- a clock ---------------------------------------------------------------------------------------------------------------------------------------


class ShiftedCluster(LocalCluster):
    """`shifts`: seconds by which a process's clock is ahead."""

    shifts: dict[str, int]

    def program(self, name: str) -> Sequence[str]:
        if shift := self.shifts.get(name):
            return (sys.executable, "-P", str(Path(__file__).with_name("shifted_clock.py")), str(shift))
        return COMMAND


@pytest.mark.parametrize(
    ("shift_s", "retention_s"),
    [
        (DAY_S, DAY_S // 24),
        (-DAY_S, 3 * DAY_S),  # age counts from append times, so it has to be longer than the difference
    ],
)
def test_a_clock_a_day_off_removes_nothing_and_append_times_never_go_back(shift_s: int, retention_s: int, tmp_path: Path) -> None:
    settings = {"segment_bytes": 4096}
    cluster = ShiftedCluster(tmp_path / "dev", partitions=2, servers=1, storage_settings=settings, server_settings={"upkeep_s": 1.0})
    cluster.shifts = {"server-0": shift_s} | ({"storage-0": shift_s} if shift_s < 0 else {})
    with cluster:
        waltz("topic", "create", cluster.cluster, "shop/orders", "--log-partitions", "0", "--policy", f"retention_ms={retention_s * 1000}")
        with SyncWaltzClient(cluster.cluster) as client:
            topic = client.topic("shop/orders")
            times = [topic.append(b"x" * 1000, partition=0).append_time_ms for _ in range(20)]
        owners_ms = (time.time() + min(shift_s, 0)) * 1000
        assert abs(times[0] - owners_ms) < 120_000, "a clock that is behind gives the time, and one that is ahead does not"
        server = cluster.directory / "conf" / "server-0.yaml"
        assert "upkeep_s" in server.read_text()
        cluster.shifts = {}
        for name in ("storage-0", "server-0"):
            cluster.stop(name)
            cluster.start(name)
            waltz("cluster", "status", cluster.coordinator, "--wait", "60", "--complete")
        with SyncWaltzClient(cluster.cluster) as client:
            topic = client.topic("shop/orders")
            times += [topic.append(b"y", partition=0).append_time_ms for _ in range(5)]
        assert times == sorted(times), "append times never go back"
        assert abs(times[-1] - time.time() * 1000) < 120_000
        read = [json.loads(line) for line in waltz("read", cluster.cluster, "--topic", "shop/orders", "-p", "0", "--output", "json").splitlines()]
        assert [len(each["data"]) for each in read] == [1000] * 20 + [1] * 5


# ---- mistakes of operators -------------------------------------------------------------------------------------------------------------------------


def test_a_topic_that_was_deleted_by_mistake_is_read_from_a_backup_in_a_cluster_of_its_own(cluster: LocalCluster, tmp_path: Path) -> None:
    waltz("topic", "create", cluster.cluster, "shop/orders", "--log-partitions", "0")
    with SyncWaltzClient(cluster.cluster) as client:
        topic = client.topic("shop/orders")
        for number in range(50):
            topic.append(b"order %d" % number, partition=0)
    waltz("storage", "backup", cluster.directory / "storage-0", tmp_path / "backup")
    waltz("topic", "delete", cluster.cluster, "shop/orders")

    rescue = cluster.coordinator.rpartition("/")[0] + "/rescue"
    waltz("storage", "restore", tmp_path / "backup", tmp_path / "rescue", "--keep-session")
    waltz("cluster", "adopt", rescue, f"storage-0={tmp_path / 'rescue'}", "--name", "rescue")
    node = ["storage", "--coordinator", rescue, "--name", "storage-0", "--directory", str(tmp_path / "rescue"), "--listen", "127.0.0.1:0"]
    port = free_port()
    processes = [subprocess.Popen([*COMMAND, *words]) for words in (node, ["server", "--coordinator", rescue, "--listen", f"127.0.0.1:{port}"])]
    try:
        waltz("cluster", "status", rescue, "--wait", "60")
        found = log_of(f"127.0.0.1:{port}")
        assert found == [b"order %d" % number for number in range(50)]
        # The partition is free as soon as nothing of the deleted topic is left on any replica.
        until(lambda: _created(cluster), "the partition is free again")
        with SyncWaltzClient(cluster.cluster) as client:
            topic = client.topic("shop/orders")
            for data in found:
                topic.append(data, partition=0, timeout_s=TIMEOUT_S)
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait(30)
    read = [json.loads(line) for line in waltz("read", cluster.cluster, "--topic", "shop/orders", "-p", "0", "--output", "json").splitlines()]
    assert [each["data"] for each in read] == [f"order {number}" for number in range(50)]


def _created(cluster: LocalCluster) -> bool:
    command = [*COMMAND, "topic", "create", cluster.cluster, "shop/orders", "--log-partitions", "0", "--policy", "retention_ms=-1"]
    return subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=False).returncode == 0


def test_a_replica_that_was_removed_by_mistake_is_added_again_while_clients_append(cluster: LocalCluster) -> None:
    data = append(cluster, "before")
    assert "repeat the command with --force" in refused("cluster", "replica", "remove", cluster.coordinator, "0", "storage-2")
    waltz("cluster", "replica", "remove", cluster.coordinator, "0", "storage-2", "--force")
    data += append(cluster, "with two replicas")
    waltz("cluster", "replica", "add", cluster.coordinator, "0", "storage-2")
    cluster.kill("storage-0")
    data += append(cluster, "the returned replica is in the majority")
    assert log_of(cluster.cluster) == data
    cluster.start("storage-0")
    waltz("cluster", "status", cluster.coordinator, "--wait", "60", "--complete")


def test_a_node_started_with_replace_by_mistake_keeps_its_data(cluster: LocalCluster) -> None:
    data = append(cluster, "before")
    cluster.stop("storage-1")
    with replaced(cluster, "storage-1"):
        waltz("cluster", "status", cluster.coordinator, "--wait", "60", "--complete")
        cluster.kill("storage-2")
        data += append(cluster, "the node counts again")
        assert log_of(cluster.cluster) == data
        cluster.start("storage-2")
    cluster.start("storage-1")
    waltz("cluster", "status", cluster.coordinator, "--wait", "60", "--complete")
