"""A topic that is acknowledged from memory, in a cluster of real processes that are all killed at once: the page cache outlives them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from waltz_log.client import ClientSettings, SyncWaltzClient
from waltz_log.processes.local_cluster import LocalCluster

COUNT = 500


def waltz(*arguments: str) -> str:
    command = [sys.executable, "-m", "waltz_log.cli", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


BY_NUMBER = ClientSettings(topics=("fast/clicks",))


def learnt(client: SyncWaltzClient) -> int:
    """The first transaction that is acknowledged from memory."""
    deadline = time.monotonic() + 60
    while (receipt := client.append(0, b"is it?")).durability != "quorum_memory":
        assert time.monotonic() < deadline, "the owner did not learn of the policy"
        time.sleep(0.1)
    return receipt.transaction_id


@pytest.mark.slow
def test_killed_processes_lose_nothing_that_was_acknowledged_from_memory(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, partitions=1, servers=1, session_timeout_s=2) as cluster:
        policies = ("--policy", "durability=quorum_memory", "--policy", "flush_period_ms=3600000")
        waltz("topic", "create", cluster.cluster, "fast/clicks", "--partitions", "1", *policies)
        reported = json.loads(waltz("topic", "describe", cluster.cluster, "fast/clicks", "--output", "json"))
        assert reported["loss_window"].startswith("the last 3600000 ms or 1048576 bytes")
        with SyncWaltzClient(cluster.cluster, BY_NUMBER) as client:
            first = learnt(client) + 1
            for number in range(COUNT):
                assert client.append(0, b"%d" % number).durability == "quorum_memory"
            nodes = [*cluster.storage_names, *cluster.server_names]
            for name in nodes:
                cluster.kill(name)
            for name in nodes:
                cluster.start(name)
            after = client.append(0, b"after").transaction_id
        assert after == first + COUNT
        with SyncWaltzClient(cluster.cluster, BY_NUMBER) as client:
            found: list[bytes] = []
            for batch in client.feed_batches(0, after=first - 1):
                found += [transaction.data for transaction in batch]
                if len(found) > COUNT:
                    break
        assert found == [*(b"%d" % number for number in range(COUNT)), b"after"]
        with SyncWaltzClient(cluster.cluster, BY_NUMBER) as client:
            waltz("topic", "alter-policy", cluster.cluster, "fast/clicks", "--policy", "durability=quorum_sync")
            deadline = time.monotonic() + 60
            while client.append(0, b"safe").durability != "quorum_sync":
                assert time.monotonic() < deadline, "the owner did not learn of the changed policy"
                time.sleep(0.1)
