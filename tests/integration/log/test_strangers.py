"""Strangers at every port of a cluster over mutual TLS: they get nothing, and its clients notice nothing (`make strangers` has 10,000)."""

from __future__ import annotations

from pathlib import Path

import pytest

from verification.strangers.measuring import measure
from waltz_log.processes.local_cluster import LocalCluster


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("secure", [True, False], ids=["tls", "plain"])
def test_hundreds_of_strangers_slow_no_client_down_and_use_no_memory(tmp_path: Path, secure: bool) -> None:
    with LocalCluster(tmp_path, partitions=4, storages=3, servers=1, secure=secure) as cluster:
        found = measure(cluster, connections=600, seconds=15)
    assert found.passed, found
    assert found.ports == 9, "the server, three storage nodes, the direct port of each, and the console"
    assert found.growth_bytes < 64 << 20


@pytest.mark.timeout(120)
def test_a_hundred_strangers_fail_no_append_and_use_no_memory(tmp_path: Path) -> None:
    """For some seconds, so that each test run has it. It does not compare latencies: a few seconds on a busy machine say little of a p99."""
    with LocalCluster(tmp_path, partitions=4, storages=1, servers=1, secure=True) as cluster:
        found = measure(cluster, connections=100, seconds=3)
    assert found.failed == 0
    assert found.ports == 5
    assert found.pages > 0
    assert found.pages_failed == 0
    assert found.made >= 30
    assert found.appends > 20
    assert found.growth_bytes < 64 << 20
