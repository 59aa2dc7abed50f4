"""Drivers killed at every gap of a micro-batch while appends go on and other processes die, too; `make chaos-spark KILLS=100` is this for an hour."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.e2e.chaos import Chaos, Reported, lives_of
from tests.e2e.chaos_checker import Row, differences
from tests.e2e.chaos_drivers import ANYWHERE
from tests.e2e.killed_driver import GAPS

pytestmark = pytest.mark.timeout(3600)

SEED = 11


def killed_at_the_gaps(directory: Path, kills_of_a_gap: int, *, strikes: int, actions: Sequence[str] = ()) -> Reported:
    """What happened, after the table was compared with the log."""
    lives = [*GAPS] * kills_of_a_gap
    random.Random(SEED).shuffle(lives)
    lives[lives.index("commit")], lives[0] = lives[0], "commit"  # files of a first batch, and no table to name them
    chaos = Chaos(directory, SEED)
    assert chaos.run(lives, strikes=strikes, actions=actions) == []
    assert chaos.reported.driver == dict.fromkeys(GAPS, kills_of_a_gap)
    return chaos.reported


@pytest.mark.long
def test_a_driver_killed_at_each_gap_leaves_each_transaction_once(tmp_path: Path) -> None:
    """Also: a first batch without a table yet, a deleted checkpoint, a killed worker, node or server, and two drivers that race."""
    assert killed_at_the_gaps(tmp_path, 1, strikes=1).checkpoints == {"deleted": 1}


@pytest.mark.slow
def test_sixteen_drivers_killed_at_the_gaps_leave_each_transaction_once(tmp_path: Path) -> None:
    """Also: an older checkpoint, and one of the actions, which `test_chaos_actions` has all of."""
    reported = killed_at_the_gaps(tmp_path, 4, strikes=4, actions=["restored-committing"])
    assert reported.actions == {"restored-committing: RestoreOvertaken, then equal": 1}
    assert reported.checkpoints == {"deleted": 1, "older": 1}


def test_lives_end_at_each_gap_and_anywhere_in_equal_parts() -> None:
    lives = lives_of(100, random.Random(1))
    assert {end: lives.count(end) for end in (*GAPS, ANYWHERE)} == dict.fromkeys((*GAPS, ANYWHERE), 20)
    assert lives == lives_of(100, random.Random(1))


LOG = [Row(partition, at, at * 7) for partition in range(2) for at in range(3)]


@pytest.mark.parametrize(
    ("table", "reported"),
    [
        (LOG, []),
        ([*LOG, LOG[2]], ["2 times: partition=0 transaction_id=2"]),
        (LOG[1:], ["missing: partition=0 transaction_id=0"]),
        ([*LOG[:-1], LOG[-1]._replace(checksum=1)], ["other bytes: partition=1 transaction_id=2"]),
        ([*LOG, Row(0, 3, 0)], ["not in the log: partition=0 transaction_id=3"]),
        ([*LOG, Row(7, 0, 0)], ["not in the log: partition=7 transaction_id=0"]),
        ([*LOG[:-1], LOG[-1]._replace(checksum=1), LOG[-1]], ["2 times: partition=1 transaction_id=2"]),
    ],
)
def test_the_checker_names_what_differs(table: list[Row], reported: list[str]) -> None:
    assert differences(LOG, table, {0: 2, 1: 2}) == reported


def test_the_checker_compares_marks_and_reports_ten_differences_at_most() -> None:
    assert differences(LOG, LOG, {0: 2, 1: 1}) == ["mark: partition=1 table=1 log=2"]
    assert differences(LOG, LOG, {0: 2, 1: 2, 5: 0}) == ["mark: partition=5 table=0 log=None"]
    many = [Row(0, at, 0) for at in range(30)]
    assert differences(many, [], {0: 29})[-1] == "and 20 more"
