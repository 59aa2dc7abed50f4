"""A client with a certificate and every right except another client's, beside that client, on real processes: a short version of `make hostile`."""

from __future__ import annotations

from pathlib import Path

import pytest

from verification.hostile.attacker import ATTACKS
from verification.hostile.probes import ProbedCluster
from verification.hostile.run import attack, grant

SECONDS = 40.0


@pytest.mark.timeout(280)
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_hostile_client_changes_no_outcome_learns_nothing_and_exhausts_no_node(workers: int, tmp_path: Path) -> None:
    """It does not compare latencies: a minute on a busy machine says little of a p99."""
    with ProbedCluster(tmp_path, workers) as cluster:
        grant(cluster)
        found = attack(cluster, appends=8_000, seconds=SECONDS, alone_s=5.0)
    assert set(found.tried) == set(ATTACKS), "each attack was tried"
    assert found.faults == []
