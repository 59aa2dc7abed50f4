"""The journal's loading against the reference's, on files that no journal need have written: any records in any order, holes, stale and torn bytes.

After it, what the journal thinks it can reclaim is removed, file by file in its order: what is left must load the same, at every step.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.log.journal.model import contents
from tests.unit.log.journal.opened import CHECKS, directory_of, state_of
from tests.unit.log.journal.reference import BODIED, ELEMENTS, Check, Entry, FileImage, load
from waltz_log.journal import loading
from waltz_log.journal.directory import survey
from waltz_log.journal.settings import JournalSettings

FILE_BYTES = 1024


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


FORMATS = pytest.mark.parametrize(("name", "check"), CHECKS.items(), ids=CHECKS)


@FORMATS
@settings(max_examples=60, deadline=None)
@given(files=histories(), data=st.data())
def test_any_files_load_as_the_reference_loads_them_and_reclaiming_changes_nothing(
    name: str, check: Check, files: list[list[Entry]], data: st.DataObject
) -> None:
    compare(name, check, files, data)


@pytest.mark.long
@FORMATS
@settings(max_examples=250, deadline=None)
@given(files=histories(), data=st.data())
def test_more_files_load_as_the_reference_loads_them(name: str, check: Check, files: list[list[Entry]], data: st.DataObject) -> None:
    compare(name, check, files, data)


@pytest.mark.slow
@pytest.mark.timeout(1800)
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
    replaceable = data.draw(st.sampled_from([frozenset[int](), frozenset({1, 2})]))
    expected = load(images.values(), check, replaceable)
    disk = directory_of(images, name)
    found = loading.load(disk, survey(disk), JournalSettings(file_bytes=FILE_BYTES, replaceable_types=replaceable))
    assert found.loaded is not None
    assert contents(state_of(found.loaded)) == contents(expected)
    assert state_of(found.loaded).failed == expected.failed
    if not expected.failed:  # what a journal does with those before it reclaims is its opening's business
        for going in found.ledger.reclaim(None):
            del images[going.id]
            assert contents(load(images.values(), check, replaceable)) == contents(expected)
