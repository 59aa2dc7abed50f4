"""Corruption, imitation and torn bodies: what each check promises, and not more.

By hash: a flipped bit anywhere loses what it hit and nothing else, a transaction as a whole, and nothing is loaded that was not written. By size:
only what the layout writes down, a record of which the type, the file id, a size or the length at the end is not right; a torn body and an imitation
within a body are loaded, and the tests say so, because a user of that check should know.
"""

from __future__ import annotations

from random import Random

import pytest

from tests.unit.log.journal.model import contents
from tests.unit.log.journal.opened import CHECKS, SALT, directory_of, reference_of, state_of
from tests.unit.log.journal.reference import ADD, ADD_TX, COMMIT, PREPARE, UPDATE, UPDATE_TX, Entry, FileImage
from tests.unit.log.journal.scenarios import open_journal
from waltz_log.errors import CorruptData, JournalFailed
from waltz_log.journal import Loaded
from waltz_log.journal.directory import survey
from waltz_log.journal.loading import load
from waltz_log.journal.record_codec import UNHEALTHY, check_seed, encode_body, scan
from waltz_log.journal.settings import JournalSettings
from waltz_log.testing.disk import SimulatedDisk

FLIPS = 12_000
ONE_BY_ONE = 24
"""Flips for each of which a whole journal is opened as well, which writes and so costs more than loading."""


def written() -> SimulatedDisk:
    """Some files with everything in them: records, updates, deletes, transactions over files, some in doubt, stale records, holes."""
    disk = SimulatedDisk()
    journal = open_journal(disk)
    for record_id in range(60):
        journal.add(record_id, record_id % 3, bytes([record_id]) * (20 + record_id % 50))
        if record_id % 4 == 0:
            journal.update(record_id, 7, b"update %d" % record_id)
        if record_id % 3 == 0:
            journal.delete(record_id)
        if record_id == 30:
            journal.compact()
    first, second, third = journal.begin(), journal.begin(), journal.begin()
    for n in range(8):
        journal.add_in(first, 100 + n, 1, b"first" * 20)
        journal.add_in(second, 200 + n, 1, b"second" * 20)
    journal.delete_in(first, 1)
    journal.prepare(second)
    journal.commit(first)
    journal.add_in(third, 300, 1, b"never ended")
    journal.add(301, 1, b"last")
    journal.close()
    return disk.fork()


def loaded(disk: SimulatedDisk) -> Loaded:
    found = load(disk, survey(disk), JournalSettings(file_bytes=1024)).loaded
    assert found is not None
    return found


def test_a_flipped_bit_makes_no_healthy_record_and_loses_only_the_record_it_hits() -> None:
    random = Random(19)
    disk = written()
    salted = survey(disk)
    files = {file.name: (file.id, bytearray(disk.content(file.name)), salted.seed(file.id)) for file in salted.files}
    whole = {name: [each for each in scan(bytes(data), file_id, seed) if each.kind != UNHEALTHY] for name, (file_id, data, seed) in files.items()}
    names = [name for name in files if whole[name]]
    hits = 0
    for _ in range(FLIPS):
        name = random.choice(names)
        file_id, data, seed = files[name]
        place, bit = random.randrange(len(data)), 1 << random.randrange(8)
        data[place] ^= bit
        found = [each for each in scan(bytes(data), file_id, seed) if each.kind != UNHEALTHY]
        data[place] ^= bit
        assert found == [each for each in whole[name] if not each.offset <= place < each.end]
        hits += len(found) < len(whole[name])
    assert FLIPS // 4 < hits < FLIPS


def test_of_flipped_bits_nothing_is_loaded_that_was_not_written_and_no_half_transaction() -> None:
    load_flipped(500)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_of_many_more_flipped_bits_nothing_is_loaded_that_was_not_written() -> None:
    load_flipped(FLIPS)


def load_flipped(flips: int) -> None:
    random = Random(20)
    disk = written()
    files = [name for name in disk.list("") if name.startswith("journal-")]
    before = state_of(loaded(disk))
    parts = {(key, part) for key, entries in before.records.items() for part in entries}
    elements = {transaction: set(entries) for transaction, entries in before.prepared.items()}
    lost = broken = unharmed = 0
    for _ in range(flips):
        name = random.choice(files)
        content = disk.content(name)
        flipped = bytearray(content)
        flipped[random.randrange(len(content))] ^= 1 << random.randrange(8)
        disk.replace(name, bytes(flipped))
        found = loaded(disk)
        disk.replace(name, content)
        state = state_of(found)
        # A record that lost its delete is there again as it was written: one that a living record's flip can bring is among all that were written.
        gone = {(key, part) for key, part in parts if part not in state.records.get(key, [])}
        come = {(key, part) for key, entries in state.records.items() for part in entries} - parts
        assert come <= EVERYTHING, "a record that was never written"
        assert len({key for key, _ in gone}) <= 9, "one flip takes one record, or one transaction of nine"
        for transaction, entries in state.prepared.items():
            assert set(entries) == elements[transaction], "half a transaction"
        hit_first = {key for key, _ in gone} & set(range(100, 108))
        assert hit_first in (set(), set(range(100, 108))), "half a transaction"
        lost += bool(gone)
        broken += bool(found.broken_transactions)
        unharmed += not gone and not come
    assert lost > flips // 20
    assert broken > flips // 50
    assert unharmed > flips // 20


