"""Reclaiming and compaction through the journal's calls: what pins a file, what goes, and that a crash anywhere moves or keeps, never loses."""

from __future__ import annotations

import errno
from random import Random

import pytest
from structlog.testing import capture_logs

from waltz_log.errors import CorruptData, JournalFailed
from waltz_log.journal import Journal, JournalSettings, LoadedRecord
from waltz_log.journal.directory import FILE_ID_MAX
from waltz_log.journal.record_codec import ADD, FILL, encode_body
from waltz_log.testing.disk import Operation, SimulatedDisk

MANUAL = JournalSettings(file_bytes=1024, files_max=40, files_pool=2, compact_files_min=0, replaceable_types=frozenset({9}))
BODY = bytes(200)
PER_FILE = 4


def open_journal(disk: SimulatedDisk, settings: JournalSettings = MANUAL) -> Journal:
    return Journal.open(disk, settings, lambda length: b"s" * length)


def reported(journal: Journal) -> list[LoadedRecord]:
    """By record, in the order of its parts: compaction changes the order between records."""
    return sorted(journal.loaded.records, key=lambda record: record.record_id)


def sparse(journal: Journal, files: int = 8) -> list[int]:
    """Files of which one record in four lives, every fifth of those with updates. The ids that live."""
    alive = []
    for file in range(files):
        ids = range(10 * file, 10 * file + PER_FILE)
        journal.append_all([(record_id, record_id % 7, bytes([file]) * 200) for record_id in ids])
        alive.append(ids[file % PER_FILE])
    for record_id in alive[::5]:
        journal.update(record_id, 1, b"kept")
        for n in range(6):
            journal.update(record_id, 9, b"replaced %d" % n)
    for file in range(files):
        for record_id in range(10 * file, 10 * file + PER_FILE):
            if record_id not in alive:
                journal.delete(record_id)
    return alive


# ---- reclaiming --------------------------------------------------------------------------------------------------------------------------------


def test_a_delete_is_not_reclaimed_before_its_add() -> None:
    disk = SimulatedDisk()
    journal = open_journal(disk)
    journal.append_all([(n, 1, BODY) for n in range(PER_FILE)])
    journal.append_all([(n, 1, BODY) for n in range(10, 10 + PER_FILE - 1)])
    journal.delete(0)
    journal.delete(1)
    for n in (10, 11, 12):
        journal.delete(n)
    journal.append_all([(n, 1, bytes(300)) for n in range(20, 26)])
    journal.reclaim()
    data = journal.statistics().files_data
    assert [n for n in range(4) if n in journal] == [2, 3]
    journal.close()
    again = open_journal(disk)
    assert [record.record_id for record in again.loaded.records if record.record_id < 20] == [2, 3]
    assert again.statistics().files_data == data, "a restart judges as the running journal did"
    again.delete(2)
    again.delete(3)
    assert again.reclaim() >= 2


def churn(journal: Journal, first: int) -> None:
    """Adds and deletes until every file that can go has gone."""
    for n in range(first, first + 10 * PER_FILE):
        journal.add(n, 1, BODY)
        journal.delete(n)


@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("restart", [False, True])
def test_the_end_of_a_transaction_outlives_its_records_and_an_open_one_pins_its_files(end: str, restart: bool) -> None:
    disk = SimulatedDisk()
    journal = open_journal(disk)
    transaction = journal.begin()
    journal.add_in(transaction, 1, 1, BODY)
    journal.prepare(transaction)
    journal.add(2, 1, b"keeps the file")
    churn(journal, 1000)
    journal.close()
    journal = open_journal(disk)
    assert [each.transaction_id for each in journal.loaded.prepared] == [transaction]
    getattr(journal, end)(transaction)
    if restart:
        churn(journal, 2000)
        journal.close()
        journal = open_journal(disk)
    churn(journal, 3000)
    assert journal.statistics().files_data <= 4
    journal.close()
    again = open_journal(disk)
    assert again.loaded.prepared == []
    assert [record.record_id for record in again.loaded.records] == ([2, 1] if end == "commit" else [2])


def test_a_rolled_back_transaction_of_many_files_leaves_none_behind() -> None:
    disk = SimulatedDisk()
    journal = open_journal(disk)
    transaction = journal.begin()
    for n in range(10 * PER_FILE):
        journal.add_in(transaction, n, 1, BODY)
    assert journal.reclaim() == 0
    journal.rollback(transaction)
    assert journal.reclaim() >= 9
    assert journal.statistics().files_data == 1


