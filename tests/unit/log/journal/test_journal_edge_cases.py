"""The edge cases that the tests of the original know, each as a sentence; numbers as in the list that the journal was built from.

| cases | where |
|---|---|
| 1, 2, 5, 6, 18, 20-26, 46-49 | `test_journal_calls.py`, `test_journal_ring.py`, `test_journal_group_commit.py`; here what they leave |
| 3, 37-39 | `test_journal_damage.py` and here |
| 4, 7-17, 27-30, 32-36, 40-44, 59, 60, 62, 63, 65, 68 | here |
| 19, 24, 31, 70 | `test_journal_model.py` and `test_journal_loading_is_the_reference.py`: any lengths, any order, holes of any size |
| 45 | `test_journal_reclaim.py` |
| 50-55 | `test_journal_group_commit.py`: one flush a group, in order, by size or by time; a file that changes under load |
| 57, 58, 61, 64 | `test_journal_compaction.py`, `test_journal_crashes.py` and the model: a crash at any operation, calls between two steps |
| 67 | `test_journal_group_commit.py`: transactions of many threads |
| 31, the writing half | does not apply: records are not aligned, as nothing writes around the page cache; holes are read |
| 41, bodies of deletes and of prepares | does not apply: the layout has none; an application that needs one adds a record within the transaction |
| 53, 56 | does not apply: no file is closed beside a sync, and no counter completes a transaction |
| 57, the control file; 66 | does not apply: compaction appends, so there is nothing to swap in and nothing to split |
| 69 | does not apply: no history is kept |
| for us: hole in the first file, torn sector, forged record, failed sync | `test_journal_damage.py`, `test_journal_planted_bugs.py` |
| for us: reused a thousand times, a full disk, two processes | `test_journal_ring.py`, `test_journal_tools.py`, and here |
| for us: clock going backwards | here: nothing of the journal knows a clock |
"""

from __future__ import annotations

import errno
import subprocess
import sys

import pytest

from tests.unit.log.journal.opened import CHECKS, directory_of
from tests.unit.log.journal.reference import ADD, ADD_TX, COMMIT, PREPARE, UPDATE, UPDATE_TX, Entry, FileImage
from tests.unit.log.journal.scenarios import open_journal
from waltz_log.errors import InvalidRequest, InvalidSetting, JournalFailed, JournalFull, UnknownRecord
from waltz_log.journal import Journal
from waltz_log.testing.disk import Operation, SimulatedDisk

FULL_BODY = bytes(990)
"""With it a record needs a file of 1024 bytes alone."""
FILE_ID_MAX = (1 << 31) - 1

BOTH_CHECKS = pytest.mark.parametrize("check", list(CHECKS))


def killed(journal: Journal, disk: SimulatedDisk) -> tuple[Journal, SimulatedDisk]:
    """The process died; the next one opens what is there."""
    after = disk.fork()
    return open_journal(after), after


def data_files(journal: Journal) -> int:
    """Beside the one that is written."""
    journal.reclaim()
    return journal.statistics().files_data - 1


def live(journal: Journal) -> set[int]:
    return {record.record_id for record in journal.loaded.records}


def fill(journal: Journal, first: int, count: int) -> None:
    for record_id in range(first, first + count):
        journal.add(record_id, 0, FULL_BODY)


def ten_files_in(journal: Journal, transaction: int, first: int) -> None:
    for record_id in range(first, first + 10):
        journal.add_in(transaction, record_id, 0, FULL_BODY[:980])


# ---- files ---------------------------------------------------------------------------------------------------------------------------------------


@BOTH_CHECKS
def test_ids_around_the_highest_go_on_and_everything_loads_after_each_restart(check: str) -> None:
    """4."""
    disk = directory_of({FILE_ID_MAX - 1: bytes(FileImage(FILE_ID_MAX - 1, 1024, check=CHECKS[check]).put(Entry(ADD, 0, body=b"x")))}, check)
    for n in range(1, 101):
        journal = open_journal(disk)
        assert live(journal) == {0, *range(max(1, n - 5), n)}
        journal.add(n, 0, FULL_BODY)
        if n > 5:
            journal.delete(n - 5)
        journal.close()
        disk = disk.fork()


