"""A flood of denied calls on real processes erases no trace of an earlier one: a short version of `make flood`."""

from __future__ import annotations

from pathlib import Path

import pytest

from verification.flood.run import audited, flood
from waltz_log.processes.local_cluster import LocalCluster


@pytest.mark.timeout(280)
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_flood_of_denied_calls_erases_no_trace_of_an_earlier_one(workers: int, tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "cluster", partitions=4, storages=1, servers=1, secure=True, **audited(tmp_path, workers)) as cluster:
        found = flood(cluster, tmp_path, seconds=25.0, calls_per_s=90.0)
    assert found.faults == []
    assert found.other == {}