def test_half_a_transaction_of_several_files_is_never_loaded() -> None:
    for check in ("hash", "size"):
        settings = MANUAL.model_copy(update={"check": check})
        disk = SimulatedDisk()
        journal = open_journal(disk, settings)
        journal.append_all([(1, 1, b"one")])
        transaction = journal.begin()
        for n in range(10, 10 + PER_FILE + 1):
            journal.add_in(transaction, n, 1, BODY)
        journal.commit(transaction)
        journal.append_all([(2, 1, b"keeps the file of the commit")])
        journal.close()
        names = [name for name in disk.list("") if name.startswith("journal-")]
        content = disk.content(names[0])
        hole = content.index(BODY) - 26  # the first record of the transaction, in the first of its files
        disk.replace(names[0], content[:hole] + FILL + content[hole + 1 :])
        with capture_logs() as logs:
            again = open_journal(disk, settings)
        assert [record.record_id for record in again.loaded.records] == [1, 2]
        assert again.loaded.broken_transactions == [transaction]
        assert "incomplete journal transaction ignored" in [entry["event"] for entry in logs]
        again.delete(1)
        again.append_all([(n, 1, BODY) for n in range(100, 100 + 4 * PER_FILE)])
        again.close()
        last = open_journal(disk, settings)
        assert not disk.exists(names[0]), "the file with the hole is gone: nothing but the struck commit tells that it is missing"
        assert [record.record_id for record in last.loaded.records] == [2, *range(100, 100 + 4 * PER_FILE)]


# ---- compaction --------------------------------------------------------------------------------------------------------------------------------


def test_compaction_frees_sparse_files_and_keeps_what_lives() -> None:
    disk = SimulatedDisk()
    journal = open_journal(disk)
    alive = sparse(journal)
    journal.sync()
    expected = reported(open_journal(disk.crash(keep=True)))
    disk = SimulatedDisk()
    journal = open_journal(disk)
    assert sparse(journal) == alive
    before = journal.statistics()
    assert journal.compact() > 3
    after = journal.statistics()
    assert after.files_data < before.files_data / 2
    assert after.records_compacted >= len(alive) - PER_FILE
    assert [journal.read(n)[-1].body for n in alive[::5]] == [b"replaced 5"] * len(alive[::5])
    journal.close()
    again = open_journal(disk)
    assert reported(again) == expected
    again.compact()
    assert again.compact() == 0


def test_compaction_happens_by_itself_at_a_change_of_the_file() -> None:
    disk = SimulatedDisk()
    journal = open_journal(disk, MANUAL.model_copy(update={"compact_files_min": 4, "compact_percent": 40}))
    alive = []
    for n in range(400):
        journal.add(n, 1, BODY)
        if n % 40 == 0:
            alive.append(n)
        elif n % 40 != 39:
            journal.delete(n)
        else:
            journal.delete(n)
    assert journal.statistics().records_compacted > 0
    assert journal.statistics().files_data <= 8
    journal.close()
    assert sorted(record.record_id for record in open_journal(disk).loaded.records) == alive


@pytest.mark.parametrize("check", ["hash", "size"])
def test_a_crash_at_any_operation_of_a_compaction_keeps_what_lives(check: str) -> None:
    settings = MANUAL.model_copy(update={"check": check})
    clean = SimulatedDisk()
    journal = open_journal(clean, settings)
    sparse(journal)
    journal.sync()
    expected = reported(open_journal(clean.crash(keep=True), settings))
    first = len(clean.operations)
    clean = SimulatedDisk()
    journal = open_journal(clean, settings)
    sparse(journal)
    journal.sync()
    first = len(clean.operations)
    journal.compact()
    stops = range(first, len(clean.operations))
    assert len(stops) > 20
    for stop in stops:
        # By size a torn write may pass, as the layout allows: there only whole writes are kept or lost.
        for random in (None, Random(stop), Random(-stop)) if check == "hash" else (None,):
            disk = SimulatedDisk()
            journal = open_journal(disk, settings)
            sparse(journal)
            journal.sync()

            def before(operation: Operation, disk: SimulatedDisk = disk, stop: int = stop) -> None:
                if len(disk.operations) > stop:
                    raise OSError(errno.EIO, "the machine stops here")

            disk.before = before
            with pytest.raises(JournalFailed):
                journal.compact()
            disk = disk.crash(random)
            again = open_journal(disk, settings)
            assert reported(again) == expected, f"stop={stop}"
            again.compact()
            again.close()
            assert reported(open_journal(disk, settings)) == expected, f"stop={stop}"


