"""What a query has landed, by the ranges of its batches."""

from __future__ import annotations

from waltz_delta.landing.landing_progress import BATCHES_KEPT, LandingProgress
from waltz_delta.marks.marks import BatchRange


def covered(starts: dict[int, int], ends: dict[int, int]) -> BatchRange:
    return BatchRange(ends=ends, starts=starts, exact=True)


def test_nothing_is_landed_while_the_batch_runs_and_all_of_it_after() -> None:
    batch = covered({0: 3, 1: 0}, {0: 10, 1: 0})
    running = LandingProgress().began(batch)
    assert (running.landed, running.transactions) == ({0: 3, 1: 0}, 0)
    ended = running.ended(batch, 7)
    assert (ended.landed, ended.transactions, ended.batches) == ({0: 10, 1: 0}, 7, {7: 7})


def test_a_batch_that_runs_again_counts_once() -> None:
    batch = covered({0: 0}, {0: 10})
    once = LandingProgress().began(batch).ended(batch, 0)
    assert once.began(batch).ended(batch, 0).transactions == 10
    assert LandingProgress().known({0: 5}).began(batch).ended(batch, 0).transactions == 4, "some tables held a part of it before"


def test_only_the_last_batches_are_remembered() -> None:
    progress = LandingProgress()
    for number in range(3 * BATCHES_KEPT):
        progress = progress.ended(covered({0: number}, {0: number + 1}), number)
    assert sorted(progress.batches) == list(range(2 * BATCHES_KEPT, 3 * BATCHES_KEPT))
    assert progress.transactions == 3 * BATCHES_KEPT