def test_a_pool_that_was_made_smaller_shrinks_to_it_when_files_are_freed() -> None:
    """7."""
    disk = SimulatedDisk()
    journal = open_journal(disk, files_pool=10)
    fill(journal, 0, 10)
    for record_id in range(10):
        journal.delete(record_id)
    journal.reclaim()
    journal.close()
    assert len([name for name in disk.list("") if name.endswith(".jrh")]) == 10
    disk = disk.fork()
    journal = open_journal(disk, files_pool=2)
    journal.reclaim()
    assert len([name for name in disk.list("") if name.endswith(".jrh")]) == 2


@pytest.mark.parametrize(("pool", "kept"), [(100, range(50, 61)), (5, range(1, 6))])
def test_a_journal_that_grew_keeps_what_its_pool_allows(pool: int, kept: range) -> None:
    """9."""
    journal = open_journal(SimulatedDisk(), files_pool=pool, files_max=100)
    fill(journal, 0, 50)
    for record_id in range(50):
        journal.delete(record_id)
    journal.reclaim()
    found = journal.statistics()
    assert found.files_data + found.files_free + found.files_ready in kept


def test_files_of_deleted_records_are_reused_and_no_others() -> None:
    """8, 10."""
    disk = SimulatedDisk()
    journal = open_journal(disk, files_pool=20, files_max=20)
    fill(journal, 0, 10)
    for record_id in range(0, 10, 2):
        journal.delete(record_id)
    assert journal.reclaim() == 5
    fill(journal, 100, 5)
    assert journal.statistics().files_reused >= 5
    journal.sync()
    journal, disk = killed(journal, disk)
    assert live(journal) == {1, 3, 5, 7, 9, *range(100, 105)}


def test_a_file_filled_to_its_last_byte_loses_nothing_over_three_restarts() -> None:
    """18, 36: also where the last record is the commit that just fits."""
    disk = SimulatedDisk()
    journal = open_journal(disk)
    transaction = journal.begin()
    journal.add_in(transaction, 1, 0, bytes(1024 - 4 - 30 - 29))
    journal.commit(transaction)
    assert journal.statistics().file_changes == 0
    journal.close()
    for _ in range(3):
        journal, disk = killed(journal, disk)
        assert live(journal) == {1}
        assert journal.statistics().files_data == 1
        journal.close()
    journal, disk = killed(journal, disk)
    journal.add(2, 0, b"")
    assert journal.statistics().file_changes == 1


@BOTH_CHECKS
@pytest.mark.parametrize("length", [0, 1, 3, 4, 5, 100])
def test_an_empty_or_truncated_file_costs_only_what_was_cut_off(check: str, length: int) -> None:
    """30."""
    image = bytes(FileImage(2, 1024, check=CHECKS[check]).put(Entry(ADD, 2, body=b"cut"), Entry(ADD, 3, body=bytes(100))))
    whole = bytes(FileImage(1, 1024, check=CHECKS[check]).put(Entry(ADD, 1)))
    disk = directory_of({1: whole, 2: image[:length]}, check)
    journal = open_journal(disk)
    assert live(journal) == ({1, 2} if length == 100 else {1})
    journal.add(9, 0, FULL_BODY)
    journal.close()
    journal, _ = killed(journal, disk)
    assert {1, 9} <= live(journal)


def test_files_of_other_sizes_are_read_after_each_change_of_the_size() -> None:
    """62."""
    disk = SimulatedDisk()
    for n, file_bytes in enumerate((2048, 4096, 1024)):
        journal = open_journal(disk, file_bytes=file_bytes)
        assert live(journal) == set(range(10 * n))
        for record_id in range(10 * n, 10 * n + 10):
            journal.add(record_id, 0, bytes(300))
        journal.close()
        disk = disk.fork()
    assert live(open_journal(disk)) == set(range(30))


