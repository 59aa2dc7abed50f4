"""What a journal that lost or tore its last writes means: an intent that was sent is never mistaken for one that was not."""

from __future__ import annotations

import random

import pytest

from waltz_log.client import Intent
from waltz_log.outbox.journal_writer import apply
from waltz_log.outbox.ledger import Change, Entry, Ledger
from waltz_log.outbox.settings import OutboxSettings
from waltz_log.outbox.store import open_journal
from waltz_log.testing.disk import SimulatedDisk
from waltz_log.testing.medium import drawn_fate

SETTINGS = OutboxSettings(file_bytes=64 * 1024, bytes_max=1024 * 1024)
FRAME = 300
"""Enough that the deletes of a frame take several sectors, of which a crash can lose some."""


def forgotten_after_a_crash(seed: int, *, attempt_goes_with_its_intents: bool) -> int:
    """How many intents that were sent seem, after the crash, as if they never were."""
    rng = random.Random(seed)
    disk = SimulatedDisk()
    journal, ledger, _ = open_journal(disk, SETTINGS, 0, bytes)

    def write(change: Change) -> None:
        apply(journal, change)

    frames: list[list[Entry]] = []
    sequence = 1
    for _ in range(3):
        entries, change = ledger.submit([Intent.data(0, b"x")] * FRAME, 0)
        write(change)
        journal.sync()
        for entry in entries:
            ledger.admit(entry)
        change, older = ledger.sending(1, 0, sequence, 0, entries)
        sequence += FRAME
        write(change)
        journal.sync()
        ledger.released(older)
        frames.append(entries)
    sent = {entry.entry_id for entries in frames for entry in entries}
    for entries in frames[: rng.randrange(1, 4)]:
        change, attempts = ledger.decided(entries)
        write(change)
        if attempt_goes_with_its_intents:
            ledger.released(attempts)
            needless, ledger._needless = ledger._needless, []
            write(Change(deletes=needless))
    # Written, because the next change fills the buffer, and not synced.
    journal._writer.write()
    after = disk.survivor([drawn_fate(each, rng) for each in disk.pending()])
    again, found, _ = open_journal(after, SETTINGS, 0, bytes)
    again.close()
    assert found.next_sequence(0, 1) == sequence, "sequences must go on where they were"
    return sum(entry.attempt is None for entry in found.entries.values() if entry.entry_id in sent)


def test_an_intent_that_was_sent_is_in_doubt_or_gone_whatever_of_the_last_writes_is_lost() -> None:
    assert sum(forgotten_after_a_crash(seed, attempt_goes_with_its_intents=False) for seed in range(24)) == 0


def test_it_would_be_sent_twice_if_the_attempt_were_deleted_with_its_intents() -> None:
    """The rule above is needed: the runs find what happens without it."""
    assert sum(forgotten_after_a_crash(seed, attempt_goes_with_its_intents=True) for seed in range(12)) > 0


def test_attempts_are_deleted_once_no_intent_needs_them_but_the_newest_stays() -> None:
    ledger = Ledger()
    attempts_written: list[int] = []
    deleted: list[int] = []
    sequence = 1
    for _ in range(10):
        entries, _ = ledger.submit([Intent.data(0, b"x")] * 3, 0)
        for entry in entries:
            ledger.admit(entry)
        change, older = ledger.sending(1, 0, sequence, 0, entries)
        assert older == []
        sequence += 3
        attempts_written += [record_id for record_id, _, _ in change.adds]
        deleted += change.deletes
        _, attempts = ledger.decided(entries)
        ledger.released(attempts)
    assert deleted == attempts_written[:-2]
    assert [attempt.attempt_id for attempt in ledger.attempts(0)] == attempts_written[-1:]


def test_the_newest_attempt_of_an_intent_reports_where_it_is() -> None:
    disk = SimulatedDisk()
    journal, ledger, _ = open_journal(disk, SETTINGS, 0, bytes)
    entries, change = ledger.submit([Intent.data(0, b"x")] * 2, 0)
    apply(journal, change)
    for entry in entries:
        ledger.admit(entry)
    apply(journal, ledger.sending(1, 0, 1, 5, entries)[0])
    change, older = ledger.sending(1, 0, 3, 9, entries[1:])
    assert len(older) == 1
    apply(journal, change)
    journal.sync()
    journal.close()
    again, found, _ = open_journal(disk, SETTINGS, 0, bytes)
    again.close()
    first, second = found.entries.values()
    assert first.attempt is not None
    assert second.attempt is not None
    assert (first.attempt.first_sequence, second.attempt.first_sequence, second.attempt.since) == (1, 3, 9)
    assert found.in_doubt == 2
    assert found.next_sequence(0, 1) == 4
    assert found.next_sequence(0, 2) == 1
    found.absent(second)
    assert found.in_doubt == 1


@pytest.mark.parametrize("count", [1, 5])
def test_in_doubt_counts_what_is_sent_and_not_decided(count: int) -> None:
    ledger = Ledger()
    entries, _ = ledger.submit([Intent.data(0, b"x")] * count, 0)
    for entry in entries:
        ledger.admit(entry)
    ledger.sending(1, 0, 1, 0, entries)
    ledger.sending(1, 0, 1 + count, 0, entries)
    assert ledger.in_doubt == count
    ledger.decided(entries)
    assert ledger.in_doubt == 0
