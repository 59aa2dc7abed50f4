"""One word for each state of a replica, and when a partition can accept appends."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from waltz_log.core.replica_status import ReplicaStatus, can_commit, surveyed_status

LIVE, DEAD = ReplicaStatus.LIVE, ReplicaStatus.UNREACHABLE
OPERATIONS = Path(__file__).parents[4] / "docs" / "guides" / "operations.md"


def test_each_state_has_a_word_and_a_meaning_of_its_own() -> None:
    assert len({status.value for status in ReplicaStatus}) == len({status.meaning for status in ReplicaStatus}) == len(ReplicaStatus)
    assert f"{ReplicaStatus.CATCHING_UP}" == "catching up"


def test_the_operations_page_lists_exactly_these_states() -> None:
    rows = [line.split("|") for line in OPERATIONS.read_text().splitlines() if line.startswith("| `")]
    listed = {row[1].strip().strip("`"): row[2].strip() for row in rows if row[1].strip().strip("`") in {status.value for status in ReplicaStatus}}
    assert listed == {status.value: status.meaning for status in ReplicaStatus}


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_a_partition_accepts_appends_with_an_owner_and_more_than_half_of_its_replicas_live(count: int) -> None:
    for statuses in product((LIVE, DEAD), repeat=count):
        enough = 2 * statuses.count(LIVE) > count
        assert can_commit(served=True, replicas=statuses) == enough
        assert not can_commit(served=False, replicas=statuses)


def test_a_replica_that_repairs_itself_counts_for_appends() -> None:
    assert can_commit(served=True, replicas=(LIVE, ReplicaStatus.REPAIRING, DEAD))


@pytest.mark.parametrize("status", [status for status in ReplicaStatus if status not in (LIVE, ReplicaStatus.REPAIRING)])
def test_no_other_replica_counts(status: ReplicaStatus) -> None:
    assert can_commit(served=True, replicas=(LIVE, LIVE, status))
    assert not can_commit(served=True, replicas=(LIVE, status, status))


def test_a_partition_without_replicas_accepts_no_appends() -> None:
    assert not can_commit(served=True, replicas=())


def test_the_state_from_a_node_has_precedence_over_an_owner_that_has_not_noticed() -> None:
    owner = ReplicaStatus.LIVE
    assert surveyed_status(started=True, answers=True, stopped=None, owner=owner) == "live"
    assert surveyed_status(started=True, answers=True, stopped=ReplicaStatus.CORRUPT, owner=owner) == "corrupt"
    assert surveyed_status(started=True, answers=True, stopped=ReplicaStatus.FAILED, owner=owner) == "failed"
    assert surveyed_status(started=True, answers=False, stopped=None, owner=owner) == "unreachable"
    assert surveyed_status(started=False, answers=False, stopped=None, owner=owner) == "never started"
    assert surveyed_status(started=True, answers=True, stopped=None, owner=None) == "waiting"
    assert surveyed_status(started=True, answers=True, stopped=None, owner=owner, repairing=True) == "repairing", "never live"
    assert surveyed_status(started=True, answers=True, stopped=None, owner=ReplicaStatus.COPYING, repairing=True) == "copying"
    assert surveyed_status(started=True, answers=True, stopped=ReplicaStatus.CORRUPT, owner=owner, repairing=True) == "corrupt"
