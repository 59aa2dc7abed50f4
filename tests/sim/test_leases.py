"""An owner that was deposed must not answer by what it knew a moment ago: runs in which nothing goes wrong but that servers are stranded."""

from __future__ import annotations

from dataclasses import replace

from waltz_log.testing.simulation import run
from waltz_log.testing.simulation.mix import Mix
from waltz_log.testing.simulation.planted import planted

SEEDS = range(30)


def _stranded_alone(mix: Mix) -> Mix:
    return replace(
        mix,
        partitions=1,
        replicas=3,
        storages=3,
        servers=2,
        session_timeout_s=0.3,
        faults={"stranded": 1.0},
        nemeses=1,
        load_s=5.0,
        kept={},
        in_memory={},
    )


def _complaints(seed: int) -> list[str]:
    return run(seed, alter=_stranded_alone).wrong


def test_an_owner_that_goes_by_a_lease_of_its_own_clock_is_noticed() -> None:
    with planted("confirmed_by_a_lease"):
        seed = next((seed for seed in SEEDS if any("said that nothing of client" in each for each in _complaints(seed))), None)
    assert seed is not None, "nobody noticed"
    assert not _complaints(seed), "noticed without the bug as well"
