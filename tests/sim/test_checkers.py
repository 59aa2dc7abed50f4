"""Each checker against evidence made by hand: a sound history passes, and one spoiled in one place is noticed by the checker it concerns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from verification.simulation.checkers import CHECKERS, check
from verification.simulation.history import (
    Acknowledgment,
    Attempt,
    Evidence,
    History,
    MarkSeen,
    MarkSent,
    MemoryLost,
    MetadataWrite,
    OperationFailed,
    QuotaEvent,
    ReplicaOpened,
    Seen,
    SessionOpened,
    SyncFailed,
)
from verification.simulation.kept_checkers import KEPT_CHECKERS
from verification.simulation.lock_orders import JudgedAppend, JudgedFrame, LockOrder, RejectionSent
from waltz_log.client import Transaction
from waltz_log.client.transactions.transaction import lock_hash
from waltz_log.core.formats.records import encode_record
from waltz_log.core.metadata import PartitionMetadata, ReplicaState
from waltz_log.server.base.settings import QuotaSettings


def _transaction(at: int, *, reported: str = "", generation: int = 1, sequence: int | None = None) -> Transaction:
    return Transaction(at, 1000 + at, 0, f"{at}|{reported}|".encode(), 7, generation, at + 1 if sequence is None else sequence)


def _stored(log: Sequence[Transaction]) -> bytes:
    """As a replica of partition 0 serves it."""
    return b"".join(encode_record(each.client_id, each.generation, 0, each.sequence, each.header, each.data, each.transaction_id) for each in log)


def _attempt(number: int) -> Attempt:
    attempt = Attempt(number, "c", "locker", 0, started_s=float(number), timeout_s=1.0, mark=number - 1, write=("a",), answers=1)
    attempt.ended_s, attempt.outcome, attempt.transaction_id = number + 0.5, "committed", number
    return attempt


A_LOCK = (int.from_bytes(lock_hash(("l", "a")), signed=True),)


def _lock_order() -> LockOrder:
    """How the owner came to what `_sound` returns."""
    order = LockOrder(0, high_water_mark=-1, session=1)
    for number in range(3):
        append = JudgedAppend(number + 1, number, number - 1, own=False, write=A_LOCK, transaction_id=number)
        order.events.append(JudgedFrame(7, 1, locking=True, appends=(append,)))
    loser = JudgedAppend(1, 3, 1, own=False, write=A_LOCK, winner=2, holder=A_LOCK[0])
    order.events += [JudgedFrame(8, 1, locking=True, appends=(loser,)), RejectionSent(2.55, 8, 1, 1, 2)]
    return order


def _sound() -> Evidence:
    """Three transactions one after the other, a fourth that lost against the third, three replicas and a reader."""
    log = [_transaction(at, reported=f"k={at + 1}") for at in range(3)]
    loser = Attempt(3, "d", "locker", 0, started_s=2.1, timeout_s=1.0, mark=1, write=("a",), answers=1)
    loser.ended_s, loser.outcome, loser.winner = 2.6, "rejected", 2
    acknowledged = [Acknowledgment(at + 0.3, name, 1, 0, at) for at in range(3) for name in ("x", "y", "z")]
    history = History(
        attempts=[*(_attempt(number) for number in range(3)), loser],
        seen=[Seen("r", 1, 0, 4.0, -1, log)],
        marks=[MarkSeen("r", 0, 3.0, 1), MarkSeen("r", 0, 4.0, 2)],
        acknowledgments=acknowledged,
        metadata=[MetadataWrite(0.0, "/store/partition/0", PartitionMetadata(1, 1, {}).to_bytes(), None, 0)],
        sessions=[SessionOpened(0.0, 0, 1, -1)],
        lock_orders=[_lock_order()],
    )
    return Evidence(
        history,
        {0: 3},
        {0: log},
        {0: dict.fromkeys("xyz", _stored(log))},
        healed_s=5.0,
        first_append_s={0: 0.1},
        heal_bound_s=12.0,
        loss_window_s={0: 0.5},
        quota=QuotaSettings(transactions_per_s=10, bytes_per_s=2_000, burst_s=0.5),
    )


def _gap(evidence: Evidence) -> None:
    del evidence.logs[0][1]


def _other_content(evidence: Evidence) -> None:
    evidence.history.seen.append(Seen("s", 2, 0, 5.0, 1, [_transaction(2, reported="else")]))


def _lost(evidence: Evidence) -> None:
    del evidence.logs[0][2]


def _rejected_appears(evidence: Evidence) -> None:
    evidence.logs[0].append(_of_attempt(3))


def _of_attempt(number: int) -> Transaction:
    return Transaction(number, 1000 + number, 0, f"{number}||".encode(), 7, 1, number + 1)


def _twice(evidence: Evidence) -> None:
    evidence.logs[0].append(_transaction(2)._replace(transaction_id=3, sequence=9))


def _same_request(evidence: Evidence) -> None:
    evidence.logs[0][2] = evidence.logs[0][2]._replace(sequence=1)


def _missed_conflict(evidence: Evidence) -> None:
    evidence.history.attempts[2].mark = 0


def _mark_of_another_log(evidence: Evidence) -> None:
    evidence.history.attempts[2].mark = 1000


def _read_lock_missed(evidence: Evidence) -> None:
    attempt = evidence.history.attempts[2]
    attempt.mark, attempt.write, attempt.read = 0, (), ("a",)


def _lost_update(evidence: Evidence) -> None:
    evidence.logs[0][2] = _transaction(2, reported="k=2")


def _winner_never_came(evidence: Evidence) -> None:
    evidence.history.attempts[3].winner = 17


def _winner_is_not_in_the_log(evidence: Evidence) -> None:
    del evidence.logs[0][2]


def _reported_after_the_answer(evidence: Evidence) -> None:
    evidence.history.attempts[3].ended_s = 2.5


def _never_reported(evidence: Evidence) -> None:
    evidence.history.lock_orders[0].events.pop()


def _came_with_other_locks(evidence: Evidence) -> None:
    evidence.history.attempts[2].write = ()


def _came_with_another_mark(evidence: Evidence) -> None:
    evidence.history.attempts[3].mark = 0


def _came_as_if_its_mark_were_left_to_the_client(evidence: Evidence) -> None:
    evidence.history.attempts[3].mark = None


def _order_of_time(evidence: Evidence) -> None:
    one, other = evidence.history.attempts[0], evidence.history.attempts[2]
    one.started_s, one.ended_s, other.started_s, other.ended_s = 8.0, 8.5, 7.0, 7.5


def _ahead_of_the_majority(evidence: Evidence) -> None:
    evidence.history.acknowledgments[:] = [each for each in evidence.history.acknowledgments if each.storage == "x" or each.last < 2]


def _rejected_too_early(evidence: Evidence) -> None:
    evidence.history.attempts[3].started_s, evidence.history.attempts[3].ended_s = 1.7, 2.2


def _mark_falls(evidence: Evidence) -> None:
    evidence.history.marks.append(MarkSeen("r", 0, 5.0, 0))


def _repeat(evidence: Evidence) -> None:
    evidence.history.seen.append(Seen("r", 1, 0, 5.0, 2, [_transaction(2, reported="k=3")]))


def _older_generation(evidence: Evidence) -> None:
    evidence.logs[0][2] = evidence.logs[0][2]._replace(generation=0)


def _time_goes_back(evidence: Evidence) -> None:
    evidence.logs[0][2] = evidence.logs[0][2]._replace(timestamp_ms=1)


def _replicas_differ(evidence: Evidence) -> None:
    evidence.replicas[0]["y"] = b"other"


def _replicas_hold_another(evidence: Evidence) -> None:
    evidence.replicas[0] = dict.fromkeys("xyz", _stored([*evidence.logs[0][:2], _transaction(2, reported="k=3", generation=2)]))


def _replicas_hold_less(evidence: Evidence) -> None:
    evidence.replicas[0] = dict.fromkeys("xyz", _stored(evidence.logs[0][:2]))


def _replicas_hold_more(evidence: Evidence) -> None:
    evidence.replicas[0] = dict.fromkeys("xyz", _stored([*evidence.logs[0], _of_attempt(3)]))


def _replica_unreadable(evidence: Evidence) -> None:
    evidence.replicas[0]["y"] = "corrupt data"


def _never_healed(evidence: Evidence) -> None:
    evidence.first_append_s.clear()


def _acknowledged_after_a_failed_sync(evidence: Evidence) -> None:
    evidence.history.syncs_failed.append(SyncFailed(1.0, "x", 1, 0))


def _acknowledged_after_a_failed_rename(evidence: Evidence) -> None:
    evidence.history.operations_failed.append(OperationFailed(1.0, "x", 1, 0, "rename"))


def _never_synced(evidence: Evidence) -> None:
    evidence.history.acknowledgments += [Acknowledgment(6.0, "x", 1, 0, 2, 3), Acknowledgment(6.9, "x", 1, 0, 2, 4)]


def _reported_before_a_majority_received(evidence: Evidence) -> None:
    evidence.history.attempts[1].in_memory = True
    evidence.history.acknowledgments[:] = [each for each in evidence.history.acknowledgments if each.last != 1 or each.storage == "x"]


def _blind_write(evidence: Evidence) -> None:
    evidence.history.metadata.append(MetadataWrite(1.0, "/store/partition/0", PartitionMetadata(1, 2, {}).to_bytes(), -1, 1))


def _session_goes_back(evidence: Evidence) -> None:
    evidence.history.metadata.append(MetadataWrite(1.0, "/store/partition/0", PartitionMetadata(1, 0, {}).to_bytes(), 0, 1))


def _reported_and_not_recorded(evidence: Evidence) -> None:
    recorded = PartitionMetadata(1, 3, {"x": ReplicaState(2, None), "y": ReplicaState(2, None)}).to_bytes()
    evidence.history.reported_marks.append(MarkSent(1.0, 0, "x", 3, 7, recorded))


def _reported_another_mark(evidence: Evidence) -> None:
    recorded = PartitionMetadata(1, 3, {"x": ReplicaState(2, 5), "y": ReplicaState(2, None)}).to_bytes()
    evidence.history.reported_marks.append(MarkSent(1.0, 0, "x", 3, 7, recorded))


def _never_answered(evidence: Evidence) -> None:
    evidence.history.attempts[3].outcome, evidence.history.attempts[3].answers = "pending", 0


def _answered_late(evidence: Evidence) -> None:
    evidence.history.attempts[3].ended_s = 9.0


def _refused_within_the_quota(evidence: Evidence) -> None:
    evidence.history.quota_events += [QuotaEvent(0, 1.0, 4), QuotaEvent(0, 1.0, None)]


def _accepted_over_the_quota(evidence: Evidence) -> None:
    evidence.history.quota_events += [QuotaEvent(0, 1.0, 9), QuotaEvent(0, 1.3, None), QuotaEvent(0, 1.3, 1)]


def _accepted_over_the_quota_of_bytes(evidence: Evidence) -> None:
    evidence.history.quota_events += [QuotaEvent(0, 1.0, 1, 2_000), QuotaEvent(0, 1.0, 1, 100)]


def _complaint(evidence: Evidence) -> None:
    evidence.history.complaints.append("13: rotten bytes were served")


def _kept_above_every_mark(evidence: Evidence) -> None:
    evidence.history.replicas_opened.append(ReplicaOpened(1.0, "x", "x:1", 0, 2, 1, 2, 2))


def _filled_in_vain(evidence: Evidence) -> None:
    evidence.history.replicas_opened.extend(ReplicaOpened(session / 10, "x", "x:1", 0, session, -1, -1, 2) for session in range(1, 13))


SPOILED: list[tuple[Callable[[Evidence], None], str]] = [
    (_kept_above_every_mark, "only_committed_is_kept"),
    (_filled_in_vain, "fills_go_on"),
    (_refused_within_the_quota, "quotas_count_accepted_work_alone"),
    (_accepted_over_the_quota, "quotas_count_accepted_work_alone"),
    (_accepted_over_the_quota_of_bytes, "quotas_count_accepted_work_alone"),
    (_gap, "ids_are_dense"),
    (_other_content, "one_id_one_content"),
    (_lost, "acknowledged_is_in_the_log"),
    (_rejected_appears, "rejected_is_not_in_the_log"),
    (_twice, "nothing_is_in_the_log_twice"),
    (_same_request, "nothing_is_in_the_log_twice"),
    (_missed_conflict, "locks_are_serializable"),
    (_read_lock_missed, "locks_are_serializable"),
    (_mark_of_another_log, "locks_are_serializable"),
    (_lost_update, "counts_have_no_lost_update"),
    (_winner_never_came, "rejections_have_a_reason"),
    (_winner_is_not_in_the_log, "rejections_have_a_reason"),
    (_reported_after_the_answer, "rejections_have_a_reason"),
    (_never_reported, "rejections_have_a_reason"),
    (_came_with_other_locks, "rejections_have_a_reason"),
    (_came_with_another_mark, "rejections_have_a_reason"),
    (_came_as_if_its_mark_were_left_to_the_client, "rejections_have_a_reason"),
    (_order_of_time, "acknowledged_order_is_real_time"),
    (_ahead_of_the_majority, "no_reader_passes_the_majority"),
    (_rejected_too_early, "no_reader_passes_the_majority"),
    (_mark_falls, "marks_never_fall"),
    (_repeat, "streams_are_contiguous"),
    (_older_generation, "generations_never_fall"),
    (_time_goes_back, "generations_never_fall"),
    (_replicas_differ, "replicas_are_identical"),
    (_replica_unreadable, "replicas_are_identical"),
    (_replicas_hold_another, "replicas_are_identical"),
    (_replicas_hold_less, "replicas_are_identical"),
    (_replicas_hold_more, "replicas_are_identical"),
    (_never_healed, "everything_heals"),
    (_acknowledged_after_a_failed_sync, "a_failed_sync_is_final"),
    (_acknowledged_after_a_failed_rename, "a_failed_operation_is_final"),
    (_never_synced, "received_is_synced_in_time"),
    (_reported_before_a_majority_received, "no_reader_passes_the_majority"),
    (_blind_write, "metadata_is_compared_and_set"),
    (_session_goes_back, "metadata_is_compared_and_set"),
    (_reported_and_not_recorded, "reported_marks_are_recorded"),
    (_reported_another_mark, "reported_marks_are_recorded"),
    (_never_answered, "clients_keep_their_word"),
    (_answered_late, "clients_keep_their_word"),
    (_complaint, "no_client_complains"),
]


def test_a_sound_history_passes() -> None:
    assert check(_sound()) == []


@pytest.mark.parametrize(("spoil", "checker"), SPOILED, ids=[spoil.__name__ for spoil, _ in SPOILED])
def test_a_spoiled_history_is_noticed(spoil: Callable[[Evidence], None], checker: str) -> None:
    evidence = _sound()
    spoil(evidence)
    assert list(CHECKERS[checker](evidence))


def test_every_checker_has_something_to_notice() -> None:
    with_planted_bugs = {checker.__name__ for checker in KEPT_CHECKERS}  # test_kept_checkers.py, test_kept_topics.py
    assert {checker for _, checker in SPOILED} == set(CHECKERS) - with_planted_bugs


def test_appends_acknowledged_from_memory_are_lost_only_with_a_machine_in_its_window() -> None:
    def lost(**reported: object) -> list[str]:
        evidence = _sound()
        _lost(evidence)
        evidence.history.attempts[2].in_memory = bool(reported.get("in_memory", True))
        died_s = reported.get("died_s")
        if isinstance(died_s, float):
            evidence.history.memory_lost.append(MemoryLost(died_s, "x"))
        return [*CHECKERS["acknowledged_is_in_the_log"](evidence)]

    assert lost()
    assert not lost(died_s=2.9)
    assert lost(died_s=3.1)
    assert lost(died_s=1.9)
    assert lost(died_s=2.9, in_memory=False)


def test_a_client_that_was_stopped_may_be_answered_late() -> None:
    evidence = replace(_sound(), longest_pause_s=10.0)
    _answered_late(evidence)
    assert not list(CHECKERS["clients_keep_their_word"](evidence))
