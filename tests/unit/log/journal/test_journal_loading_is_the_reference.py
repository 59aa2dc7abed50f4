"""The journal's loading against the reference's, on files that no journal need have written: any records in any order, holes, stale and torn bytes.

After it, what the journal thinks it can reclaim is taken away, file by file in its order: what is left must load the same, at every step.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.log.journal.model import contents
from tests.unit.log.journal.reference import BODIED, DELETE_TX, ELEMENTS, Check, Entry, FileImage, State, check_size, hash_check, load
from waltz_log.journal import codec, loading
from waltz_log.journal.directory import journal_name, survey
from waltz_log.journal.salt import create_salt
from waltz_log.journal.settings import JournalSettings
from waltz_log.testing.disk import SimulatedDisk

SALT = b"sixteen bytes..."
FILE_BYTES = 1024
SETTINGS = JournalSettings(file_bytes=FILE_BYTES)


def put(disk: SimulatedDisk, name: str, content: bytes) -> None:
    file = disk.open(name, "create")
    file.write(0, content)
    file.sync()
    file.close()


def directory_of(files: dict[int, bytes], check: str) -> SimulatedDisk:
    disk = SimulatedDisk()
    if check == "hash":
        create_salt(disk, lambda length: SALT)
    for file_id, content in files.items():
        put(disk, journal_name(file_id, "hash" if check == "hash" else "size"), content)
    disk.sync_directory("")
    return disk


def state_of(loaded: loading.Loaded) -> State:
    """What a journal told at its opening, in the words of the reference."""
    state = State()
    for each in loaded.records:
        entry = Entry(codec.UPDATE if each.is_update else codec.ADD, each.record_id, 0, each.user_type, each.body)
        state.records.setdefault(each.record_id, []).append(entry)
    for transaction in loaded.prepared:
        told = [
            Entry(codec.UPDATE_TX if each.is_update else codec.ADD_TX, each.record_id, 0, each.user_type, each.body) for each in transaction.records
        ]
        state.prepared[transaction.transaction_id] = told + [Entry(DELETE_TX, record_id) for record_id in transaction.deletes]
    state.failed = set(loaded.failed_transactions) | set(loaded.broken_transactions)
    return state


record_ids = st.integers(0, 5)
transactions = st.integers(50, 53)
bodies = st.binary(max_size=12)


@st.composite
def histories(draw: st.DrawFn) -> list[list[Entry]]:
    """The records of some files, in order. Commits and prepares mostly list what is there."""
    files: list[list[Entry]] = []
    counts: dict[int, Counter[int]] = {}
    for file_id in range(1, draw(st.integers(1, 5)) + 1):
        files.append([])
        for _ in range(draw(st.integers(0, 8))):
            kind = draw(st.integers(11, 19))
            transaction = draw(transactions) if kind >= 13 and kind != 16 else 0
            listed: tuple[tuple[int, int], ...] = ()
            if kind in ELEMENTS:
                counts.setdefault(transaction, Counter())[file_id] += 1
            if kind in (17, 18):
                listed = tuple(counts.get(transaction, Counter()).items())
                if draw(st.integers(0, 5)) == 0:
                    listed = tuple(draw(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 3)), max_size=2, unique_by=lambda pair: pair[0])))
            if kind in (18, 19):
                counts.pop(transaction, None)
            body = draw(bodies) if kind in BODIED else b""
            record_id = draw(record_ids) if kind <= 16 else 0
            files[-1].append(Entry(kind, record_id, transaction, draw(st.integers(0, 2)) if kind in BODIED else 0, body, listed))
    return files


FORMATS = pytest.mark.parametrize(("name", "check"), [("size", check_size), ("hash", hash_check(SALT))], ids=["size", "hash"])


@FORMATS
@settings(max_examples=250, deadline=None)
@given(files=histories(), data=st.data())
def test_any_files_load_as_the_reference_loads_them_and_reclaiming_changes_nothing(
    name: str, check: Check, files: list[list[Entry]], data: st.DataObject
) -> None:
    compare(name, check, files, data)


@pytest.mark.slow
@FORMATS
@settings(max_examples=8000, deadline=None)
@given(files=histories(), data=st.data())
def test_many_more_files_load_as_the_reference_loads_them(name: str, check: Check, files: list[list[Entry]], data: st.DataObject) -> None:
    compare(name, check, files, data)


def compare(name: str, check: Check, files: list[list[Entry]], data: st.DataObject) -> None:
    images: dict[int, bytes] = {}
    for file_id, records in enumerate(files, 1):
        below = FileImage(file_id + 100, FILE_BYTES, check=check).put(*[Entry(11, n, body=b"stale" * n) for n in range(10)])
        image = FileImage(file_id, FILE_BYTES, check=check, below=bytes(below))
        for entry in records:
            image.put(entry).hole(data.draw(st.sampled_from([0, 0, 0, 1, 30])))
        images[file_id] = bytes(image)
    missing = data.draw(st.sets(st.sampled_from(list(images)), max_size=1))
    images = {file_id: image for file_id, image in images.items() if file_id not in missing}
    expected = load(images.values(), check)
    disk = directory_of(images, name)
    found = loading.load(disk, survey(disk), SETTINGS)
    assert found.loaded is not None
    assert contents(state_of(found.loaded)) == contents(expected)
    assert state_of(found.loaded).failed == expected.failed
    if not expected.failed:  # what a journal does with those before it reclaims is its opening's business
        for going in found.ledger.reclaim(None):
            del images[going.id]
            assert contents(load(images.values(), check)) == contents(expected)
