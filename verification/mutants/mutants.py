"""`make mutants`: plants each bug by itself and runs seeds until a checker notices. A bug that is never noticed is a hole in the simulator.

Prints which checker noticed which bug at which seed. Ends with 1 where one was not noticed within the bound.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from verification.mutants.planted import BUGS, planted, unplanted
from verification.simulation.kept_mix import TOPICS_FROM
from verification.simulation.mix import ACCESS_IN, BATCHES_IN, CLOCKS_ALONE, CONTEXTS_FROM, QUOTAS_IN, STRANDED_ALONE
from verification.simulation.run import run

__all__ = ["SEEDS_MAX", "Caught", "hunt", "hunt_all"]

SEEDS_MAX = 500

OF_TOPICS = frozenset(
    {
        "retention_past_a_subscriber",
        "upkeep_not_fenced",
        "tombstone_dropped_early",
        "view_above_the_committed_mark",
        "damaged_view_not_noticed",
        "damaged_view_metadata_not_noticed",
    }
)
"""Bugs that affect only topics that are trimmed and compacted. Few of the lower seeds have them."""


OF_CLOCKS = frozenset({"append_times_follow_the_clock"})
"""Bugs that show only if no append time is lost."""

OF_ACCESS = frozenset(
    {
        "permission_skipped_for_a_fence",
        "principal_believed",
        "mounts_outlive_their_right",
        "rules_not_followed",
        "replicas_ask_no_rule",
        "ticket_of_another_principal_accepted",
        "ticket_not_checked_at_a_mount",
        "ticket_not_checked_at_a_resolve",
        "ticket_not_checked_at_an_outbox",
        "topic_shown_without_a_right",
        "map_shared_between_rights",
        "followers_need_no_right",
    }
)
"""Bugs that show only if access rules are enforced."""

OF_STRANDED = frozenset({"confirmed_by_a_lease"})
"""Bugs that show only right after a server was deposed, before it knows."""

OF_BATCHES = frozenset({"ranges_settled_off_by_one", "conflicts_settled_off_by_one"})
"""Bugs that affect only bulk appends, which the lower seeds do not have."""

OF_CONTEXTS = frozenset({"turn_requests_appended"})
"""Bugs that affect only contexts on contended locks."""

OF_QUOTAS = frozenset(
    {
        "quota_counts_refused_appends",
        "quota_not_charged",
        "frames_behind_a_refusal_are_ordered",
        "planned_work_is_not_counted",
        "planned_bytes_are_not_counted",
    }
)
"""Bugs that have no effect without a quota."""

TOO_RARE = frozenset({"changed_before_a_majority_answered"})
"""Bugs that none of thousands of seeds notices. A test of one course of events plants each of them (tests/unit/log/server/replication)."""


@dataclass(frozen=True, slots=True)
class Caught:
    """`seed`: the first that noticed, None if none of them did."""

    bug: str
    seed: int | None
    runs: int
    wrong: list[str]

    @property
    def checkers(self) -> list[str]:
        return list(dict.fromkeys(each.partition(":")[0] for each in self.wrong))

    def __str__(self) -> str:
        if self.seed is None:
            return f"{self.bug:<42} NOT NOTICED in {self.runs} seeds"
        return f"{self.bug:<42} seed {self.seed:<5} {', '.join(self.checkers)}"


def hunt(bug: str, seeds_max: int = SEEDS_MAX, first: int | None = None) -> Caught:
    """`first`: the seed to begin with; by default one from which on there is something for the bug to harm."""
    if first is None:
        first = _first_seed(bug)
    with planted(bug):
        for runs, seed in enumerate(range(first, first + seeds_max), 1):
            outcome = run(seed)
            if outcome.wrong and not _fails_anyway(seed):
                return Caught(bug, seed, runs, outcome.wrong)
    return Caught(bug, None, seeds_max, [])


def _first_seed(bug: str) -> int:
    bands = (
        (OF_TOPICS, TOPICS_FROM),
        (OF_CLOCKS, CLOCKS_ALONE.start),
        (OF_STRANDED, STRANDED_ALONE.start),
        (OF_BATCHES, BATCHES_IN.start),
        (OF_QUOTAS, QUOTAS_IN.start),
        (OF_CONTEXTS, CONTEXTS_FROM),
        (OF_ACCESS, ACCESS_IN.start),
    )
    return next((first for bugs, first in bands if bug in bugs), 0)


def _fails_anyway(seed: int) -> bool:
    """Whether the seed finds something in the cluster without a planted bug."""
    with unplanted():
        return bool(run(seed).wrong)


def hunt_all(bugs: Iterable[str], seeds_max: int = SEEDS_MAX, jobs: int | None = None) -> Iterator[Caught]:
    with multiprocessing.get_context("spawn").Pool(jobs or os.cpu_count()) as pool:
        yield from pool.imap_unordered(partial(hunt, seeds_max=seeds_max), list(bugs))


def main() -> int:
    parser = argparse.ArgumentParser(prog="make mutants", description="plants bugs in the cluster, which the simulator must notice")
    parser.add_argument("bugs", nargs="*", help="which to plant; by default all but those too rare for seeds")
    parser.add_argument("--seeds", type=int, default=SEEDS_MAX, help="the most seeds for each mutant")
    parser.add_argument("--jobs", type=int, help="processes at once; one a core by default")
    given = parser.parse_args()
    unknown = [name for name in given.bugs if name not in BUGS]
    if unknown:
        print(f"mutants: no such bug: {unknown[0]}; there are {', '.join(BUGS)}", file=sys.stderr)
        return 2
    escaped = 0
    bugs = given.bugs or sorted(BUGS.keys() - TOO_RARE)
    for caught in hunt_all(bugs, given.seeds, given.jobs):
        print(caught, flush=True)
        escaped += caught.seed is None
    print(f"{len(bugs) - escaped} of {len(bugs)} noticed")
    return 1 if escaped else 0


if __name__ == "__main__":
    sys.exit(main())
