"""What the calls of a journal promise one by one: order, isolation, refusals that change nothing, and failures that are final."""

from __future__ import annotations

import errno
import pickle
import tracemalloc
from collections.abc import Callable

import pytest

from waltz_log.errors import InvalidRequest, JournalFailed, TransactionTooLarge, UnknownRecord
from waltz_log.journal import Journal, JournalSettings, LoadedRecord
from waltz_log.testing.disk import Operation, SimulatedDisk

SMALL = JournalSettings(file_bytes=1024, files_max=20, files_pool=4, compact_files_min=0, replaceable_types=frozenset({9}))


def open_journal(disk: SimulatedDisk, settings: JournalSettings = SMALL) -> Journal:
    return Journal.open(disk, settings, lambda length: b"s" * length)


def reopened(disk: SimulatedDisk, journal: Journal) -> Journal:
    journal.sync()
    return open_journal(disk.crash())


def ids(journal: Journal) -> list[int]:
    return [record.record_id for record in journal.loaded.records]


# ---- records -----------------------------------------------------------------------------------------------------------------------------------


def test_live_records_are_loaded_in_the_order_of_writing() -> None:
    disk = SimulatedDisk()
    journal = open_journal(disk)
    journal.add(7, 1, b"seven")
    journal.append_all([(3, 2, b"three"), (5, 0, b""), (4, 255, b"x" * 400), (2, 1, b"y" * 700)])
    journal.update(7, 3, b"more")
    journal.delete(5)
    journal.update(3, 9, b"first")
    journal.update(3, 9, b"second")
    journal.update(7, 3, b"and more")
    again = reopened(disk, journal)
    assert again.loaded.records == [
        (7, 1, b"seven", False),
        (3, 2, b"three", False),
        (4, 255, b"x" * 400, False),
        (2, 1, b"y" * 700, False),
        (7, 3, b"more", True),
        (3, 9, b"second", True),
        (7, 3, b"and more", True),
    ]
    assert (again.loaded.record_id_max, again.loaded.unhealthy) == (7, 0)
    assert [again.read(7), again.read(3)] == [
        [(7, 1, b"seven", False), (7, 3, b"more", True), (7, 3, b"and more", True)],
        [(3, 2, b"three", False), (3, 9, b"second", True)],
    ]
    assert (5 in again, 7 in again, len(again)) == (False, True, 4)


def test_loaded_records_can_be_dropped() -> None:
    journal = open_journal(SimulatedDisk())
    journal.drop_loaded()
    with pytest.raises(InvalidRequest, match="released"):
        _ = journal.loaded


def test_an_id_can_be_used_again_after_a_delete() -> None:
    disk = SimulatedDisk()
    journal = open_journal(disk)
    for round_number in range(30):
        journal.add(1, 1, b"%d" % round_number)
        journal.update(1, 1, bytes(60))
        if round_number < 29:
            journal.delete(1)
    assert reopened(disk, journal).loaded.records == [(1, 1, b"29", False), (1, 1, bytes(60), True)]


def test_only_what_was_synced_survives_the_machine() -> None:
    disk = SimulatedDisk()
    journal = open_journal(disk)
    journal.add(1, 1, b"sure")
    journal.sync()
    journal.add(2, 1, b"not sure")
    assert ids(open_journal(disk.crash())) == [1]


