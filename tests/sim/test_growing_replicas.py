"""Partitions that begin with one replica get a second one and a third, and give them up again, under faults: nothing acknowledged is lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from verification.simulation import run
from verification.simulation.mix import GROWTH, Mix
from verification.simulation.run import Outcome

SEEDS = range(40)
PORTION = 10


def one_replica(mix: Mix) -> Mix:
    """With all faults the seed draws but those that remove a node's data: with one replica that loses acknowledged transactions."""
    moved = ("rot", "replica-change", "storage-added")
    kept = {kind: weight for kind, weight in mix.faults.items() if not kind.startswith("replace") and kind not in moved}
    return replace(mix, replicas=1, storages=4, faults=kept | {GROWTH: 2.0}, nemeses=2, fault_pause_s=0.2, load_s=4.0)


def grown(outcome: Outcome) -> dict[int, int]:
    """How often a partition came to have so many replicas."""
    found = {1: 0, 2: 0, 3: 0}
    for line in outcome.trace.tail(100_000).splitlines():
        if "replicas are" in line:
            found[line.partition("replicas are")[2].count(",") + 1] += 1
    return found


@pytest.mark.parametrize("first", range(0, len(SEEDS), PORTION))
def test_replicas_grow_from_one_to_three_and_shrink_again_under_faults(first: int) -> None:
    times = {1: 0, 2: 0, 3: 0}
    for seed in SEEDS[first : first + PORTION]:
        outcome = run(seed, alter=one_replica)
        assert not outcome.wrong, f"seed {seed}: {outcome.wrong}\n{outcome.trace.tail(40)}"
        times = {count: times[count] + more for count, more in grown(outcome).items()}
    assert times[2] > 2, "hardly any partition got a second replica"
    assert times[3] > 1, "hardly any partition got a third replica"
