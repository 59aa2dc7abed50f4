"""What `make bench-costs` concludes from its rounds."""

from __future__ import annotations

import pytest

from benchmarks.measurement import Measurement
from benchmarks.scaling.cost_runs import _compared, _misses, delayed, middle
from benchmarks.scaling.costs import MEASURED, Run
from benchmarks.scaling.queueing import Service

SERVICE = Service(
    client_block=0.2, client_transaction=0.004, server_block=0.5, server_transaction=0.001, storage_block=0.4, storage_transaction=0.0001, sync=0.3
)


def compared(*pairs: tuple[float, float], held: float = 1.0) -> Measurement:
    return _compared("queueing.p99_ms_at_20k", pairs, {"held": held})


def test_a_round_is_compared_with_itself() -> None:
    """The medians of both columns are equal, but no round was simulated well."""
    found = compared((5.0, 10.0), (10.0, 20.0), (20.0, 5.0))
    assert (found.value, found.conditions["measured_ms"]) == (10.0, 10.0)
    assert found.ratio == pytest.approx(0.5)
    assert found.conditions["errors"] == "-50% to +300%"
    assert _misses(found)


def test_one_round_that_was_disturbed_does_not_count() -> None:
    assert not _misses(compared((9.0, 10.0), (11.0, 10.0), (300.0, 10.0)))


@pytest.mark.parametrize(("simulated", "missed"), [(0.74, True), (0.76, False), (1.24, False), (1.26, True)])
def test_more_than_the_allowed_error_is_missed_on_both_sides(simulated: float, missed: bool) -> None:
    assert _misses(compared((simulated, 1.0))) is missed


def test_a_rate_that_was_not_held_is_not_judged() -> None:
    assert not _misses(compared((5.0, 1.0), held=0.9))


def test_delays_are_later_than_the_median_and_come_with_time() -> None:
    found = delayed(SERVICE, [1.0, 1.0, 2.0, 2.0, 2.0, 7.0])
    assert list(found.delays_ms) == [0.0, 0.0, 0.0, 0.0, 0.0, 5.0]
    assert found.delay_every_ms == pytest.approx(2.5)


def test_the_middle_of_runs_is_the_median_of_each_value() -> None:
    runs = [Run("a", blocks, 200, dict.fromkeys(MEASURED, spent)) for blocks, spent in ((10.0, 3.0), (30.0, 1.0), (20.0, 90.0))]
    assert middle(runs) == Run("a", 20.0, 200, dict.fromkeys(MEASURED, 3.0))