def _everything() -> set[tuple[int, Entry]]:
    plain = {(n, Entry(ADD, n, 0, n % 3, bytes([n]) * (20 + n % 50))) for n in range(60)}
    return (
        plain
        | {(n, Entry(UPDATE, n, 0, 7, b"update %d" % n)) for n in range(60)}
        | {(n, Entry(ADD, n, 0, 1, b"first" * 20)) for n in range(100, 108)}
    )


EVERYTHING = _everything()


def test_a_journal_opens_and_goes_on_after_a_flipped_bit_and_sets_the_file_aside() -> None:
    random = Random(21)
    disk = written()
    files = [name for name in disk.list("") if name.startswith("journal-")]
    for _ in range(ONE_BY_ONE):
        damaged = disk.fork()
        name = random.choice(files)
        flipped = bytearray(damaged.content(name))
        flipped[random.randrange(len(flipped))] ^= 1 << random.randrange(8)
        damaged.replace(name, bytes(flipped))
        expected = reference_of(damaged, "hash")
        journal = open_journal(damaged)
        assert contents(state_of(journal.loaded)) == contents(expected)
        journal.add(999, 0, b"on it goes")
        journal.close()
        again = open_journal(damaged.fork())
        assert 999 in again
        assert set(expected.records) <= {record.record_id for record in again.loaded.records}


@pytest.mark.parametrize("offset", range(4))
@pytest.mark.parametrize("bit", range(8))
def test_a_damaged_header_loses_nothing_by_hash(offset: int, bit: int) -> None:
    disk = directory_of(
        {7: bytes(FileImage(7, 1024, check=CHECKS["hash"]).put(Entry(ADD, 1, body=b"abc")).damage(offset, bytes([1 << bit])))}, "hash"
    )
    journal = open_journal(disk)
    assert 1 in journal
    journal.close()
    assert disk.content("journal-0000000007.jrh")[:4] == (7).to_bytes(4, "big")


def test_a_damaged_header_by_size_is_an_error_and_no_silent_loss() -> None:
    """Edge case 3: every header overwritten by 0x7f."""
    images = {file_id: bytes(FileImage(file_id, 1024).put(Entry(ADD, file_id, body=b"abc")).damage(0, b"\x7f" * 4)) for file_id in (1, 2)}
    with pytest.raises(CorruptData):
        open_journal(directory_of(images, "size"), check="size")
    one = {1: images[1]}
    disk = directory_of(one, "size")
    with pytest.raises(CorruptData, match="the header says"):
        open_journal(disk, check="size")
    assert disk.content("journal-0000000001.jrn") == images[1]


def test_damage_to_the_salt_is_no_damage_to_the_records() -> None:
    disk = written()
    content = disk.content("journal.salt")
    disk.replace("journal.salt", b"\xff" * 512 + content[512:])
    expected = reference_of(disk, "hash")
    journal = open_journal(disk)
    assert contents(state_of(journal.loaded)) == contents(expected)
    journal.close()
    disk.replace("journal.salt", b"\xff" * 1024)
    before = {name: disk.content(name) for name in disk.list("") if name.startswith("journal")}
    with pytest.raises(CorruptData, match="salt"):
        open_journal(disk)
    disk.remove("journal.salt")
    with pytest.raises(CorruptData, match="salt"):
        open_journal(disk)
    assert {name: disk.content(name) for name in disk.list("") if name.startswith("journal-")} == {
        name: content for name, content in before.items() if name.startswith("journal-")
    }


# ---- imitation -----------------------------------------------------------------------------------------------------------------------------------


def _around(forged: bytes, check: str, *, torn: bool) -> SimulatedDisk:
    """A record whose body holds another one. Torn: its own head never reached the disk, as when its first sector was lost."""
    image = FileImage(5, 2048, check=CHECKS[check])
    image.put(Entry(ADD, 1, body=b"before"), Entry(ADD, 2, body=bytes(600) + forged + bytes(100)))
    if torn:
        image.damage(4 + 22 + 6, b"J" * 40)
    image.put(Entry(ADD, 3, body=b"after"))
    return directory_of({5: bytes(image)}, check)


def _forged(check: str, *, knows_the_salt: bool = False) -> bytes:
    return Entry(ADD, 666, body=b"forged").encode(5, CHECKS["hash"] if knows_the_salt else CHECKS["size"])


@pytest.mark.parametrize("check", ["hash", "size"])
def test_an_imitation_within_a_healthy_record_is_its_body(check: str) -> None:
    journal = open_journal(_around(_forged(check), check, torn=False), check=check, file_bytes=2048)
    assert {record.record_id for record in journal.loaded.records} == {1, 2, 3}


