"""The files of a journal: how they are made, reused, kept, removed and set aside, and what a crash or a failing disk leaves of that."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random
from typing import Any

import pytest
from structlog.testing import capture_logs

from waltz_log.errors import CorruptData, InvalidSetting, JournalFailed, JournalFull
from waltz_log.filesystem import FileSystemDisk
from waltz_log.journal import Journal, JournalSettings
from waltz_log.journal.directory import FILE_ID_MAX, following_id, ring_order
from waltz_log.journal.record_codec import encode_body
from waltz_log.journal.salt import SALT_FILE
from waltz_log.testing.disk import Operation, SimulatedDisk

SMALL = JournalSettings(file_bytes=1024, files_max=20, files_pool=4, compact_files_min=0)
BODY = bytes(200)
PER_FILE = (1024 - 4) // (22 + 200)


def entropy(length: int) -> bytes:
    return b"s" * length


def open_journal(disk: SimulatedDisk, settings: JournalSettings = SMALL) -> Journal:
    return Journal.open(disk, settings, entropy)


def journal_files(disk: SimulatedDisk) -> list[str]:
    return [name for name in disk.list("") if name.startswith("journal-")]


def living(journal: Journal) -> list[int]:
    return [record.record_id for record in journal.loaded.records]


def fill(journal: Journal, first: int, files: int) -> range:
    """Adds that fill so many files."""
    ids = range(first, first + files * PER_FILE)
    for record_id in ids:
        journal.add(record_id, 1, BODY)
    return ids


# ---- making ------------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("check", ["hash", "size"])
def test_a_new_journal_has_its_files_filled_and_named(check: str) -> None:
    disk = SimulatedDisk()
    open_journal(disk, SMALL.model_copy(update={"check": check, "files_min": 3})).close()
    extension = {"hash": "jrh", "size": "jrn"}[check]
    assert journal_files(disk) == [f"journal-{n:010}.{extension}" for n in (1, 2, 3)]
    for n, name in enumerate(journal_files(disk), 1):
        assert disk.content(name) == n.to_bytes(4, "big") + b"J" * 1020
    assert disk.exists(SALT_FILE) is (check == "hash")


def test_a_size_journal_has_the_bytes_of_the_layout_and_nothing_else() -> None:
    disk = SimulatedDisk()
    with open_journal(disk, SMALL.model_copy(update={"check": "size"})) as journal:
        journal.add(1, 2, b"abc")
        transaction = journal.begin()
        journal.add_in(transaction, 3, 2, b"abc")
        journal.commit(transaction)
        journal.delete(1)
    records = (
        "0b00000001000000000000000100000003026162630000"
        "0019"
        "0d00000001000000000000000100000000000000030000000302616263"
        "00000021"
        "12000000010000000000000001000000010000000100000001"
        "0000001d"
        "1000000001000000000000000100000011"
    )
    assert disk.content("journal-0000000001.jrn") == (bytes.fromhex("00000001" + records)).ljust(1024, b"J")
    assert disk.list("") == ["journal-0000000001.jrn", "journal-0000000002.jrn"]


def test_an_empty_journal_opened_again_keeps_its_files() -> None:
    disk = SimulatedDisk()
    settings = SMALL.model_copy(update={"files_min": 4})
    open_journal(disk, settings).close()
    before = journal_files(disk)
    for _ in range(3):
        disk = disk.crash()
        open_journal(disk, settings).close()
        assert journal_files(disk) == before


def test_more_files_are_made_where_more_are_asked_for_and_never_fewer() -> None:
    disk = SimulatedDisk()
    open_journal(disk).close()
    open_journal(disk, SMALL.model_copy(update={"files_min": 6})).close()
    assert len(journal_files(disk)) == 6
    open_journal(disk).close()
    assert len(journal_files(disk)) == 6


def test_a_crash_at_any_operation_of_the_first_opening_leaves_a_directory_that_opens() -> None:
    disk = SimulatedDisk()
    open_journal(disk).close()
    operations = len(disk.operations)
    for stop in range(operations):
        for random in (None, *map(Random, range(8))):
            crashed = crash_at(SimulatedDisk(), stop, random)
            with open_journal(crashed) as journal:
                assert living(journal) == []
                journal.add(1, 1, b"works")
            assert living(open_journal(crashed.crash())) == [1]


def crash_at(disk: SimulatedDisk, stop: int, random: Random | None) -> SimulatedDisk:
    def before(operation: Operation) -> None:
        if len(disk.operations) > stop:
            raise OSError(errno.EIO, "the machine stops here")

    disk.before = before
    with pytest.raises((JournalFailed, OSError)):
        open_journal(disk)
    disk.before = lambda operation: None
    return disk.crash(random)


def test_a_disk_that_is_full_refuses_adds_while_there_is_a_file_for_deletes() -> None:
    disk = SimulatedDisk(total=1024 * 5)  # the salt and four files
    journal = open_journal(disk)
    added = 0
    with pytest.raises(JournalFull, match="no space"):
        while True:
            journal.add(added, 1, BODY)
            added += 1
    assert added == 3 * PER_FILE
    assert not [name for name in disk.list("") if name.endswith(".tmp")]
    with pytest.raises(JournalFull):
        journal.add(added, 1, BODY)
    for record_id in range(2 * PER_FILE):
        journal.delete(record_id)
    journal.add(added, 1, BODY)
    journal.close()
    assert living(open_journal(disk.crash())) == list(range(2 * PER_FILE, added + 1))


# ---- reusing -----------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("check", ["hash", "size"])
def test_a_file_is_reused_under_a_new_id_a_thousand_times(check: str) -> None:
    disk = SimulatedDisk()
    journal = open_journal(disk, SMALL.model_copy(update={"files_max": 4, "files_pool": 4, "check": check}))
    record_id = 0
    while journal.statistics().files_reused < 1000:
        journal.add(record_id, 1, BODY)
        if record_id > 2:
            journal.delete(record_id - 3)
        record_id += 1
    assert len(journal_files(disk)) <= 4
    assert all(int.from_bytes(disk.content(name)[:4], "big") == int(name[8:18]) > 900 for name in journal_files(disk))
    journal.close()
    assert living(open_journal(disk.crash())) == [record_id - 3, record_id - 2, record_id - 1]


def test_a_crash_at_any_operation_of_a_reuse_loses_and_revives_nothing() -> None:
    def run(disk: SimulatedDisk) -> list[int]:
        sure: list[int] = []
        journal = open_journal(disk, SMALL.model_copy(update={"files_max": 5, "files_pool": 5}))
        try:
            for record_id in range(40):
                journal.add(record_id, 1, BODY)
                if record_id > 2:
                    journal.delete(record_id - 3)
                journal.sync()
                sure = list(range(max(0, record_id - 2), record_id + 1))
        except JournalFailed:
            pass
        return sure

    clean = SimulatedDisk()
    run(clean)
    reuse = [n for n, operation in enumerate(clean.operations) if operation.kind == "rename"][3:6]
    for stop in range(reuse[0] - 1, reuse[-1] + 6):
        for random in (None, *map(Random, range(6))):
            disk = SimulatedDisk()

            def before(operation: Operation, disk: SimulatedDisk = disk, stop: int = stop) -> None:
                if len(disk.operations) > stop:
                    raise OSError(errno.EIO, "the machine stops here")

            disk.before = before
            sure = run(disk)
            found = living(open_journal(disk.crash(random)))
            allowed = {*sure, sure[-1] + 1}
            assert set(found) <= allowed, f"stop={stop}"
            assert set(sure[1:]) <= set(found), f"stop={stop}"


def test_ids_wrap_and_the_order_stays() -> None:
    assert following_id(FILE_ID_MAX) == 1
    assert ring_order([2, FILE_ID_MAX, 1, FILE_ID_MAX - 1]) == [FILE_ID_MAX - 1, FILE_ID_MAX, 1, 2]
    assert ring_order([5]) == [5]
    assert ring_order([]) == []
    disk = SimulatedDisk()
    with open_journal(disk, SMALL.model_copy(update={"check": "size"})) as journal:
        journal.add(0, 1, BODY)
    content = disk.content("journal-0000000001.jrn")
    near_end = (FILE_ID_MAX - 2).to_bytes(4, "big")
    record = encode_body(11, FILE_ID_MAX - 2, None, 0, 1, BODY)
    disk = SimulatedDisk()
    put(disk, f"journal-{FILE_ID_MAX - 2}.jrn", (near_end + record).ljust(len(content), b"J"))
    expected = [0]
    for cycle in range(10):
        with open_journal(disk, SMALL.model_copy(update={"files_pool": 0})) as journal:
            assert living(journal) == expected
            expected += fill(journal, 100 * cycle + 1, 1)
            if cycle > 4:
                for record_id in expected[: PER_FILE + 1]:
                    journal.delete(record_id)
                del expected[: PER_FILE + 1]
        disk = disk.crash()
    assert min(int(name[8:18]) for name in journal_files(disk)) < 100
    assert living(open_journal(disk)) == expected


def put(disk: SimulatedDisk, name: str, content: bytes) -> None:
    file = disk.open(name, "create")
    file.write(0, content)
    file.sync()
    disk.sync_directory("")


# ---- bounds ------------------------------------------------------------------------------------------------------------------------------------


def test_reclaimed_files_are_kept_up_to_the_pool() -> None:
    for pool in (0, 3, 8):
        disk = SimulatedDisk()
        settings = SMALL.model_copy(update={"files_pool": pool})
        with open_journal(disk, settings) as journal:
            for record_id in fill(journal, 0, 10):
                journal.delete(record_id)
            fill(journal, 1000, 1)
            journal.reclaim()
            statistics = journal.statistics()
        assert statistics.files_data <= 2
        assert len(journal_files(disk)) == max(pool, 2, statistics.files_data + statistics.files_ready)


def test_a_full_journal_accepts_deletes_of_everything_and_then_works_again() -> None:
    for files_max, body in ((3, b""), (6, b"x" * 30), (20, BODY)):
        disk = SimulatedDisk()
        journal = open_journal(disk, SMALL.model_copy(update={"files_max": files_max}))
        for round_number in range(3):
            added = round_number * 10_000
            with pytest.raises(JournalFull):
                while True:
                    journal.add(added, 1, body)
                    added += 1
            assert len(journal) > 10
            assert len(journal_files(disk)) <= files_max
            journal.sync()
            ids = list(range(round_number * 10_000, added))
            Random(round_number).shuffle(ids)
            for record_id in ids:
                transaction = journal.begin()
                journal.delete_in(transaction, record_id) if record_id % 50 == 0 else journal.delete(record_id)
                journal.commit(transaction)
            assert len(journal) == 0
        journal.close()


def test_files_of_another_size_are_read_and_not_reused() -> None:
    disk = SimulatedDisk()
    expected: list[int] = []
    for number, size in enumerate((2048, 4096, 1024, 3000)):
        with open_journal(disk, SMALL.model_copy(update={"file_bytes": size})) as journal:
            assert living(journal) == expected
            expected += fill(journal, 1000 * number, 6)
    with open_journal(disk) as journal:
        for record_id in expected:
            journal.delete(record_id)
        fill(journal, 9000, 2)
        journal.reclaim()
        fill(journal, 9500, 8)
    assert {len(disk.content(name)) for name in journal_files(disk)} <= {1024, 3000}


# ---- what is damaged ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("check", ["hash", "size"])
def test_a_file_without_a_header_is_set_aside(check: str) -> None:
    disk = SimulatedDisk()
    settings = SMALL.model_copy(update={"check": check})
    with open_journal(disk, settings) as journal:
        fill(journal, 0, 2)
    name = journal_files(disk)[0]
    disk.replace(name, b"\0\0")
    with capture_logs() as logs, open_journal(disk, settings) as journal:
        assert living(journal) == list(range(PER_FILE, 2 * PER_FILE))
        assert journal.statistics().files_set_aside == 1
    assert disk.list("attic") == [f"{name}.lost"]
    assert disk.content(f"attic/{name}.lost") == b"\0\0"
    assert [entry["log_level"] for entry in logs] == ["warning"]


def test_a_transaction_with_records_in_a_file_that_was_lost_never_counts() -> None:
    disk = SimulatedDisk()
    with open_journal(disk) as journal:
        transaction = journal.begin()
        for record_id in range(2 * PER_FILE):
            journal.add_in(transaction, record_id, 1, BODY)
        journal.commit(transaction)
    disk.replace(journal_files(disk)[0], b"")
    for _ in range(3):
        with open_journal(disk) as journal:
            assert living(journal) == []
            assert len(journal.loaded.records) == 0
        disk = disk.crash()


def test_a_damaged_file_is_set_aside_when_it_is_not_needed() -> None:
    disk = SimulatedDisk()
    with open_journal(disk) as journal:
        fill(journal, 0, 3)
    name = journal_files(disk)[0]
    content = bytearray(disk.content(name))
    content[300] ^= 1
    disk.replace(name, bytes(content))
    with open_journal(disk) as journal:
        assert living(journal) == [each for each in range(3 * PER_FILE) if each != 1]
        assert journal.loaded.unhealthy == 1
        for record_id in list(range(2 * PER_FILE)):
            if record_id != 1:
                journal.delete(record_id)
        fill(journal, 100, 4)
        fill(journal, 200, 4)
        assert journal.statistics().files_set_aside == 1
    assert disk.content(f"attic/{name}") == bytes(content)


@pytest.mark.parametrize("damage", [b"\x7f\x7f\x7f\x7f", b"\0\0\0\0", b"\xff\xff\xff\xff", b"\0\0\0\x09"])
def test_headers_that_were_overwritten_cost_a_hash_journal_nothing_and_a_size_journal_refuses_them(damage: bytes) -> None:
    for check in ("hash", "size"):
        disk = SimulatedDisk()
        settings = SMALL.model_copy(update={"check": check})
        with open_journal(disk, settings) as journal:
            expected = list(fill(journal, 0, 2))
        for name in journal_files(disk):
            disk.replace(name, damage + disk.content(name)[4:])
        if check == "hash":
            with open_journal(disk, settings) as journal:
                assert living(journal) == expected
            assert all(int.from_bytes(disk.content(name)[:4], "big") == int(name[8:18]) for name in journal_files(disk))
        else:
            with pytest.raises(CorruptData):
                open_journal(disk, settings)


def test_one_overwritten_header_by_size_is_refused_and_nothing_is_touched() -> None:
    disk = SimulatedDisk()
    settings = SMALL.model_copy(update={"check": "size"})
    with open_journal(disk, settings) as journal:
        fill(journal, 0, 2)
    name = journal_files(disk)[0]
    damaged = b"\0\0\0\x63" + disk.content(name)[4:]
    disk.replace(name, damaged)
    with pytest.raises(CorruptData, match="the header says 99 and the records say 1"):
        open_journal(disk, settings)
    assert disk.content(name) == damaged
    disk.replace(name, b"\0\0\0\x01" + damaged[4:])
    assert living(open_journal(disk, settings)) == list(range(2 * PER_FILE))


def test_the_salt_survives_damage_to_one_copy_and_is_never_made_again() -> None:
    disk = SimulatedDisk()
    with open_journal(disk) as journal:
        journal.add(1, 1, b"x")
    salt = disk.content(SALT_FILE)
    for damaged in (b"\0" * 30 + salt[30:], salt[:520] + b"\0" * 20 + salt[540:], salt[:512]):
        disk.replace(SALT_FILE, damaged)
        with open_journal(disk) as journal:
            assert living(journal) == [1]
    disk.replace(SALT_FILE, b"\0" * 1024)
    with pytest.raises(CorruptData, match="both copies"):
        open_journal(disk)
    disk.remove(SALT_FILE)
    with pytest.raises(CorruptData, match="salt is missing"):
        open_journal(disk)
    assert not disk.exists(SALT_FILE)


def test_an_existing_journal_keeps_its_check() -> None:
    disk = SimulatedDisk()
    with open_journal(disk, SMALL.model_copy(update={"check": "size"})) as journal:
        journal.add(1, 1, b"x")
    with open_journal(disk) as journal:
        assert journal.statistics().check == "size"
        assert living(journal) == [1]
    put(disk, "journal-0000000077.jrh", b"\0\0\0\x4d".ljust(1024, b"J"))
    with pytest.raises(CorruptData, match="both checks"):
        open_journal(disk)


def test_two_processes_never_have_one_journal(tmp_path: Path) -> None:
    with Journal.open(FileSystemDisk(tmp_path), SMALL) as journal:
        with pytest.raises(InvalidSetting, match="another process"):
            Journal.open(FileSystemDisk(tmp_path), SMALL)
        journal.add(1, 1, b"x")
    assert living(Journal.open(FileSystemDisk(tmp_path), SMALL)) == [1]


@pytest.mark.parametrize("wrong", [{"file_bytes": 1023}, {"files_min": 1}, {"files_max": 2}, {"files_min": 9, "files_max": 5}, {"check": "crc"}])
def test_settings_that_cannot_work_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidSetting):
        JournalSettings(**wrong)