def test_a_compaction_that_runs_out_of_room_rolls_back_and_pins_nothing() -> None:
    disk = SimulatedDisk()
    settings = MANUAL.model_copy(update={"files_max": 2})
    journal = open_journal(disk, settings)
    # Small records that are gone make what lives seem smaller than it is: the compaction begins, and the second part finds no room.
    journal.append_all([(n, 1, b"") for n in range(10, 16)])
    journal.add(1, 1, bytes(280))
    journal.update(1, 1, bytes(380))
    for n in range(10, 16):
        journal.delete(n)
    journal.add(2, 1, bytes(300))
    journal.update(2, 1, bytes(100))
    assert journal.statistics().files_data == 2
    assert journal.compact() == 0
    assert [len(part.body) for part in journal.read(1)] == [280, 380]
    journal.delete(1)
    for _ in range(4):  # each of the two files is freed and used again
        journal.delete(2)
        journal.add(2, 1, bytes(300))
        journal.update(2, 1, bytes(500))
    journal.close()
    again = open_journal(disk, settings)
    assert again.loaded.failed_transactions == []
    assert [record.record_id for record in again.loaded.records] == [2, 2]


def test_compaction_leaves_what_transactions_have_their_hands_on() -> None:
    disk = SimulatedDisk()
    journal = open_journal(disk)
    alive = sparse(journal)
    transaction, doubtful = journal.begin(), journal.begin()
    journal.delete_in(transaction, alive[0])
    journal.update_in(transaction, alive[1], 1, b"in hand")
    journal.add_in(doubtful, 900, 1, b"doubtful")
    journal.prepare(doubtful)
    journal.append_all([(n, 1, BODY) for n in range(1000, 1000 + 2 * PER_FILE)])
    assert journal.compact() > 0
    journal.commit(transaction)
    journal.compact()
    journal.close()
    again = open_journal(disk)
    found = sorted({record.record_id for record in again.loaded.records})
    assert found == sorted([*alive[1:], *range(1000, 1000 + 2 * PER_FILE)])
    assert [each.transaction_id for each in again.loaded.prepared] == [doubtful]
    again.commit(doubtful)
    again.compact()
    again.close()
    assert 900 in open_journal(disk)


def test_a_record_corrupted_in_place_is_kept_and_its_file_set_aside() -> None:
    disk = SimulatedDisk()
    journal = open_journal(disk)
    alive = sparse(journal)
    journal.sync()
    name = [name for name in disk.list("") if name.startswith("journal-")][1]
    content = bytearray(disk.content(name))
    content[content.index(b"\x01" * 200, 4 + 222) + 5] ^= 1
    disk.replace(name, bytes(content))
    with capture_logs() as logs:
        journal.compact()
    assert {entry["record"] for entry in logs} == {alive[1]}
    with pytest.raises(CorruptData, match=f"record {alive[1]}"):
        journal.read(alive[1])
    assert disk.content(name) == bytes(content)
    journal.delete(alive[1])
    journal.append_all([(n, 1, BODY) for n in range(1000, 1000 + 4 * PER_FILE)])
    journal.reclaim()
    journal.append_all([(n, 1, BODY) for n in range(2000, 2000 + 4 * PER_FILE)])
    assert journal.statistics().files_set_aside == 1


def test_a_file_whose_id_is_about_to_be_overtaken_is_compacted() -> None:
    disk = SimulatedDisk()
    stuck = FILE_ID_MAX // 4 + 1
    for file_id, record_id in ((1, 7), (stuck, 8)):
        file = disk.open(f"journal-{file_id:010}.jrn", "create")
        file.write(0, (file_id.to_bytes(4, "big") + encode_body(ADD, file_id, None, record_id, 1, BODY)).ljust(1024, b"J"))
        file.sync()
    disk.sync_directory("")
    with open_journal(disk) as journal:
        assert sorted(record.record_id for record in journal.loaded.records) == [7, 8]
        journal.append_all([(n, 1, BODY) for n in range(100, 100 + PER_FILE)])
        assert journal.statistics().records_compacted >= 1
        journal.reclaim()
        journal.append_all([(n, 1, BODY) for n in range(200, 200 + PER_FILE)])
    assert not disk.exists("journal-0000000001.jrn")
    assert sorted(record.record_id for record in open_journal(disk).loaded.records) == [7, 8, *range(100, 104), *range(200, 204)]
