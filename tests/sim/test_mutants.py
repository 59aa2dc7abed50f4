"""Planted bugs must be noticed: some with every test run, all of them by `make mutants`."""

from __future__ import annotations

import pytest

from verification.mutants.mutants import hunt
from verification.mutants.planted import BUGS

SEEDS = 40

NOTICED_BY = {
    "acknowledged_before_the_sync": (3, "everything_heals"),
    "committed_at_one_acknowledgment": (0, "no_reader_passes_the_majority"),
    "received_at_one_replica": (0, "no_reader_passes_the_majority"),
    "readers_of_a_newer_session_served": (1, "one_id_one_content"),
    "locks_not_checked": (0, "locks_are_serializable"),
    "floor_raised_too_high": (1, "rejections_have_a_reason"),
    "previous_winner_reported": (0, "rejections_have_a_reason"),
    "own_writes_are_foreign": (0, "rejections_have_a_reason"),
    "duplicates_accepted": (0, "nothing_is_in_the_log_twice"),
    "mount_does_not_wait": (0, "rejected_is_not_in_the_log"),
    "resent_without_resolving": (7, "nothing_is_in_the_log_twice"),
    "metadata_written_blindly": (0, "metadata_is_compared_and_set"),
    "reported_before_it_is_recorded": (0, "reported_marks_are_recorded"),
    "too_much_kept": (0, "only_committed_is_kept"),
    "kept_without_a_majority": (27, "no_client_complains"),
    "handed_over_without_asking": (27, "no_client_complains"),
    "growth_not_heard_of": (0, "everything_heals"),
    "partitions_not_heard_of_are_dropped": (0, "everything_heals"),
    "followers_believed": (35, "no_client_complains"),
    "replicas_followed_after_the_end": (0, "nothing_runs_on"),
}
"""A seed at which or soon after which the bug is noticed, and the checker that is there for it."""

COMPLAINTS = {
    "older_map_accepted": (8, "33: the map of"),
    "version_claimed_for_what_was_not_read": (0, "33: the map of"),
    "number_given_again_believed": (666, "33: the map of"),
    "difference_lost": (0, "33: the map of"),
    "difference_lost_while_sending": (0, "33: the map of"),
    "progress_forgotten": (98, "sessions and kept nothing above"),
    "ranges_settled_off_by_one": (300_005, "was committed as"),
    "conflicts_settled_off_by_one": (300_000, "was answered 0 times"),
    "quota_counts_refused_appends": (500_003, "tokens left"),
    "quota_not_charged": (500_001, "accepted"),
    "frames_behind_a_refusal_are_ordered": (500_001, "nothing_is_in_the_log_twice"),
    "planned_work_is_not_counted": (500_001, "with tokens"),
    "planned_bytes_are_not_counted": (500_003, "with tokens"),
    "confirmed_by_a_lease": (401_000, "said that nothing of client"),
    "permission_skipped_for_a_fence": (700_000, "31: a principal that no rule permits anything was served"),
    "principal_believed": (700_000, "31: a principal that no rule permits anything was served"),
    "mounts_outlive_their_right": (700_000, "31: a feed goes on whose right was revoked"),
    "fence_not_durable": (119, "13: a fence went back"),
    "hanging_replica_waited_for": (14, "29: no append within"),
    "living_client_fenced_for_good": (2, "appends no more"),
    "damaged_view_not_noticed": (100_006, "13: no check noticed a bit that flipped"),
    "damaged_view_metadata_not_noticed": (100_190, "13: no check noticed a bit that flipped"),
    "older_fence_believed": (300, "13: a fence went back"),
    "topic_shown_without_a_right": (700_000, "36: a topic is shown"),
    "map_shared_between_rights": (700_000, "36: a topic is shown"),
    "followers_need_no_right": (700_000, "31: a principal that no rule permits anything was served: /waltz.Server/Follow"),
    "client_id_given_twice": (0, "34:"),
    "ids_reserved_again_after_a_restore": (150, "34:"),
    "ticket_of_another_principal_accepted": (700_000, "35:"),
    "ticket_not_checked_at_a_mount": (700_000, "35:"),
    "ticket_not_checked_at_a_resolve": (700_000, "35:"),
    "ticket_not_checked_at_an_outbox": (700_000, "35:"),
    "damaged_header_not_noticed": (90, "13: no check noticed a bit that flipped"),
}
"""A seed as above, and what the check that is there for the bug says."""


@pytest.mark.parametrize("bug", NOTICED_BY)
def test_a_planted_bug_is_noticed(bug: str) -> None:
    """By the checker that is there for it; others may notice earlier."""
    first, checker = NOTICED_BY[bug]
    last, noticed = first + SEEDS, set[str]()
    while checker not in noticed:
        caught = hunt(bug, last - first, first)
        assert caught.seed is not None, f"noticed by {noticed} alone"
        noticed.update(caught.checkers)
        first = caught.seed + 1


@pytest.mark.parametrize("bug", COMPLAINTS)
def test_the_check_that_is_there_for_a_bug_notices_it(bug: str) -> None:
    first, complaint = COMPLAINTS[bug]
    last = first + SEEDS
    found: list[str] = []
    while not any(complaint in each for each in found):
        caught = hunt(bug, last - first, first)
        assert caught.seed is not None, f"noticed by {found} alone"
        found += caught.wrong
        first = caught.seed + 1


def test_there_are_bugs_enough_and_each_says_what_it_breaks() -> None:
    assert len(BUGS) >= 15
    assert all(plant.__doc__ for plant in BUGS.values())
