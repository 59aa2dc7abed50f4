"""Clients while ZooKeeper is away: those that are connected, and new ones, as long as owners live."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from waltz_log.client import ClientSettings, Intent, SyncOutbox, SyncWaltzClient
from waltz_log.client.inspection.inspect import ClusterInspector
from waltz_log.processes.local_cluster import LocalCluster

AWAY_S = 12.0
"""Twice as long as a session of a server lasts."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("away"), partitions=2, storages=3, servers=2) as made:
        yield made


def test_clients_append_read_and_connect_while_zookeeper_is_away(cluster: LocalCluster, tmp_path: Path) -> None:
    settings = ClientSettings(append_timeout_s=20)
    with SyncWaltzClient(cluster.cluster, settings) as first:
        first.append(0, b"before")
        cluster.kill("zookeeper")
        away_s = time.monotonic()
        number = 0
        while time.monotonic() - away_s < AWAY_S:
            began_s = time.monotonic()
            with SyncWaltzClient(cluster.cluster, settings) as late:
                connected_s = time.monotonic() - began_s
                late.append(number % 2, b"%d" % number)
                assert next(iter(late.feed(0))).data == b"before"
            assert connected_s < 5.0
            first.append(number % 2, b"also")
            number += 1
            time.sleep(0.5)
        with ClusterInspector(cluster.cluster) as inspector:
            assert sum(bound.high_water_mark + 1 for bound in inspector.bounds().values()) == 1 + 2 * number
            assert [len(each) for each in inspector.replicas().values()] == [3, 3]
        cluster.start("zookeeper")
        cluster.wait_ready()
        first.append(1, b"after")
        with SyncOutbox(tmp_path, cluster.cluster) as outbox:
            outbox.submit(Intent.data(0, b"owed"))
            outbox.flush()