def test_figures_are_the_same_after_a_restart_and_nothing_lives_after_the_last_delete() -> None:
    """63."""
    disk = SimulatedDisk()
    journal = open_journal(disk)
    transaction = journal.begin()
    for record_id in range(20):
        journal.add(record_id, 0, bytes(100 + record_id))
        journal.add_in(transaction, 100 + record_id, 0, bytes(50))
    for record_id in range(0, 20, 3):
        journal.update(record_id, 1, bytes(30))
    journal.commit(transaction)
    journal.delete(5)
    journal.close()
    again, _ = killed(journal, disk)
    before, after = journal.statistics(), again.statistics()
    assert (before.records, before.live_bytes) == (after.records, after.live_bytes)
    for record_id in [*range(5), *range(6, 20), *range(100, 120)]:
        again.delete(record_id)
    assert (again.statistics().records, again.statistics().live_bytes, data_files(again)) == (0, 0, 0)


def test_a_disk_without_space_refuses_and_goes_on_when_there_is_some() -> None:
    """For us: ENOSPC while a file is made. Nothing half made is left, and the journal did not fail."""
    disk = SimulatedDisk()
    journal = open_journal(disk)
    fill(journal, 0, 2)
    journal.sync()

    def no_space(operation: Operation) -> None:
        if operation.kind == "allocate":
            raise OSError(errno.ENOSPC, "no space left on device", operation.path)

    disk.before = no_space
    with pytest.raises(JournalFull):
        fill(journal, 2, 10)
    assert not [name for name in disk.list("") if name.endswith(".tmp")]
    there = len(journal)
    disk.before = lambda operation: None
    fill(journal, 50, 3)
    journal.close()
    again, _ = killed(journal, disk)
    assert len(again) == there + 3


def test_files_that_a_crash_left_incomplete_are_removed() -> None:
    disk = SimulatedDisk()
    open_journal(disk).close()
    disk.open("journal-0000000009.tmp", "create").write(0, b"JJJJ")
    open_journal(disk).close()
    assert not [name for name in disk.list("") if name.endswith(".tmp")]


# ---- reclaiming ------------------------------------------------------------------------------------------------------------------------------------


def test_the_file_of_a_delete_holds_those_of_the_add_and_the_update_until_it_can_go_itself() -> None:
    """11."""
    journal = open_journal(SimulatedDisk())
    journal.add(1, 0, FULL_BODY)
    journal.update(1, 0, FULL_BODY)
    journal.add(2, 0, bytes(900))
    journal.delete(1)
    assert data_files(journal) == 0, "the delete is on the medium, so the add and the update may go"
    journal.add(3, 0, FULL_BODY)
    assert data_files(journal) == 1, "the file of the delete holds a living record too"
    journal.delete(2)
    journal.delete(3)
    assert data_files(journal) == 0


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_nothing_of_an_open_transaction_is_reclaimed_before_its_end(end: str) -> None:
    """12, 13, 15, 35, 43."""
    disk = SimulatedDisk()
    journal = open_journal(disk)
    transaction = journal.begin()
    ten_files_in(journal, transaction, 0)
    assert data_files(journal) == 9
    getattr(journal, end)(transaction)
    assert data_files(journal) == (10 if end == "commit" else 0)
    journal.sync()
    if end == "commit":
        journal.add(50, 0, FULL_BODY)  # the commit stands alone in a file that must outlive the ten
        second = journal.begin()
        for record_id in range(10):
            journal.delete_in(second, record_id)
        assert data_files(journal) >= 10
        journal.commit(second)
        journal.delete(50)
        assert data_files(journal) == 0
    journal.close()
    again, _ = killed(journal, disk)
    assert live(again) == set()
    assert data_files(again) == 0


def test_a_third_open_transaction_releases_nothing_early() -> None:
    """27."""
    disk = SimulatedDisk()
    journal = open_journal(disk)
    first, third = journal.begin(), journal.begin()
    journal.add_in(first, 1, 0, FULL_BODY[:980])
    journal.add_in(third, 3, 0, bytes(400))
    journal.add_in(first, 2, 0, FULL_BODY[:980])
    journal.commit(first)
    second = journal.begin()
    journal.delete_in(second, 1)
    journal.delete_in(second, 2)
    journal.commit(second)
    pinned = data_files(journal)
    assert pinned >= 1
    journal.commit(third)
    journal.close()
    again, _ = killed(journal, disk)
    assert live(again) == {3}


