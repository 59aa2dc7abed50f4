"""Clusters as pytest fixtures, for who says `pytest_plugins = ["waltz_log.testing.pytest_plugin"]` in the conftest.py at the root of their tests.

Importing it imports nothing of the platform: that happens when a fixture is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any  # Any: keyword arguments of a cluster

import pytest

if TYPE_CHECKING:
    from waltz_log.testing import LocalCluster, SyncInMemoryCluster

__all__ = ["waltz_local_cluster", "waltz_local_cluster_options", "waltz_memory_cluster", "waltz_memory_cluster_options"]


@pytest.fixture
def waltz_memory_cluster_options() -> dict[str, object]:
    """What the in-memory cluster is made with. Override it to have another: `return {"partitions": 4}`."""
    return {}


@pytest.fixture
def waltz_memory_cluster(waltz_memory_cluster_options: dict[str, Any]) -> Iterator[SyncInMemoryCluster]:
    """A cluster inside this process, new for each test."""
    from waltz_log.testing import SyncInMemoryCluster

    with SyncInMemoryCluster(**waltz_memory_cluster_options) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def waltz_local_cluster_options() -> dict[str, object]:
    """What the cluster of real processes is made with. Override it in conftest.py, with the same scope."""
    return {"partitions": 2, "servers": 1}


@pytest.fixture(scope="session")
def waltz_local_cluster(tmp_path_factory: pytest.TempPathFactory, waltz_local_cluster_options: dict[str, Any]) -> Iterator[LocalCluster]:
    """A cluster of real processes under a temporary directory, one for all tests. `waltz_local_cluster.cluster` is its address."""
    from waltz_log.testing import LocalCluster

    with LocalCluster(tmp_path_factory.mktemp("waltz"), **waltz_local_cluster_options) as cluster:
        yield cluster
