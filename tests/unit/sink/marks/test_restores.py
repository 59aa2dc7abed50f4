"""Which RESTORE is still in force over a table's marks, according to its commits alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from waltz_delta.errors import RestoreOvertaken
from waltz_delta.marks.restores import is_ours, standing_restore

KEY = "k"


def ours(read: int | None = None, *, reported: int | None = None, key: str = KEY) -> dict[str, Any]:
    more = {} if reported is None else {"read": reported}
    return {"operation": "STREAMING UPDATE", "userMetadata": json.dumps({"waltz": {"cluster": key, **more}}), "readVersion": read}


def restore(version: int) -> dict[str, Any]:
    return {"operation": "RESTORE", "operationParameters": {"version": version}}


def standing(*commits: dict[str, Any], key: str | None = KEY) -> int | None:
    """`commits` from the oldest, version 0."""
    newest_first = sorted(enumerate(commits), key=lambda each: -each[0])
    return standing_restore("t", newest_first, key, lambda version, given: int(given["version"]))


def test_a_restore_is_in_force_until_a_commit_of_ours_that_was_decided_after_it() -> None:
    assert standing(ours(), ours(0), ours(1)) is None
    assert standing(ours(), ours(0), ours(1), restore(1)) == 1
    assert standing(ours(), ours(0), ours(1), restore(1), {"operation": "OPTIMIZE"}) == 1
    assert standing(ours(), ours(0), ours(1), restore(1), ours(3)) is None
    assert standing(ours(), restore(0), ours(1, key="other")) == 0, "another cluster's commit says nothing of our marks"
    assert standing(ours(), restore(0), ours(1, key="other"), key=None) is None


def test_a_restore_of_what_a_restore_made_means_the_version_behind_it() -> None:
    assert standing(ours(), ours(0), ours(1), restore(0), restore(3)) == 0
    assert standing(ours(), ours(0), restore(0), ours(2), ours(3), restore(3)) == 3, "the restored version had been brought in line"


@pytest.mark.parametrize(
    "commits",
    [
        [ours(), ours(0), restore(0), ours(1)],
        [ours(), ours(0), restore(0), ours(1), {"operation": "OPTIMIZE"}],
        [ours(), ours(0), restore(0), {"operation": "MERGE", **ours(2, reported=1)}, ours(3, reported=1)],
    ],
    ids=["append", "append and more", "merge and its marks"],
)
def test_a_batch_that_was_decided_before_a_restore_and_committed_after_it_is_noticed(commits: list[dict[str, Any]]) -> None:
    with pytest.raises(RestoreOvertaken) as raised:
        standing(*commits)
    assert raised.value.facts == {"path": "t", "version": 2}
    again = [*commits, restore(2)]
    assert standing(*again) == 0, "restored once more, the marks go back to what both brought back"


def test_commits_of_others_between_what_was_read_and_what_was_committed_are_harmless() -> None:
    assert standing(ours(), {"operation": "OPTIMIZE"}, {"operation": "DELETE"}, ours(0)) is None


def test_a_commit_is_ours_by_its_metadata_or_as_early_commits_said_it() -> None:
    assert is_ours(ours(), KEY)
    assert not is_ours(ours(key="other"), KEY)
    assert is_ours({"operationParameters": {"queryId": "waltz"}}, KEY)
    for reported in ({}, {"userMetadata": "text"}, {"userMetadata": "{}"}, {"userMetadata": '{"waltz": 5}'}, {"operationParameters": None}):
        assert not is_ours(reported, KEY)