def test_nothing_is_left_when_all_that_was_added_and_updated_is_deleted() -> None:
    """28, 32."""
    disk = SimulatedDisk()
    journal = open_journal(disk)
    for record_id in range(20):
        journal.add(record_id, 0, bytes(200))
        journal.update(record_id, 0, bytes(100))
    transaction = journal.begin()
    for record_id in range(20):
        journal.update_in(transaction, record_id, 0, bytes(50))
    journal.commit(transaction)
    for record_id in range(0, 20, 2):
        journal.delete(record_id)
    journal.sync()
    journal, disk = killed(journal, disk)
    assert live(journal) == set(range(1, 20, 2))
    for record_id in range(1, 20, 2):
        journal.delete(record_id)
    assert data_files(journal) == 0
    journal.close()
    again, _ = killed(journal, disk)
    assert (live(again), data_files(again)) == (set(), 0)


def test_a_long_life_of_short_ones_needs_few_files() -> None:
    """44, and the bound of the disk."""
    disk = SimulatedDisk()
    journal = open_journal(disk, files_max=5)
    for record_id in range(2000):
        journal.add(record_id, 0, bytes(200))
        journal.delete(record_id)
    assert len([name for name in disk.list("") if name.startswith("journal-")]) <= 5
    assert data_files(journal) == 0


# ---- transactions --------------------------------------------------------------------------------------------------------------------------------


def test_a_record_added_and_deleted_in_one_transaction_never_lives() -> None:
    """14."""
    disk = SimulatedDisk()
    journal = open_journal(disk)
    transaction = journal.begin()
    journal.add_in(transaction, 1, 0, b"")
    journal.delete_in(transaction, 1)
    assert (1 in journal, journal.statistics().open_transactions) == (False, 1)
    journal.commit(transaction)
    journal.close()
    assert live(killed(journal, disk)[0]) == set()


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_an_empty_prepare_is_in_doubt_over_a_restart_and_then_leaves_nothing(end: str) -> None:
    """16, 68."""
    disk = SimulatedDisk()
    journal = open_journal(disk)
    untouched = journal.begin()
    transaction = journal.begin()
    journal.prepare(transaction)
    getattr(journal, end)(untouched)
    journal.close()
    journal, disk = killed(journal, disk)
    assert [(each.transaction_id, each.records, each.deletes) for each in journal.loaded.prepared] == [(transaction, [], [])]
    getattr(journal, end)(transaction)
    assert data_files(journal) == 0
    journal.close()
    assert killed(journal, disk)[0].loaded.prepared == []


def test_a_prepared_transaction_of_ten_files_keeps_them_over_restarts_until_it_is_decided() -> None:
    """17, 40, 42."""
    disk = SimulatedDisk()
    journal = open_journal(disk)
    journal.add(500, 0, b"")
    transaction = journal.begin()
    ten_files_in(journal, transaction, 0)
    journal.add(501, 0, FULL_BODY)  # the prepare stands alone in its file
    journal.prepare(transaction)
    journal.sync()
    for _ in range(2):
        journal, disk = killed(journal, disk)
        assert live(journal) == {500, 501}
        assert [len(each.records) for each in journal.loaded.prepared] == [10]
        assert data_files(journal) >= 10
        journal.close()
    journal, disk = killed(journal, disk)
    journal.commit(transaction)
    journal.sync()
    journal, disk = killed(journal, disk)
    assert live(journal) == {500, 501, *range(10)}
    deleting = journal.begin()
    for record_id in range(10):
        journal.delete_in(deleting, record_id)
    journal.prepare(deleting)
    journal.sync()
    journal, disk = killed(journal, disk)
    assert live(journal) == {500, 501, *range(10)}, "prepared deletes do not count yet"
    journal.commit(deleting)
    journal.delete(500)
    journal.delete(501)
    assert data_files(journal) == 0


def test_a_commit_of_records_in_two_files_counts_both() -> None:
    """40: ten in the first file, forty in the second, ten deleted across both."""
    disk = SimulatedDisk()
    journal = open_journal(disk)
    journal.add(0, 0, bytes(1024 - 4 - 22 - 10 * 30))
    transaction = journal.begin()
    for record_id in range(1, 51):
        if record_id == 41:
            journal.sync()
        journal.add_in(transaction, record_id, 0, b"")
    journal.commit(transaction)
    assert journal.statistics().files_data == 3
    for record_id in range(5, 15):
        journal.delete(record_id)
    journal.close()
    assert live(killed(journal, disk)[0]) == {0, *range(1, 5), *range(15, 51)}


