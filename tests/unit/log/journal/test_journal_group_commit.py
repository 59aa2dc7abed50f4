"""Many threads on one journal: shared syncs, their bounds, callbacks, failures, and that no caller learns it before the medium has it."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from waltz_log.errors import InvalidRequest, JournalFailed, JournalFull, UnknownRecord, WaltzError
from waltz_log.filesystem import FileSystemDisk
from waltz_log.journal import GroupCommitJournal, GroupCommitSettings, Journal, JournalSettings
from waltz_log.testing.disk import Operation, SimulatedDisk

SETTINGS = JournalSettings(file_bytes=64 * 1024, compact_files_min=0)
PATIENT = GroupCommitSettings(flush_s=60.0)
TIMEOUT_S = 30.0


def open_journal(disk: SimulatedDisk, settings: JournalSettings = SETTINGS) -> Journal:
    return Journal.open(disk, settings, lambda length: b"s" * length)


def in_threads(count: int, work: Callable[[int], None]) -> None:
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
        assert not thread.is_alive(), "a caller hangs"
    if failures:
        raise failures[0]


class Gate:
    """Holds syncs of the data up, so that a test says what happens meanwhile."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.open = threading.Event()
        self.reached = threading.Semaphore(0)
        self.syncs = 0
        disk.before = self._before

    def _before(self, operation: Operation) -> None:
        if operation.kind == "sync" and operation.path.endswith("0001.jrh"):
            self.syncs += 1
            self.reached.release()
            assert self.open.wait(TIMEOUT_S)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_acknowledged_records_survive_and_threads_share_syncs() -> None:
    disk = SimulatedDisk()

    def slow(operation: Operation) -> None:
        if operation.kind == "sync":
            time.sleep(0.002)

    journal = GroupCommitJournal(open_journal(disk))
    disk.before = slow
    acknowledged: list[int] = []

    def work(number: int) -> None:
        for n in range(25):
            journal.add(100 * number + n, 1, b"%d" % n)
            acknowledged.append(100 * number + n)

    in_threads(8, work)
    syncs = journal.statistics().syncs
    assert syncs < 150, "two hundred records, each waited for"
    found = {record.record_id for record in open_journal(disk.crash()).loaded.records}
    assert found == set(acknowledged)
    assert len(found) == 200


def test_writers_fill_the_next_group_while_one_is_synced() -> None:
    disk = SimulatedDisk()
    journal = GroupCommitJournal(open_journal(disk), PATIENT)
    gate = Gate(disk)
    first = threading.Thread(target=journal.add, args=(0, 1, b"leads"))
    first.start()
    assert gate.reached.acquire(timeout=TIMEOUT_S)
    followers = [threading.Thread(target=journal.add, args=(n, 1, b"follows")) for n in range(1, 20)]
    for thread in followers:
        thread.start()
    wait_until(lambda: journal.statistics().records == 20)
    assert gate.syncs == 1
    assert all(thread.is_alive() for thread in [first, *followers]), "nobody is told before the medium has it"
    gate.open.set()
    for thread in [first, *followers]:
        thread.join(TIMEOUT_S)
    assert gate.syncs == 2
    journal.close()


def test_a_single_caller_leads_its_own_sync() -> None:
    disk = SimulatedDisk()
    journal = GroupCommitJournal(open_journal(disk))
    synced_by: list[str] = []

    def before(operation: Operation) -> None:
        if operation.kind == "sync":
            synced_by.append(threading.current_thread().name)

    wait_until(lambda: journal.statistics().files_ready == 2)
    disk.before = before
    for n in range(5):
        journal.add(n, 1, b"x")
    assert synced_by == [threading.current_thread().name] * 5
    journal.close()


def _synced(journal: GroupCommitJournal, times: int) -> bool:
    return journal.statistics().syncs == times


def test_a_record_without_a_waiter_is_synced_by_the_time_bound() -> None:
    disk = SimulatedDisk()
    journal = GroupCommitJournal(open_journal(disk), GroupCommitSettings(flush_s=0.02))
    for round_number in range(3):
        journal.add(round_number, 1, b"x", sync=False)
        wait_until(partial(_synced, journal, round_number + 1))
    assert [record.record_id for record in open_journal(disk.crash()).loaded.records] == [0, 1, 2]


