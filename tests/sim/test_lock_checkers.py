"""The exact check of lock tables against tables made by hand: four entries, so that they forget, a hand-over, and clients under their own locks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from verification.simulation.history import Evidence, History, SessionOpened
from verification.simulation.lock_checkers import rejections_have_a_reason
from verification.simulation.lock_orders import JudgedAppend, JudgedFrame, LockOrder, RejectionSent

A, B, C, D = 101, 102, 103, 104

OPENED_AT = 9
CLOSED_AT = 14


def _frame(client_id: int, sequence: int, mark: int, *, own: bool = False, **columns: Any) -> JudgedFrame:
    return JudgedFrame(client_id, 1, locking=True, appends=(JudgedAppend(sequence, None, mark, own, **columns),))


FIRST = (
    _frame(7, 1, 9, write=(A,), transaction_id=10),
    _frame(7, 2, 10, write=(B,), transaction_id=11),  # half full: a generation ends
    _frame(8, 1, 9, read=(A,), winner=10, holder=A),  # remembered in the generation before
    RejectionSent(1.0, 8, 1, 1, 10),
    _frame(7, 3, 11, write=(C,), append=(D,), transaction_id=12),  # the second ends, and the first is forgotten: the floor is 11
    _frame(8, 2, 9, write=(A,), winner=11, holder=A),
    _frame(8, 3, 11, write=(A,), transaction_id=13),
    RejectionSent(2.0, 8, 1, 2, 13),  # of the newest writer by now
    _frame(7, 4, 9, own=True, write=(C,), transaction_id=14),  # only its own client wrote it; the third ends: the floor is 12
    _frame(8, 4, 9, own=True, write=(C,), winner=14, holder=C),
    RejectionSent(3.0, 8, 1, 4, 14),
)
THIRD_FRAME, SECOND_FLOOR, OWN, FOREIGN = 2, 5, 8, 9

SECOND = (
    _frame(9, 1, 12, write=(D,), transaction_id=15),
    _frame(9, 2, 12, read=(A,), winner=13, holder=A),
    RejectionSent(4.0, 9, 1, 2, 13),
)


def _sound() -> Evidence:
    """An owner that opened at 9 and closed at 14, and the one after it, which began with the locks that the first left."""
    first = LockOrder(0, OPENED_AT, session=1, floor=OPENED_AT, events=list(FIRST))
    second = LockOrder(0, CLOSED_AT, session=2, floor=12, writers={A: 13, C: 14}, events=list(SECOND))
    sessions = [SessionOpened(0.0, 0, 1, OPENED_AT), SessionOpened(3.5, 0, 2, CLOSED_AT)]
    history = History(sessions=sessions, lock_orders=[first, second])
    return Evidence(history, {0: 3}, {}, {}, healed_s=5.0, first_append_s={}, heal_bound_s=12.0, lock_entries_max=4)


def _alter(evidence: Evidence, order: int, place: int, **columns: Any) -> None:
    """Changes the only transaction of a frame."""
    frame = evidence.history.lock_orders[order].events[place]
    assert isinstance(frame, JudgedFrame)
    evidence.history.lock_orders[order].events[place] = replace(frame, appends=(replace(frame.appends[0], **columns),))


def _wrong_winner(evidence: Evidence) -> None:
    _alter(evidence, 1, 1, winner=12)


def _no_writer_above_the_mark(evidence: Evidence) -> None:
    _alter(evidence, 1, 1, mark=13)


def _no_lock_checked(evidence: Evidence) -> None:
    _alter(evidence, 1, 1, read=(), append=(A,))


def _lost_another_lock(evidence: Evidence) -> None:
    _alter(evidence, 1, 1, read=(A, D), holder=D, winner=13)


def _missed_conflict(evidence: Evidence) -> None:
    _alter(evidence, 1, 1, winner=None, holder=None, transaction_id=16)


def _not_decided(evidence: Evidence) -> None:
    _alter(evidence, 1, 1, winner=None, holder=None)


def _id_left_out(evidence: Evidence) -> None:
    _alter(evidence, 1, 0, transaction_id=16)


def _forgotten_too_early(evidence: Evidence) -> None:
    _alter(evidence, 0, THIRD_FRAME, winner=11)


def _forgotten_too_late(evidence: Evidence) -> None:
    _alter(evidence, 0, SECOND_FLOOR, winner=10)


def _floor_one_too_high(evidence: Evidence) -> None:
    _alter(evidence, 0, SECOND_FLOOR, winner=12)


def _own_write_is_foreign(evidence: Evidence) -> None:
    _alter(evidence, 0, OWN, transaction_id=None, winner=12, holder=C)


def _foreign_write_is_own(evidence: Evidence) -> None:
    _alter(evidence, 0, FOREIGN, winner=None, holder=None, transaction_id=15)


def _begins_one_too_low(evidence: Evidence) -> None:
    evidence.history.lock_orders[0].floor = OPENED_AT - 1


def _begins_where_nothing_opened(evidence: Evidence) -> None:
    order = evidence.history.lock_orders[0]
    order.floor = order.high_water_mark = OPENED_AT - 1


def _handed_floor_one_too_high(evidence: Evidence) -> None:
    evidence.history.lock_orders[1].floor = 13


def _handed_lock_left_out(evidence: Evidence) -> None:
    del evidence.history.lock_orders[1].writers[C]


def _handed_of_another_partition(evidence: Evidence) -> None:
    evidence.history.lock_orders[0].partition = 1
    evidence.history.sessions.append(SessionOpened(0.0, 1, 1, OPENED_AT))


def _reported_of_another(evidence: Evidence) -> None:
    evidence.history.lock_orders[1].events[2] = RejectionSent(4.0, 9, 1, 2, 12)


def _reported_twice(evidence: Evidence) -> None:
    evidence.history.lock_orders[1].events.append(RejectionSent(4.1, 9, 1, 2, 13))


def _reported_and_not_rejected(evidence: Evidence) -> None:
    evidence.history.lock_orders[1].events[2] = RejectionSent(4.0, 9, 1, 1, 15)


SPOILED = [
    _wrong_winner,
    _no_writer_above_the_mark,
    _no_lock_checked,
    _lost_another_lock,
    _missed_conflict,
    _not_decided,
    _id_left_out,
    _forgotten_too_early,
    _forgotten_too_late,
    _floor_one_too_high,
    _own_write_is_foreign,
    _foreign_write_is_own,
    _begins_one_too_low,
    _begins_where_nothing_opened,
    _handed_floor_one_too_high,
    _handed_lock_left_out,
    _handed_of_another_partition,
    _reported_of_another,
    _reported_twice,
    _reported_and_not_rejected,
]


def test_sound_lock_tables_pass() -> None:
    assert list(rejections_have_a_reason(_sound())) == []


@pytest.mark.parametrize("entries_max", [8, 1000])
def test_a_larger_table_must_not_have_forgotten(entries_max: int) -> None:
    assert list(rejections_have_a_reason(replace(_sound(), lock_entries_max=entries_max)))


def test_a_table_may_begin_without_the_locks_that_were_left() -> None:
    evidence = _sound()
    second = evidence.history.lock_orders[1]
    second.floor, second.writers, second.events = CLOSED_AT, {}, [_frame(9, 1, 12, write=(D,), winner=CLOSED_AT, holder=D)]
    assert list(rejections_have_a_reason(evidence)) == []


@pytest.mark.parametrize("spoil", SPOILED, ids=[spoil.__name__ for spoil in SPOILED])
def test_a_spoiled_lock_table_is_noticed(spoil: Callable[[Evidence], None]) -> None:
    evidence = _sound()
    spoil(evidence)
    assert list(rejections_have_a_reason(evidence))
