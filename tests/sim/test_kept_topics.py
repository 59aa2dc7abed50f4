"""Topics that are trimmed and compacted all the time, under every fault of the simulator (docs/internals/simulator.md, 24 to 26).

make sim FIRST_SEED=100000 SEEDS=1000
"""

from __future__ import annotations

import pytest

from verification.mutants.mutants import OF_TOPICS, hunt
from verification.mutants.planted import BUGS
from verification.simulation import run
from verification.simulation.kept_mix import TOPICS_FROM, draw_kept
from verification.simulation.ranges import run_range

NOTICED_BY = {
    "retention_past_a_subscriber": "trimming_waits_for_subscribers",
    "tombstone_dropped_early": "views_are_the_fold",
}


def test_nothing_above_the_bound_is_lost_and_views_are_the_fold_whatever_goes_wrong() -> None:
    found = run_range(range(TOPICS_FROM, TOPICS_FROM + 5), jobs=1)
    assert not found.failed, "\n".join(str(failed) for failed in found.failed[:3])


@pytest.mark.slow
@pytest.mark.parametrize("first", range(TOPICS_FROM, TOPICS_FROM + 400, 50))
def test_nothing_above_the_bound_is_lost_over_many_seeds(first: int) -> None:
    found = run_range(range(first, first + 50), jobs=1)
    assert not found.failed, "\n".join(str(failed) for failed in found.failed[:3])


def test_such_a_run_is_repeatable_and_has_topics() -> None:
    one, other = run(TOPICS_FROM + 3), run(TOPICS_FROM + 3)
    assert (one.digest, one.drawn, one.ended_s) == (other.digest, other.drawn, other.ended_s)
    assert one.mix.kept
    kinds = {topic.type for seed in range(TOPICS_FROM, TOPICS_FROM + 50) for topic in draw_kept(seed, 1).values()}
    assert kinds == {"regular", "compaction"}


@pytest.mark.parametrize("bug", NOTICED_BY)
def test_a_planted_bug_of_retention_or_compaction_is_noticed(bug: str) -> None:
    caught = hunt(bug, 30)
    assert caught.seed is not None
    assert NOTICED_BY[bug] in caught.checkers, caught.wrong


@pytest.mark.slow
@pytest.mark.parametrize(("bug", "checker"), [("view_above_the_committed_mark", "views_are_the_fold"), ("upkeep_not_fenced", "no_client_complains")])
def test_a_planted_bug_that_shows_rarely_is_noticed_in_the_end(bug: str, checker: str) -> None:
    caught = hunt(bug, 200)
    assert caught.seed is not None
    assert checker in caught.checkers, caught.wrong


def test_the_bugs_of_topics_are_there() -> None:
    assert set(BUGS) >= OF_TOPICS
