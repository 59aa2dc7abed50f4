"""Every feature of the client, in a process from which ZooKeeper refuses connections: nothing tries to reach it, and everything works."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import waltz_log.client
from tests.integration.log import asynchronous_features, blocking_features
from tests.integration.log.client_features import ASYNCHRONOUS, BLOCKING, CALLS, REGULAR, SPEAKING, STOCK, VALUES, Feature, Place, recorded
from waltz_log.coordination.coordinator import ZooKeeperCoordinator
from waltz_log.errors import ClusterUnavailable
from waltz_log.processes.local_cluster import LocalCluster

ROWS = (asynchronous_features, blocking_features)
"""Modules whose rows are there because they are imported."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("features"), partitions=4, storages=1, servers=2) as made:
        for topic, partition, more in ((REGULAR, 2, []), (STOCK, 3, ["--type", "compaction"])):
            created = made._waltz("topic", "create", made.cluster, topic, "--log-partitions", str(partition), *more)
            assert created.returncode == 0, created.stderr
        yield made


@pytest.fixture
def attempts(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Attempts of this process to reach ZooKeeper, all of which the network refuses."""
    found: list[Any] = []
    port = int(cluster.coordinator.partition("/")[0].rpartition(":")[2])

    def refusing(connect: Callable[..., Any]) -> Callable[..., Any]:
        def refuse(self: socket.socket, address: Any) -> Any:
            if isinstance(address, tuple) and address[1] == port:
                found.append(address)
                raise ConnectionRefusedError("the network refuses")
            return connect(self, address)

        return refuse

    monkeypatch.setattr(socket.socket, "connect", refusing(socket.socket.connect))
    monkeypatch.setattr(socket.socket, "connect_ex", refusing(socket.socket.connect_ex))
    return found


async def test_the_network_refuses_connections_to_zookeeper(cluster: LocalCluster, attempts: list[Any]) -> None:
    with pytest.raises(ClusterUnavailable):
        await ZooKeeperCoordinator.connect(cluster.coordinator, timeout_s=1.0)
    assert attempts


@pytest.mark.parametrize("row", ASYNCHRONOUS, ids=lambda row: row.name)
async def test_an_asynchronous_feature_needs_no_zookeeper(
    cluster: LocalCluster, attempts: list[Any], row: Feature, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    with recorded(monkeypatch) as made:
        await row.run(Place(cluster.cluster, tmp_path))
    assert not row.calls - made, "the row makes the calls that it names"
    assert not attempts


@pytest.mark.parametrize("row", BLOCKING, ids=lambda row: row.name)
def test_a_blocking_feature_needs_no_zookeeper(
    cluster: LocalCluster, attempts: list[Any], row: Feature, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    with recorded(monkeypatch) as made:
        row.run(Place(cluster.cluster, tmp_path))
    assert not row.calls - made, "the row makes the calls that it names"
    assert not attempts


def test_every_public_call_has_a_row() -> None:
    named = {call for row in (*ASYNCHRONOUS, *BLOCKING) for call in row.calls}
    assert named == CALLS, "a new call needs a row in asynchronous_features or blocking_features"


def test_every_public_name_is_a_value_or_has_rows() -> None:
    assert set(waltz_log.client.__all__) == VALUES | (SPEAKING.keys() - {"ClusterInspector"})
    assert not VALUES & SPEAKING.keys()