def test_transactions_that_were_open_are_reported_exactly_and_cannot_be_committed_after_a_restart() -> None:
    """33, 34."""
    disk = SimulatedDisk()
    journal = open_journal(disk)
    interrupted = [journal.begin(77), journal.begin(78)]
    for n in range(10):
        for transaction in interrupted:
            journal.add_in(transaction, 100 * transaction + n, 0, bytes(450))
    journal.sync()
    journal, disk = killed(journal, disk)
    assert sorted(journal.loaded.failed_transactions) == [77, 78]
    assert live(journal) == set()
    assert data_files(journal) == 0
    for transaction in interrupted:
        with pytest.raises(UnknownRecord):
            journal.commit(transaction)
    assert journal.begin() > 78, "an id of theirs would count what is left of them"


@BOTH_CHECKS
@pytest.mark.parametrize("kind", [COMMIT, PREPARE])
def test_one_broken_record_drops_its_transaction_and_no_other(check: str, kind: int) -> None:
    """37, 38, 39: two transactions alternate; of one an element has a wrong check, or the file id -1."""
    for damage in ("check", "file id"):
        image = FileImage(1, 2048, check=CHECKS[check])
        for n in range(20):
            element = Entry(ADD_TX, n, 1 + n % 2, 0, b"body").encode(1, CHECKS[check])
            if n == 4:
                element = element[:-4] + b"\xff" * 4 if damage == "check" else element[:1] + b"\xff" * 4 + element[5:]
            image.raw(element)
        image.put(Entry(kind, transaction=1, listed=((1, 10),)), Entry(kind, transaction=2, listed=((1, 10),)))
        disk = directory_of({1: bytes(image)}, check)
        journal = open_journal(disk, file_bytes=2048)
        expected = set(range(1, 20, 2)) if kind == COMMIT else set()
        assert live(journal) == expected
        assert [each.transaction_id for each in journal.loaded.prepared] == ([2] if kind == PREPARE else [])
        assert journal.loaded.broken_transactions == [1]
        journal.close()
        again = open_journal(disk.fork(), file_bytes=2048)
        assert live(again) == expected
        assert again.loaded.broken_transactions == [], "it was struck out"


def test_a_broken_transaction_stays_broken_when_the_file_with_the_hole_is_gone() -> None:
    """For us: with the hole reclaimed its commit would seem complete."""
    first = FileImage(1, 1024).put(Entry(ADD_TX, 1, 5), Entry(ADD_TX, 2, 5)).damage(4, b"J")
    second = FileImage(2, 1024).put(Entry(ADD_TX, 3, 5), Entry(COMMIT, transaction=5, listed=((1, 2), (2, 1))), Entry(ADD, 9))
    disk = directory_of({1: bytes(first), 2: bytes(second)}, "size")
    for _ in range(4):
        journal = open_journal(disk)
        assert live(journal) == {9}
        fill(journal, 100, 3)
        for record_id in range(100, 103):
            journal.delete(record_id)
        journal.close()
        disk = disk.fork()
    assert "journal-0000000001.jrn" not in disk.list(""), "its place was needed"


@BOTH_CHECKS
def test_an_update_of_an_unknown_record_is_tolerated_in_a_file_and_refused_in_a_call(check: str) -> None:
    """29, 60: its add may have been lost by a crash. Compaction lives with it."""
    image = FileImage(1, 1024, check=CHECKS[check])
    image.put(Entry(UPDATE, 1, body=b"alone"), Entry(UPDATE_TX, 2, 5, 0, b"alone too"), Entry(COMMIT, transaction=5, listed=((1, 1),)), Entry(ADD, 3))
    disk = directory_of({1: bytes(image)}, check)
    journal = open_journal(disk)
    assert live(journal) == {1, 2, 3}
    journal.add(4, 0, FULL_BODY)
    journal.compact()
    journal.compact()
    with pytest.raises(UnknownRecord):
        journal.update(10, 0, b"")
    with pytest.raises(UnknownRecord):
        journal.update_in(journal.begin(), 10, 0, b"")
    journal.close()
    assert live(killed(journal, disk)[0]) == {1, 2, 3, 4}