def test_an_imitation_within_a_torn_record_is_none_by_hash() -> None:
    journal = open_journal(_around(_forged("hash"), "hash", torn=True), file_bytes=2048)
    assert {record.record_id for record in journal.loaded.records} == {1, 3}
    # It is the salt that protects: with it a record could be imitated, which shows that this test can fail.
    journal = open_journal(_around(_forged("hash", knows_the_salt=True), "hash", torn=True), file_bytes=2048)
    assert {record.record_id for record in journal.loaded.records} == {1, 666, 3}


def test_an_imitation_within_a_torn_record_is_loaded_by_size_as_the_layout_has_it() -> None:
    journal = open_journal(_around(_forged("size"), "size", torn=True), check="size", file_bytes=2048)
    assert {record.record_id for record in journal.loaded.records} == {1, 666, 3}


def test_a_record_of_another_journal_or_another_use_is_none_by_hash() -> None:
    for salt, file_id in ((b"another salt....", 5), (SALT, 4), (SALT, 6)):
        made = encode_body(ADD, 5, check_seed(salt, file_id), 666, 0, b"foreign")
        image = FileImage(5, 1024, check=CHECKS["hash"]).put(Entry(ADD, 1)).raw(made).put(Entry(ADD, 2))
        journal = open_journal(directory_of({5: bytes(image)}, "hash"))
        assert {record.record_id for record in journal.loaded.records} == {1, 2}


@pytest.mark.parametrize("sector", [1, 2])
def test_a_sector_torn_out_of_a_body_is_noticed_by_hash_and_not_by_size(sector: int) -> None:
    for check, expected in (("hash", {2}), ("size", {1, 2})):
        image = FileImage(5, 4096, check=CHECKS[check]).put(Entry(ADD, 1, body=b"b" * 2000), Entry(ADD, 2))
        image.damage(512 * sector, b"J" * 512)
        journal = open_journal(directory_of({5: bytes(image)}, check), check=check, file_bytes=4096)
        assert {record.record_id for record in journal.loaded.records} == expected


def test_a_new_record_torn_over_an_old_one_of_its_length_is_noticed_by_hash_and_not_by_size() -> None:
    """In a reused file the old length stands where the new one was to be: by size half of each makes a healthy record."""
    for check, expected in (("hash", set()), ("size", {2})):
        below = FileImage(4, 1024, check=CHECKS[check]).put(Entry(ADD, 1, body=b"old" * 100))
        new = Entry(ADD, 2, body=b"new" * 100).encode(5, CHECKS[check])
        image = FileImage(5, 1024, check=CHECKS[check], below=bytes(below)).raw(new[:150])
        journal = open_journal(directory_of({5: bytes(image)}, check), check=check)
        assert {record.record_id for record in journal.loaded.records} == expected


@pytest.mark.parametrize("kind", [COMMIT, PREPARE])
@pytest.mark.parametrize("check", ["hash", "size"])
def test_a_transaction_hit_at_any_byte_is_lost_whole(check: str, kind: int) -> None:
    elements = [Entry(ADD, 1), Entry(ADD_TX, 2, 50, 0, b"two"), Entry(UPDATE_TX, 1, 50, 0, b"one"), Entry(ADD_TX, 3, 50, 0, b"three")]
    whole = FileImage(1, 1024, check=CHECKS[check]).put(*elements, Entry(kind, transaction=50, listed=((1, 3),)))
    found = state_of(open_journal(directory_of({1: bytes(whole)}, check), check=check).loaded)
    assert (set(found.records), set(found.prepared)) == (({1, 2, 3}, set()) if kind == COMMIT else ({1}, {50}))
    for offset in range(4 + 22, whole.position):
        hit = bytearray(bytes(whole))
        hit[offset] ^= 0x81
        disk = directory_of({1: bytes(hit)}, check)
        expected = reference_of(disk, check)
        found = state_of(open_journal(disk, check=check).loaded)
        assert contents(found) == contents(expected)
        if check == "hash":
            assert set(found.records) == {1}
            assert len(found.records[1]) == 1
            assert not found.prepared


# ---- a disk that fails ---------------------------------------------------------------------------------------------------------------------------


def test_a_failed_sync_is_final_and_what_was_acknowledged_is_there() -> None:
    disk = SimulatedDisk()
    journal = open_journal(disk)
    journal.add(1, 0, b"sure")
    journal.sync()
    journal.add(2, 0, b"not sure")

    def fail(operation: object) -> None:
        if getattr(operation, "kind", "") == "sync":
            raise OSError(5, "the medium failed")

    disk.before = fail
    with pytest.raises(JournalFailed):
        journal.sync()
    disk.before = lambda operation: None
    done = len(disk.operations)
    for call in (journal.sync, lambda: journal.add(3, 0, b""), lambda: journal.delete(1), journal.compact, journal.begin, journal.reclaim):
        with pytest.raises(JournalFailed):
            call()
    journal.close()
    assert not [operation for operation in disk.operations[done:] if operation.kind in ("sync", "write")]
    assert {record.record_id for record in open_journal(disk.survivor([0] * len(disk.pending()))).loaded.records} == {1}
