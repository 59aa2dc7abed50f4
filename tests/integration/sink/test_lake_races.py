"""Two real drivers on one table, one of them killed or paused: a short version of `make lake`, and the bugs that it must notice."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from verification.lake.driver import BUGS, MODES, UNCONDITIONAL
from verification.lake.races import Place, local_place, race, s3_place


@pytest.fixture(scope="module")
def local() -> Iterator[Place]:
    with local_place() as place:
        yield place


@pytest.fixture(scope="module")
def remote() -> Iterator[Place]:
    with s3_place() as place:
        yield place


@pytest.mark.parametrize(("mode", "gap", "fault"), [("append", "written", "kill"), ("upsert", "put", "pause")])
def test_the_table_is_what_the_log_says_at_a_local_path(local: Place, mode: str, gap: str, fault: str) -> None:
    assert race(local, mode, 2, gap=gap, fault=fault) == []


@pytest.mark.parametrize(("mode", "gap", "fault"), [("append", "put", "pause"), ("upsert", "landed", "kill")])
def test_the_table_is_what_the_log_says_on_s3(remote: Place, mode: str, gap: str, fault: str) -> None:
    assert race(remote, mode, 2, gap=gap, fault=fault) == []


def test_two_drivers_that_begin_together_land_each_transaction_once(local: Place) -> None:
    assert race(local, "append", 1) == []


PLANTED = {
    ("append", "mark not compared"): ("written", "pause", "2 times: transaction_id="),
    ("append", "marks in a second commit"): ("put", "kill", "2 times: transaction_id="),
    ("append", "both attempts of a task"): ("read", "kill", "2 times: transaction_id="),
    ("append", "wrong statistics"): ("read", "kill", "not found by its value: transaction_id="),
    ("upsert", "mark not compared"): ("written", "pause", "the mark goes back: "),
    ("upsert", "marks in a second commit"): ("landed", "kill", "rows and mark disagree: "),
}


def test_every_bug_is_planted_in_each_mode_that_can_have_it() -> None:
    assert {*PLANTED, *((mode, UNCONDITIONAL) for mode in MODES)} == {(mode, bug) for bug, modes in BUGS.items() for mode in modes}


@pytest.mark.parametrize(("mode", "bug"), PLANTED)
def test_a_planted_bug_is_noticed(local: Place, mode: str, bug: str) -> None:
    gap, fault, expected = PLANTED[mode, bug]
    assert expected in " ".join(race(local, mode, 2, bug, gap=gap, fault=fault))


def test_a_store_that_ignores_conditions_is_noticed() -> None:
    with s3_place(conditional=False) as place:
        found = race(place, "append", 1, UNCONDITIONAL)
    assert any("rows and mark disagree: " in each for each in found)
