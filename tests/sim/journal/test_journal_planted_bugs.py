"""The proof is proven: each bug that a journal could have is planted, and the checkers must fail; without it they pass (`test_journal_crashes.py`).

The name of the test says what is planted. Each names the lives that must catch it; one of them is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any

import pytest

from tests.unit.log.journal.model import contents
from tests.unit.log.journal.opened import CHECKS, SALT, directory_of, reference_of, state_of
from tests.unit.log.journal.reference import ADD, ADD_TX, COMMIT, Entry, FileImage
from tests.unit.log.journal.scenarios import (
    JournalScenario,
    Life,
    Player,
    check_survivor,
    compaction_moves_what_lives,
    deletes_stand_in_later_files,
    files_are_reused_over_and_over,
    open_journal,
    prepared_and_decided,
    records_roll_through_files,
    what_was_never_synced,
)
from verification.crashes.crashes import CrashFound, Effort, enumerate_crashes
from waltz_log.errors import JournalFailed
from waltz_log.journal import compaction, directory, loading, open_directory, record_codec, record_ledger, ring, writer
from waltz_log.journal.record_codec import Record
from waltz_log.testing.disk import Operation, SimulatedDisk

EFFORT = Effort("pytest tests/sim/journal/test_journal_planted_bugs.py", subsets_of=3, drawn=3, torn_every=97, recovery_every=0)


async def caught(*lives: Life, **values: Any) -> bool:
    check = partial(check_survivor, replaceable=values.get("replaceable_types", frozenset()))
    for life in lives:
        try:
            await enumerate_crashes(life.__name__, partial(JournalScenario, life, **values), check, EFFORT)
        except CrashFound:
            return True
    return False


def hole_in_the_first_file() -> SimulatedDisk:
    """A transaction over two files; of the first a record is missing."""
    first = FileImage(1, 1024).put(Entry(ADD, 9), Entry(ADD_TX, 1, 5, 0, b"a"), Entry(ADD_TX, 2, 5, 0, b"b"))
    second = FileImage(2, 1024).put(Entry(ADD_TX, 3, 5, 0, b"c"), Entry(COMMIT, transaction=5, listed=((1, 2), (2, 1))))
    first.damage(4 + 22, b"J")
    return directory_of({1: bytes(first), 2: bytes(second)}, "size")


def loads_as_the_reference(disk: SimulatedDisk) -> bool:
    found = open_journal(disk.fork(), check="size").loaded
    return contents(state_of(found)) == contents(reference_of(disk, "size"))


def test_a_commit_that_is_counted_only_in_its_own_file(monkeypatch: pytest.MonkeyPatch) -> None:
    assert loads_as_the_reference(hole_in_the_first_file())
    decide = loading._Loader._decide

    def own_file_only(loader: Any, record: Record, file: record_ledger.JournalFile) -> None:
        transaction = loader._open.get(record.transaction_id)
        counts = tuple((each.id, count if each is not file else dict(record.counts)[file.id]) for each, count in transaction.counts.items())
        decide(loader, record._replace(counts=counts), file)

    monkeypatch.setattr(loading._Loader, "_decide", own_file_only)
    assert not loads_as_the_reference(hole_in_the_first_file())


def test_half_a_transaction_that_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def as_it_stands(loader: Any, record: Record, file: record_ledger.JournalFile) -> None:
        decide(loader, record._replace(counts=()), file) if record.transaction_id not in loader._open else decide(
            loader,
            record._replace(counts=tuple((each.id, count) for each, count in loader._open[record.transaction_id].counts.items() if count)),
            file,
        )

    decide = loading._Loader._decide
    monkeypatch.setattr(loading._Loader, "_decide", as_it_stands)
    assert not loads_as_the_reference(hole_in_the_first_file())


def records_that_stay(play: Player) -> None:
    for record_id in range(1, 7):
        play.add(record_id, 900)
        play.sync()


async def test_a_file_that_is_reused_while_a_record_lives_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_too_few(living: Sequence[int], outlives: Sequence[Collection[int]]) -> list[bool]:
        return right([*[count - 1 if count == 1 else count for count in living[:-1]], *living[-1:]], outlives)

    right = record_ledger.reclaimable
    assert not await caught(records_that_stay)
    monkeypatch.setattr(record_ledger, "reclaimable", one_too_few)
    assert await caught(records_that_stay)


async def test_a_delete_that_is_reclaimed_before_its_add(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_ledger.JournalFile, "must_outlive", lambda self, other: None)
    assert await caught(deletes_stand_in_later_files)


async def test_an_acknowledgment_before_the_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer.Writer, "sync", writer.Writer.write)
    assert await caught(records_roll_through_files)


async def test_the_id_of_an_earlier_use_that_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    def any_use(data: bytes, file_id: int, seed: int | None) -> Iterator[Record]:
        for own in range(1, file_id + 1):
            yield from record_codec.scan(data, own, record_codec.check_seed(SALT, own))

    monkeypatch.setattr(loading, "scan_runs", any_use)
    assert await caught(files_are_reused_over_and_over)


async def test_the_new_id_of_a_file_that_is_not_on_the_medium_before_its_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring.Ring, "_rename", lambda self, old, new: self._disk.rename(old, new) if old != new else None)
    assert await caught(files_are_reused_over_and_over, records_roll_through_files)


async def test_a_file_that_is_given_back_before_what_frees_it_is_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer.Writer, "reclaim", writer.Writer._release)
    move = writer.Writer.move

    def release_first(self: writer.Writer, **options: Any) -> None:
        self._release()
        move(self, **options)

    monkeypatch.setattr(writer.Writer, "move", release_first)
    assert await caught(records_roll_through_files, compaction_moves_what_lives, deletes_stand_in_later_files, files_pool=2)


async def test_a_compaction_that_frees_before_its_copies_are_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer.Writer, "reclaim", writer.Writer._release)
    assert await caught(compaction_moves_what_lives, files_pool=2)


async def test_a_compaction_that_forgets_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    read = compaction.Compactor.read
    monkeypatch.setattr(compaction.Compactor, "read", lambda self, *rest: read(self, *rest)[:1])
    assert await caught(compaction_moves_what_lives)


async def test_an_opening_that_reports_what_is_not_on_the_medium(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_directory, "_repair", lambda *rest: None)
    assert await caught(what_was_never_synced)


async def test_a_prepared_transaction_that_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading._Loader, "_prepared_transaction", lambda self, transaction: loading.PreparedTransaction(transaction.id, [], []))
    assert await caught(prepared_and_decided)


def _failing_sync(monkeypatch: pytest.MonkeyPatch, prepare: Callable[[], None]) -> bool:
    """Whether a record that was acknowledged after a failed sync is there after a crash."""
    disk = SimulatedDisk()
    journal = open_journal(disk)
    failures = [True]

    def fail_once(operation: Operation) -> None:
        if operation.kind == "sync" and failures:
            failures.clear()
            raise OSError(5, "the medium failed", operation.path)

    prepare()
    journal.add(1, 0, b"abc")
    disk.before = fail_once
    acknowledged = False
    for _ in range(2):
        try:
            journal.sync()
        except (OSError, JournalFailed):
            continue
        acknowledged = True
    after = open_journal(disk.survivor([0] * len(disk.pending())))
    return not acknowledged or 1 in after


def test_a_failed_sync_that_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _failing_sync(monkeypatch, lambda: None)

    def not_final(self: writer.Writer, error: OSError) -> None:
        raise error

    assert not _failing_sync(monkeypatch, lambda: monkeypatch.setattr(writer.Writer, "fail", not_final))


def test_a_search_that_goes_on_too_far_behind_an_unhealthy_place(monkeypatch: pytest.MonkeyPatch) -> None:
    torn = Entry(ADD, 1, body=bytes(100)).encode(1)[:10]
    disk = directory_of({1: bytes(FileImage(1, 1024).raw(torn).put(Entry(ADD, 2)))}, "size")
    assert loads_as_the_reference(disk)
    record_at = record_codec._record_at

    def past_the_head(data: bytes, view: memoryview, offset: int, seed: int | None) -> Record:
        found = record_at(data, view, offset, seed)
        return found._replace(end=offset + record_codec.BODY_OVERHEAD_BYTES) if found.kind == record_codec.UNHEALTHY else found

    monkeypatch.setattr(record_codec, "_record_at", past_the_head)
    assert not loads_as_the_reference(disk)


def test_a_hash_that_is_the_same_for_each_use_of_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record of another use whose file id alone was overwritten: with a seed of its own for each use it is none."""
    foreign = Entry(ADD, 666, body=b"foreign").encode(5, lambda body, file_id: CHECKS["hash"](body, 4))
    disk = directory_of({5: bytes(FileImage(5, 1024, check=CHECKS["hash"]).raw(foreign))}, "hash")
    assert not open_journal(disk.fork()).loaded.records
    seed = record_codec.check_seed
    monkeypatch.setattr(directory, "check_seed", lambda salt, file_id: seed(salt, 4))
    monkeypatch.setattr(writer, "check_seed", lambda salt, file_id: seed(salt, 4))
    assert open_journal(disk).loaded.records


async def test_a_replaced_update_that_removes_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    def replaced_over_and_over(play: Player) -> None:
        play.add(1, 500)
        for size in (700, 701, 702, 703, 704, 705):
            play.update(1, size)
            play.sync()

    assert not await caught(replaced_over_and_over, replaceable_types=frozenset({1}))
    cancel = record_ledger.Ledger._cancel

    def counted_twice(self: record_ledger.Ledger, place: int, by: record_ledger.JournalFile) -> None:
        cancel(self, place, by)
        for file in self.files.values():
            if file.serial == (place >> record_ledger.OFFSET_BITS) - 1:
                file.live = 0

    monkeypatch.setattr(record_ledger.Ledger, "_cancel", counted_twice)
    assert await caught(replaced_over_and_over, replaceable_types=frozenset({1}))