def test_an_open_transaction_survives_compactions_and_one_that_was_rolled_back_cannot_be_committed() -> None:
    """59."""
    disk = SimulatedDisk()
    journal = open_journal(disk)
    transaction = journal.begin()
    journal.add(1, 0, bytes(300))
    journal.update_in(transaction, 1, 0, b"changed")
    journal.add_in(transaction, 2, 0, b"added")
    for round_ in range(2):
        fill(journal, 10 * (1 + round_), 4)
        for record_id in range(10 * (1 + round_), 10 * (1 + round_) + 3):
            journal.delete(record_id)
        journal.compact()
    journal.commit(transaction)
    rolled_back = journal.begin()
    journal.rollback(rolled_back)
    with pytest.raises(UnknownRecord):
        journal.commit(rolled_back)
    journal.close()
    again, _ = killed(journal, disk)
    assert live(again) == {1, 2, 13, 23}
    assert [record.body for record in again.loaded.records if record.record_id == 1][-1] == b"changed"


def test_nine_hundred_of_a_thousand_survive_a_compaction_that_is_cut_anywhere_loaded_twice() -> None:
    """65."""
    disk = SimulatedDisk()
    journal = open_journal(disk, file_bytes=8192)
    for record_id in range(1000):
        journal.add(record_id, 0, b"a record")
    for record_id in range(0, 1000, 10):
        journal.delete(record_id)
    journal.sync()
    expected = {record_id for record_id in range(1000) if record_id % 10}
    forks: list[SimulatedDisk] = []
    disk.before = lambda operation: forks.append(disk.fork())
    journal.compact()
    for fork in forks:
        after = fork.survivor([0] * len(fork.pending()))
        for _ in range(2):
            again = open_journal(after, file_bytes=8192)
            assert live(again) == expected
            again.close()
            after = after.fork()


# ---- who may, and with what ------------------------------------------------------------------------------------------------------------------


def test_a_directory_that_is_open_cannot_be_opened_again_until_it_is_closed() -> None:
    """1, and for us: two processes; across real processes in `test_journal_tools.py`."""
    disk = SimulatedDisk()
    journal = open_journal(disk)
    with pytest.raises(InvalidSetting, match="in use"):
        open_journal(disk)
    journal.add(1, 0, b"")
    journal.close()
    with pytest.raises(InvalidRequest, match="closed"):
        journal.add(2, 0, b"")
    assert live(open_journal(disk)) == {1}


def test_a_write_that_fails_while_files_change_is_final() -> None:
    """48, 49, at each operation of a change of the file: nothing that was acknowledged is lost, and nothing is acknowledged afterwards."""
    failed_at = 0
    while True:
        disk = SimulatedDisk()
        journal = open_journal(disk)
        journal.add(1, 0, FULL_BODY)
        journal.sync()
        begun = len(disk.operations)

        def fail(operation: Operation, disk: SimulatedDisk = disk, last: int = begun + failed_at) -> None:
            if len(disk.operations) > last:
                raise OSError(errno.EIO, "the medium failed", operation.path)

        disk.before = fail
        try:
            journal.add(2, 0, FULL_BODY)
            journal.add(3, 0, FULL_BODY)
            journal.sync()
        except JournalFailed:
            disk.before = lambda operation: None
            with pytest.raises(JournalFailed):
                journal.sync()
            assert 1 in live(open_journal(disk.survivor([0] * len(disk.pending()))))
            failed_at += 1
            continue
        break
    assert failed_at >= 4


def test_the_journal_knows_no_clock() -> None:
    """For us: a clock that goes back can break nothing. Group commit measures how long it waits, with a clock that cannot."""
    code = (
        "import sys, time; import waltz_log.journal, waltz_log.journal.journal as j; "
        "modules = [m for n, m in sys.modules.items() if n.startswith('waltz_log.journal.')]; "
        "bad = [m.__name__ for m in modules if 'datetime' in vars(m) or (time in vars(m).values() and 'group' not in m.__name__)]; "
        "sys.exit(' '.join(bad) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
