"""Rules of access on real nodes and a real ZooKeeper that loses them, damages them, or is put back to an earlier state."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from waltz_log.client import ClientSettings, SyncWaltzClient
from waltz_log.errors import NoSuchTopic, PermissionDenied
from waltz_log.processes.local_cluster import WALTZ, LocalCluster
from waltz_log.security.rules import ACCESS

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore:.*unclosed <ssl.SSLSocket"),  # kazoo drops a socket whose handshake failed without closing it
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

GOOD, BAD = "spiffe://waltz/application/good", "spiffe://waltz/application/bad"


def waltz(cluster: LocalCluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = cluster.environment("operator")
    return subprocess.run([*WALTZ, *arguments], capture_output=True, text=True, timeout=90, check=False, env=environment)


def until(condition: Callable[[], bool], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def change_access(cluster: LocalCluster, change: Callable[[KazooClient, str], object]) -> None:
    hosts, _, root = cluster.coordinator.partition("/")
    tls = cluster.certificate("operator", "dev")
    client = KazooClient(hosts=hosts, use_ssl=True, certfile=str(tls.certificate), keyfile=str(tls.key), ca=str(tls.authorities))
    client.start(30)
    try:
        change(client, f"/{root}{ACCESS}")
    finally:
        client.stop()
        client.close()


def permitted(cluster: LocalCluster, name: str) -> bool:
    """Whether the application may append, judged by a new connection."""
    settings = ClientSettings(tls=cluster.certificate("application", name), append_timeout_s=60, connect_timeout_s=60)
    try:
        with SyncWaltzClient(cluster.cluster, settings) as client:
            client.topic("shop/orders").append(b"x", partition=0, timeout_s=60)
        return True
    except (PermissionDenied, NoSuchTopic):  # a topic without a right is unknown
        return False


def refused(cluster: LocalCluster) -> bool:
    return ACCESS in waltz(cluster, "cluster", "status", cluster.coordinator, "--output", "json").stdout


def test_rules_that_zookeeper_lost_or_damaged_stay_in_force_and_are_repaired(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, partitions=1, storages=1, servers=1, secure=True) as cluster:
        assert waltz(cluster, "topic", "create", cluster.cluster, "shop/orders", "--partitions", "1").returncode == 0
        granted = waltz(cluster, "access", "grant", cluster.coordinator, GOOD, "append,read", "shop/orders")
        assert granted.returncode == 0, granted.stderr
        for wrong in (b"{", None):
            change_access(cluster, lambda client, path, wrong=wrong: client.delete(path) if wrong is None else client.set(path, wrong))  # type: ignore[misc]
            until(lambda: refused(cluster))
            assert (permitted(cluster, "good"), permitted(cluster, "bad")) == (True, False)
            for command in (("list",), ("grant", BAD, "read", "shop/orders"), ("revoke", GOOD), ("test", GOOD, "read", "shop/orders")):
                answer = waltz(cluster, "access", command[0], cluster.coordinator, *command[1:])
                assert answer.returncode not in (0, 1), answer.stdout
                assert "waltz cluster repair" in answer.stderr
            if wrong is None:
                cluster.stop("storage-0")
                cluster.stop("server-0")
                for name in ("storage-0", "server-0"):
                    cluster.start(name)
                cluster.wait_ready()
                assert (permitted(cluster, "good"), permitted(cluster, "bad")) == (True, False), "the storage node remembers the rules"
            repaired = waltz(cluster, "cluster", "repair", cluster.coordinator)
            assert f"Restored {ACCESS}" in repaired.stdout, repaired.stdout + repaired.stderr
            until(lambda: not refused(cluster))
            assert (permitted(cluster, "good"), permitted(cluster, "bad")) == (True, False)
        cluster.pause("storage-0")
        revoked = waltz(cluster, "access", "revoke", cluster.coordinator, GOOD, "read", "--timeout", "3")
        cluster.resume("storage-0")
        assert (revoked.returncode, revoked.stdout) == (3, ""), "a node that does not answer has not confirmed"
        assert "not confirmed by storage-0" in revoked.stderr
        change_access(cluster, lambda client, path: client.set(path, b"{"))
        reset = waltz(cluster, "access", "reset", cluster.coordinator, "--yes")
        assert reset.returncode == 0, reset.stderr
        assert permitted(cluster, "bad"), "roles alone decide again"


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_nodes_that_start_after_zookeeper_was_put_back_to_before_the_first_rule_open_nothing(workers: int, tmp_path: Path) -> None:
    settings = {"workers": workers}
    with LocalCluster(tmp_path, partitions=2, storages=1, servers=1, secure=True, server_settings=settings, storage_settings=settings) as cluster:
        for stopped in (True, False):
            cluster.stop("zookeeper")
            if stopped:
                shutil.copytree(tmp_path / "zookeeper", tmp_path / "earlier")
            else:
                shutil.rmtree(tmp_path / "zookeeper")
                shutil.copytree(tmp_path / "earlier", tmp_path / "zookeeper")
                for name in ("server-0", "storage-0"):
                    cluster.stop(name)
            cluster.start("zookeeper")
            if stopped:
                cluster.wait_ready()
                assert waltz(cluster, "topic", "create", cluster.cluster, "shop/orders", "--partitions", "1").returncode == 0
                assert waltz(cluster, "access", "grant", cluster.coordinator, GOOD, "append,read", "shop/orders").returncode == 0
        for name in ("storage-0", "server-0"):
            cluster.start(name)
        cluster.wait_ready()
        until(lambda: refused(cluster))
        assert not permitted(cluster, "bad")
        repaired = waltz(cluster, "cluster", "repair", cluster.coordinator)
        assert all(f"Restored {path}" in repaired.stdout for path in (ACCESS, "/topics")), repaired.stdout + repaired.stderr
        until(lambda: not refused(cluster))
        assert not permitted(cluster, "bad")


def test_after_zookeeper_was_put_back_a_change_succeeds_only_where_nodes_follow_it(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, partitions=1, storages=1, servers=1, secure=True) as cluster:
        assert waltz(cluster, "topic", "create", cluster.cluster, "shop/orders", "--partitions", "1").returncode == 0
        assert waltz(cluster, "access", "grant", cluster.coordinator, GOOD, "append,read", "shop/orders").returncode == 0
        cluster.stop("zookeeper")
        shutil.copytree(tmp_path / "zookeeper", tmp_path / "earlier")
        cluster.start("zookeeper")
        cluster.wait_ready()
        assert waltz(cluster, "access", "revoke", cluster.coordinator, GOOD).returncode == 0
        assert waltz(cluster, "access", "grant", cluster.coordinator, BAD, "read", "shop/orders").returncode == 0
        assert not permitted(cluster, "good")
        cluster.stop("zookeeper")
        shutil.rmtree(tmp_path / "zookeeper")
        shutil.copytree(tmp_path / "earlier", tmp_path / "zookeeper")
        cluster.start("zookeeper")
        until(lambda: refused(cluster))
        answer = waltz(cluster, "access", "revoke", cluster.coordinator, GOOD)
        assert answer.returncode != 0
        assert "put back to an earlier state" in answer.stderr
        assert f"Restored {ACCESS}" in waltz(cluster, "cluster", "repair", cluster.coordinator).stdout
        listed = waltz(cluster, "access", "list", cluster.coordinator)
        assert (BAD in listed.stdout, GOOD in listed.stdout) == (True, False), "the rules before the restore"
        revoked = waltz(cluster, "access", "revoke", cluster.coordinator, BAD)
        assert revoked.returncode == 0, revoked.stderr