def test_callbacks_come_in_order_when_the_record_is_on_the_medium() -> None:
    disk = SimulatedDisk()
    journal = GroupCommitJournal(open_journal(disk), PATIENT)
    called: list[tuple[int, bool]] = []
    all_called = threading.Event()

    def on_done(number: int) -> Callable[[WaltzError | None], None]:
        def call(error: WaltzError | None) -> None:
            assert error is None
            medium = disk.fork().crash().content("journal-0000000001.jrh")
            called.append((number, b"body-%d-" % number in medium))
            if number == 49:
                all_called.set()

        return call

    for n in range(50):
        journal.add(n, 1, b"body-%d-" % n, on_done=on_done(n))
    assert all_called.wait(TIMEOUT_S)
    assert called == [(n, True) for n in range(50)]
    assert journal.statistics().syncs < 50
    journal.close()


def test_a_callback_may_append_and_a_failing_one_harms_no_other() -> None:
    journal = GroupCommitJournal(open_journal(SimulatedDisk()))
    done = threading.Event()

    def chain(error: WaltzError | None) -> None:
        journal.add(3, 1, b"from a callback", on_done=lambda error: done.set())

    def broken(error: WaltzError | None) -> None:
        raise ValueError("a defect of the caller's")

    journal.add(1, 1, b"x", on_done=broken)
    journal.add(2, 1, b"x", on_done=chain)
    assert done.wait(TIMEOUT_S)
    journal.close()


def test_a_sync_waits_for_more_records_within_the_time_of_the_last_sync() -> None:
    disk = SimulatedDisk()
    began: list[float] = []

    def before(operation: Operation) -> None:
        if operation.kind == "sync":
            began.append(time.monotonic())
            time.sleep(0.06)

    journal = GroupCommitJournal(open_journal(disk), GroupCommitSettings(linger_s=0.1))
    wait_until(lambda: journal.statistics().files_ready == 2)
    disk.before = before
    for n in range(9):
        journal.add(n, 1, b"x")
    gaps = [later - earlier for earlier, later in pairwise(began)]
    assert len(gaps) == 8
    assert 0.099 <= min(gaps) < 0.155, "the wait runs from the beginning of the last sync, not from its end"
    journal.close()


def test_a_full_group_ends_the_lingering() -> None:
    """Nine records fill the group. It is written long before the time to linger, which no busy machine reaches, and all of it at once."""
    endless = GroupCommitSettings.model_construct(linger_s=TIMEOUT_S, group_bytes=4096)  # longer than a user may set
    journal = GroupCommitJournal(open_journal(SimulatedDisk()), endless)
    journal.add(0, 1, b"begins the count")
    started = time.monotonic()
    in_threads(9, lambda number: journal.add(1 + number, 1, bytes(450)))
    assert time.monotonic() - started < TIMEOUT_S / 2
    assert journal.statistics().syncs == 2
    journal.close()


def test_transactions_of_many_threads_are_whole(tmp_path: Path) -> None:
    settings = JournalSettings(file_bytes=8192, files_pool=4, compact_files_min=4)
    journal = GroupCommitJournal(Journal.open(FileSystemDisk(tmp_path), settings))

    def work(number: int) -> None:
        for n in range(20):
            transaction = journal.begin()
            base = 10_000 * number + 10 * n
            for k in range(5):
                journal.add_in(transaction, base + k, 1, bytes(50))
            if n % 4 == 3:
                journal.rollback(transaction, sync=False)
            else:
                journal.commit(transaction)
            if n % 4 == 2:
                for k in range(5):
                    journal.delete(base + k, sync=False)

    in_threads(6, work)
    assert journal.statistics().file_changes > 3
    journal.close()
    found = Journal.open(FileSystemDisk(tmp_path), settings).loaded
    expected = {10_000 * t + 10 * n + k for t in range(6) for n in range(20) if n % 4 < 2 for k in range(5)}
    assert {record.record_id for record in found.records} == expected
    assert found.failed_transactions == found.broken_transactions == []