def test_a_full_buffer_is_written_and_not_synced() -> None:
    disk = SimulatedDisk()
    journal = open_journal(disk, SMALL.model_copy(update={"file_bytes": 65536, "buffer_bytes": 4096}))
    before = [operation.kind for operation in disk.operations]
    for record_id in range(100):
        journal.add(record_id, 1, bytes(100))
    kinds = [operation.kind for operation in disk.operations][len(before) :]
    assert kinds == ["write"] * (100 * 122 // 4096)
    assert ids(open_journal(disk.crash())) == []


def test_opening_makes_sure_of_what_it_reports() -> None:
    disk = SimulatedDisk()
    journal = open_journal(disk)
    journal.add(1, 1, b"in the page cache")
    journal.writer.write()
    killed = disk.crash(keep=True)
    assert ids(open_journal(killed)) == [1]
    assert ids(open_journal(killed.crash())) == [1]


WRONG: dict[str, tuple[Callable[[Journal], object], type[Exception]]] = {
    "an add of what lives": (lambda journal: journal.add(1, 1, b""), InvalidRequest),
    "a block with what lives": (lambda journal: journal.append_all([(50, 1, b""), (1, 1, b"")]), InvalidRequest),
    "a block with one twice": (lambda journal: journal.append_all([(50, 1, b""), (50, 1, b"")]), InvalidRequest),
    "a block with one too large": (lambda journal: journal.append_all([(50, 1, b""), (51, 1, bytes(1000))]), TransactionTooLarge),
    "a block with a wrong type": (lambda journal: journal.append_all([(50, 1, b""), (51, 256, b"")]), InvalidRequest),
    "an update of what does not": (lambda journal: journal.update(99, 1, b""), UnknownRecord),
    "a delete of what does not": (lambda journal: journal.delete(99), UnknownRecord),
    "a read of what does not": (lambda journal: journal.read(99), UnknownRecord),
    "a record above a file": (lambda journal: journal.add(50, 1, bytes(1020 - 21)), TransactionTooLarge),
    "a negative id": (lambda journal: journal.add(-1, 1, b""), InvalidRequest),
    "an id beyond eight bytes": (lambda journal: journal.add(1 << 63, 1, b""), InvalidRequest),
    "a type beyond a byte": (lambda journal: journal.update(1, 256, b""), InvalidRequest),
    "a transaction that is not": (lambda journal: journal.commit(99), UnknownRecord),
    "a rollback of what is not": (lambda journal: journal.rollback(99), UnknownRecord),
    "a transaction id that was": (lambda journal: journal.begin(journal.begin()), InvalidRequest),
}


@pytest.mark.parametrize(("call", "error"), WRONG.values(), ids=WRONG)
def test_a_wrong_call_is_refused_and_changes_nothing(call: Callable[[Journal], object], error: type[Exception]) -> None:
    disk = SimulatedDisk()
    journal = open_journal(disk)
    journal.add(1, 1, b"one")
    appended = journal.statistics().appended_bytes
    with pytest.raises(error):
        call(journal)
    assert journal.statistics().appended_bytes == appended
    journal.add(2, 1, b"two")
    assert ids(reopened(disk, journal)) == [1, 2]


def test_a_record_that_fills_a_file_to_the_last_byte_fits() -> None:
    disk = SimulatedDisk()
    journal = open_journal(disk)
    for record_id in range(3):
        journal.add(record_id, 1, bytes([record_id]) * (1020 - 22))
    for _ in range(3):
        journal.sync()
        disk = disk.crash()
        journal = open_journal(disk)
    assert [record.body for record in journal.loaded.records] == [bytes([n]) * 998 for n in range(3)]


def test_memory_is_bounded_by_what_lives() -> None:
    disk = SimulatedDisk()
    journal = open_journal(disk, SMALL.model_copy(update={"file_bytes": 16 * 1024}))

    def churn(first: int) -> None:
        for record_id in range(first, first + 3000):
            journal.add(record_id, 1, bytes(100))
            journal.update(record_id, 9, b"once")
            journal.update(record_id, 9, b"twice")
            journal.delete(record_id)
        disk.operations.clear()

    churn(0)
    tracemalloc.start()
    try:
        churn(10_000)
        before = tracemalloc.get_traced_memory()[0]
        churn(20_000)
        churn(30_000)
        assert tracemalloc.get_traced_memory()[0] - before < 64 * 1024
    finally:
        tracemalloc.stop()


# ---- transactions ------------------------------------------------------------------------------------------------------------------------------


def test_a_transaction_counts_when_it_is_committed_and_as_a_whole() -> None:
    disk = SimulatedDisk()
    journal = open_journal(disk)
    journal.append_all([(1, 1, b"one"), (2, 1, b"two"), (3, 1, b"three")])
    transaction = journal.begin()
    for record_id in range(10, 30):
        journal.add_in(transaction, record_id, 1, bytes(150))
    journal.update_in(transaction, 1, 1, b"changed")
    journal.delete_in(transaction, 2)
    journal.add_in(transaction, 40, 1, b"short-lived")
    journal.delete_in(transaction, 40)
    assert (10 in journal, 2 in journal, len(journal)) == (False, True, 3)
    journal.commit(transaction)
    assert (10 in journal, 2 in journal, len(journal)) == (True, False, 22)
    again = reopened(disk, journal)
    assert ids(again) == [1, 3, *range(10, 30), 1]
    assert again.loaded.failed_transactions == []


def test_a_transaction_that_was_open_counts_nothing_and_is_reported() -> None:
    disk = SimulatedDisk()
    journal = open_journal(disk)
    journal.add(1, 1, b"one")
    first, second, third = journal.begin(), journal.begin(), journal.begin()
    for record_id in range(10, 20):
        journal.add_in(first, record_id, 1, bytes(100))
        journal.add_in(third, 10 * record_id, 1, bytes(100))
    journal.delete_in(second, 1)
    journal.rollback(third)
    again = reopened(disk, journal)
    assert ids(again) == [1]
    assert again.loaded.failed_transactions == [first, second]
    assert again.loaded.transaction_id_max == third
    assert again.begin() == third + 1
    with pytest.raises(UnknownRecord):
        again.commit(first)


def test_records_in_the_hands_of_a_transaction_are_out_of_reach_for_others() -> None:
    journal = open_journal(SimulatedDisk())
    journal.append_all([(1, 1, b"one"), (2, 1, b"two")])
    mine, other = journal.begin(), journal.begin()
    journal.delete_in(mine, 1)
    journal.add_in(mine, 3, 1, b"three")
    calls: list[Callable[[], object]] = [
        lambda: journal.update(1, 1, b""),
        lambda: journal.delete(1),
        lambda: journal.add(3, 1, b""),
        lambda: journal.append_all([(3, 1, b"")]),
        lambda: journal.delete_in(other, 1),
    ]
    for call in calls:
        with pytest.raises(InvalidRequest):
            call()
    journal.rollback(mine)
    journal.delete(1)
    journal.add(3, 1, b"")
    journal.rollback(other)


def test_an_error_in_any_record_of_a_transaction_fails_it() -> None:
    disk = SimulatedDisk()
    journal = open_journal(disk)
    journal.add(1, 1, b"one")
    calls: list[Callable[[int], object]] = [
        lambda transaction: journal.add_in(transaction, 6, 1, bytes(2000)),
        lambda transaction: journal.delete_in(transaction, 99),
        lambda transaction: journal.add_in(transaction, 5, 1, b"twice"),
        lambda transaction: journal.update_in(transaction, 1, 300, b""),
    ]
    for wrong in calls:
        transaction = journal.begin()
        journal.add_in(transaction, 5, 1, b"good")
        with pytest.raises(InvalidRequest):
            wrong(transaction)
        for end in (journal.commit, journal.prepare):
            with pytest.raises(InvalidRequest, match="failed and can be rolled back"):
                end(transaction)
        with pytest.raises(InvalidRequest, match="failed"):
            journal.add_in(transaction, 7, 1, b"")
        journal.rollback(transaction)
    assert ids(reopened(disk, journal)) == [1]


def test_a_prepared_transaction_stays_in_doubt_over_restarts_until_it_is_decided() -> None:
    for decide, expected in (("commit", [2, 10, 11]), ("rollback", [1, 2])):
        disk = SimulatedDisk()
        journal = open_journal(disk)
        journal.append_all([(1, 1, b"one"), (2, 1, b"two")])
        transaction, empty = journal.begin(), journal.begin()
        journal.add_in(transaction, 10, 4, b"ten")
        journal.add_in(transaction, 11, 4, bytes(900))
        journal.delete_in(transaction, 1)
        journal.prepare(transaction)
        journal.prepare(empty)
        for _ in range(2):
            journal.sync()
            disk = disk.crash()
            journal = open_journal(disk)
            assert ids(journal) == [1, 2]
            reported, reported_empty = journal.loaded.prepared
            assert (reported.transaction_id, reported.deletes) == (transaction, [1])
            assert reported.records == [LoadedRecord(10, 4, b"ten", False), LoadedRecord(11, 4, bytes(900), False)]
            assert (reported_empty.transaction_id, reported_empty.records, reported_empty.deletes) == (empty, [], [])
            with pytest.raises(InvalidRequest, match="belongs to the open transaction"):
                journal.delete(1)
            with pytest.raises(InvalidRequest, match="prepared"):
                journal.add_in(transaction, 12, 1, b"")
        getattr(journal, decide)(transaction)
        getattr(journal, decide)(empty)
        for _ in range(2):
            journal.sync()
            disk = disk.crash()
            journal = open_journal(disk)
            assert ids(journal) == expected
            assert journal.loaded.prepared == []


# ---- failures ----------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["write", "sync"])
def test_a_failed_write_or_sync_is_final_and_nothing_is_synced_again(kind: str) -> None:
    disk = SimulatedDisk()
    journal = open_journal(disk)
    journal.add(1, 1, b"sure")
    journal.sync()
    transaction = journal.begin()
    journal.add_in(transaction, 2, 1, b"lost")

    def before(operation: Operation) -> None:
        if operation.kind == kind:
            raise OSError(errno.EIO, "input/output error")

    disk.before = before
    with pytest.raises(JournalFailed, match="input/output error") as caught:
        journal.sync()
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), JournalFailed)
    disk.before = lambda operation: None
    operations = len(disk.operations)
    for call in (
        journal.sync,
        lambda: journal.add(3, 1, b""),
        lambda: journal.append_all([(3, 1, b"")]),
        lambda: journal.delete(1),
        lambda: journal.commit(transaction),
        lambda: journal.rollback(transaction),
        journal.begin,
        journal.reclaim,
        journal.compact,
        lambda: journal.read(1),
    ):
        with pytest.raises(JournalFailed):
            call()
    journal.close()
    assert len(disk.operations) == operations
    assert ids(open_journal(disk.crash())) == [1]


def test_a_closed_journal_refuses_and_gives_the_directory_back() -> None:
    disk = SimulatedDisk()
    journal = open_journal(disk)
    journal.add(1, 1, b"one")
    journal.close()
    journal.close()
    with pytest.raises(InvalidRequest, match="closed"):
        journal.add(2, 1, b"")
    assert ids(open_journal(disk)) == [1]


def test_an_opening_that_fails_gives_the_directory_back() -> None:
    disk = SimulatedDisk()

    def before(operation: Operation) -> None:
        raise OSError(errno.EIO, "input/output error")

    disk.before = before
    with pytest.raises(JournalFailed, match="cannot be opened"):
        open_journal(disk)
    disk.before = lambda operation: None
    open_journal(disk).close()
