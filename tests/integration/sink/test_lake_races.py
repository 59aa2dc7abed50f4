"""Two real drivers on one table, one of them killed or paused: a short version of `make lake`, and the bugs that it must notice."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from verification.lake.races import Place, local_place, race, s3_place


@pytest.fixture(scope="module")
def local() -> Iterator[Place]:
    with local_place() as place:
        yield place


@pytest.fixture(scope="module")
def remote() -> Iterator[Place]:
    with s3_place() as place:
        yield place


@pytest.mark.parametrize(("gap", "fault"), [("written", "kill"), ("put", "pause")])
def test_each_transaction_is_once_in_a_local_table(local: Place, gap: str, fault: str) -> None:
    assert race(local, 2, gap=gap, fault=fault) == []


@pytest.mark.parametrize(("gap", "fault"), [("put", "pause"), ("landed", "kill")])
def test_each_transaction_is_once_in_a_table_on_s3(remote: Place, gap: str, fault: str) -> None:
    assert race(remote, 2, gap=gap, fault=fault) == []


def test_two_drivers_that_begin_together_land_each_transaction_once(local: Place) -> None:
    assert race(local, 1) == []


BUGS = {
    "mark not compared": ("written", "pause", "2 times: transaction_id="),
    "marks in a second commit": ("put", "kill", "2 times: transaction_id="),
    "both attempts of a task": ("read", "kill", "2 times: transaction_id="),
    "wrong statistics": ("read", "kill", "not found by its value: transaction_id="),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_noticed(local: Place, bug: str) -> None:
    gap, fault, expected = BUGS[bug]
    assert expected in " ".join(race(local, 2, bug, gap=gap, fault=fault))