def test_one_of_many_that_delete_the_same_record_wins() -> None:
    journal = GroupCommitJournal(open_journal(SimulatedDisk()))
    journal.append_all([(n, 1, b"x") for n in range(50)], sync=False)
    won = [0] * 10

    def work(number: int) -> None:
        for n in range(50):
            try:
                journal.delete(n, sync=False)
                won[number] += 1
            except UnknownRecord:
                pass

    in_threads(10, work)
    assert sum(won) == 50
    journal.close()


def test_files_change_under_load_and_the_next_one_is_prepared_in_advance(tmp_path: Path) -> None:
    settings = JournalSettings(file_bytes=16 * 1024, files_pool=6, compact_files_min=0)
    journal = GroupCommitJournal(Journal.open(FileSystemDisk(tmp_path), settings))

    def work(number: int) -> None:
        for n in range(40):
            base = 100_000 * number + 100 * n
            journal.append_all([(base + k, 1, bytes(40)) for k in range(20)], sync=n % 2 == 0)
            if n:
                for k in range(20):
                    journal.delete(base - 100 + k, sync=False)
            if n % 10 == 5:
                assert journal.read(base)[0].body == bytes(40)
                journal.compact()

    in_threads(4, work)
    wait_until(lambda: journal.statistics().files_ready == 2)
    assert journal.statistics().files_reused > 5
    journal.close()
    found = {record.record_id for record in Journal.open(FileSystemDisk(tmp_path), settings).loaded.records}
    assert found == {100_000 * t + 3900 + k for t in range(4) for k in range(20)}


def test_a_failed_sync_reaches_every_waiter_and_is_final() -> None:
    disk = SimulatedDisk()
    journal = GroupCommitJournal(open_journal(disk), PATIENT)
    wait_until(lambda: journal.statistics().files_ready == 2)
    failing = threading.Event()
    syncs = 0

    def before(operation: Operation) -> None:
        nonlocal syncs
        if operation.kind == "sync":
            syncs += 1
            assert failing.wait(TIMEOUT_S)
            raise OSError(errno.EIO, "input/output error")

    disk.before = before
    outcomes: list[object] = []

    def add(number: int) -> None:
        try:
            journal.add(number, 1, b"x")
            outcomes.append("acknowledged")
        except JournalFailed:
            outcomes.append("failed")

    reported: list[WaltzError | None] = []
    threads = [threading.Thread(target=add, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    wait_until(lambda: journal.statistics().records == 8)
    journal.add(100, 1, b"x", on_done=reported.append)
    failing.set()
    for thread in threads:
        thread.join(TIMEOUT_S)
    wait_until(lambda: len(reported) == 1)
    assert outcomes == ["failed"] * 8
    assert isinstance(reported[0], JournalFailed)
    for call in (journal.sync, lambda: journal.add(9, 1, b"x"), lambda: journal.delete(1), journal.compact):
        with pytest.raises(JournalFailed):
            call()
    journal.close()
    assert syncs == 1, "the same data is never synced twice"


def test_too_much_that_is_not_synced_makes_appends_wait() -> None:
    disk = SimulatedDisk()
    journal = GroupCommitJournal(open_journal(disk), GroupCommitSettings(flush_s=60.0, unsynced_bytes_max=4096))
    for n in range(200):
        journal.add(n, 1, bytes(100), sync=False)
    assert journal.statistics().syncs >= 200 * 122 // 4096 - 1
    journal.close()


def test_a_full_journal_refuses_and_a_closed_one_too() -> None:
    disk = SimulatedDisk()
    journal = GroupCommitJournal(open_journal(disk, JournalSettings(file_bytes=4096, files_max=4, files_pool=4)))
    with pytest.raises(JournalFull):
        for n in range(1000):
            journal.add(n, 1, bytes(100), sync=False)
    count = journal.statistics().records
    for n in range(count):
        journal.delete(n, sync=False)
    journal.add(5000, 1, b"x")
    called: list[WaltzError | None] = []
    journal.add(5001, 1, b"x", on_done=called.append)
    journal.close()
    journal.close()
    assert called == [None]
    with pytest.raises(InvalidRequest, match="closed"):
        journal.add(5002, 1, b"x")
    assert {record.record_id for record in open_journal(disk).loaded.records} == {5000, 5001}
