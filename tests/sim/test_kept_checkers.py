"""The checkers of topics that are trimmed, against evidence made by hand: sound evidence passes, and each checker notices one spoiled place."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from verification.simulation.history import Attempt, Evidence, History
from verification.simulation.kept_checkers import KEPT_CHECKERS
from verification.simulation.kept_evidence import KeptEvidence
from verification.simulation.kept_mix import KeptTopic
from waltz_log.client import Transaction
from waltz_log.core.formats.records import encode_record
from waltz_log.core.topics.catalogue import Policies

FIRST = 2
"""What is below was trimmed; the subscriber read it before."""


def _data(number: int) -> bytes:
    return b"#%d|v" % number


def _hold(kept: KeptEvidence, at: int, transaction: Transaction) -> None:
    kept.log[at] = (transaction.timestamp_ms, transaction.data)
    kept.transactions[at] = transaction


def _stored(kept: KeptEvidence) -> bytes:
    return b"".join(
        encode_record(each.client_id, each.generation, 0, each.sequence, each.header, each.data, each.transaction_id)
        for at, each in sorted(kept.transactions.items())
        if at >= FIRST
    )


def _sound() -> Evidence:
    """Four transactions under one lock, one after the other, and a fifth attempt that was rejected."""
    kept = KeptEvidence(0, KeptTopic("regular", Policies()), first=FIRST, mark=3)
    attempts: list[Attempt] = []
    for number in range(5):
        attempt = Attempt(number, "c", "kept", 0, started_s=float(number), timeout_s=1.0, mark=number - 1, write=("k",), answers=1)
        attempt.ended_s, kept.appended[number] = number + 0.5, _data(number)
        attempts.append(attempt)
        if number < 4:
            attempt.outcome, attempt.transaction_id = "committed", number
            _hold(kept, number, Transaction(number, 1000 + number, 0, _data(number), 7, 1, number + 1))
    attempts[4].outcome, attempts[4].winner = "rejected", 3
    kept.stored = dict.fromkeys("xyz", _stored(kept))
    kept.firsts = dict.fromkeys("xyz", FIRST)
    return Evidence(History(attempts=attempts), {0: 3}, {}, {}, healed_s=5.0, first_append_s={0: 0.1}, heal_bound_s=12.0, kept=[kept])


def _kept(evidence: Evidence) -> KeptEvidence:
    return evidence.kept[0]


def _not_read(evidence: Evidence) -> None:
    del _kept(evidence).log[1]
    del _kept(evidence).transactions[1]


def _complaint(evidence: Evidence) -> None:
    _kept(evidence).complaints.append("the subscriber got 3 where 2 was next")


def _acknowledged_is_another(evidence: Evidence) -> None:
    _hold(_kept(evidence), 1, _kept(evidence).transactions[1]._replace(data=b"#9|else"))


def _acknowledged_was_trimmed_unread(evidence: Evidence) -> None:
    evidence.history.attempts[1].transaction_id = 17


def _rejected_appears(evidence: Evidence) -> None:
    _hold(_kept(evidence), 1, _kept(evidence).transactions[1]._replace(data=_data(4)))


def _replica_trimmed_too_far(evidence: Evidence) -> None:
    _kept(evidence).firsts["y"] = FIRST + 1


def _replica_holds_another(evidence: Evidence) -> None:
    other = _kept(evidence).transactions[3]._replace(generation=2)
    spoiled = _sound()
    _hold(_kept(spoiled), 3, other)
    _kept(evidence).stored = dict.fromkeys("xyz", _stored(_kept(spoiled)))


def _attempt_twice(evidence: Evidence) -> None:
    _hold(_kept(evidence), 1, _kept(evidence).transactions[1]._replace(data=_data(0)))


def _request_twice(evidence: Evidence) -> None:
    _hold(_kept(evidence), 1, _kept(evidence).transactions[1]._replace(sequence=1))


def _out_of_order(evidence: Evidence) -> None:
    one, other = evidence.history.attempts[0], evidence.history.attempts[2]
    one.started_s, one.ended_s, other.started_s, other.ended_s = 8.0, 8.5, 7.0, 7.5


def _generation_falls(evidence: Evidence) -> None:
    _hold(_kept(evidence), 0, _kept(evidence).transactions[0]._replace(generation=2))


def _missed_conflict_below_what_is_retained(evidence: Evidence) -> None:
    evidence.history.attempts[1].mark = -1


SPOILED: list[tuple[Callable[[Evidence], None], str]] = [
    (_not_read, "kept_logs_are_whole"),
    (_complaint, "kept_logs_are_whole"),
    (_acknowledged_is_another, "kept_logs_are_whole"),
    (_acknowledged_was_trimmed_unread, "kept_logs_are_whole"),
    (_rejected_appears, "kept_logs_are_whole"),
    (_replica_trimmed_too_far, "kept_logs_are_whole"),
    (_replica_holds_another, "kept_logs_are_whole"),
    (_attempt_twice, "kept_logs_have_no_duplicates"),
    (_request_twice, "kept_logs_have_no_duplicates"),
    (_out_of_order, "kept_logs_are_in_order"),
    (_generation_falls, "kept_logs_are_in_order"),
    (_missed_conflict_below_what_is_retained, "kept_locks_are_serializable"),
]

CHECKERS = {checker.__name__: checker for checker in KEPT_CHECKERS}


def test_sound_evidence_passes() -> None:
    assert [wrong for checker in KEPT_CHECKERS for wrong in checker(_sound())] == []


@pytest.mark.parametrize(("spoil", "checker"), SPOILED, ids=[spoil.__name__ for spoil, _ in SPOILED])
def test_spoiled_evidence_is_noticed(spoil: Callable[[Evidence], None], checker: str) -> None:
    evidence = _sound()
    spoil(evidence)
    assert list(CHECKERS[checker](evidence))
