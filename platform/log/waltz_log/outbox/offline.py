"""The directory of an outbox whose service is stopped: what is owed, the dead letters, and what an operator decides about them.

Locks the directory, as a service does. Read-only users share the lock. Forwards nothing. All calls block. A change is on disk when its call returns.
"""

from __future__ import annotations

import os
from typing import Self

from waltz_log.core.ports import Disk
from waltz_log.errors import InvalidRequest, InvalidSetting
from waltz_log.journal import Journal
from waltz_log.journal.directory import survey
from waltz_log.outbox.intent import Intent
from waltz_log.outbox.journal_writer import apply
from waltz_log.outbox.ledger import Change, DeadLetter, Entry
from waltz_log.outbox.settings import OutboxSettings
from waltz_log.outbox.store import open_journal, read_ledger

__all__ = ["OutboxDirectory"]


class OutboxDirectory:
    """`with OutboxDirectory(disk, now_ms) as outbox:`, or `read_only`. Raises `InvalidSetting` if a service holds the directory, `InvalidRequest` if
    there is no outbox in it: none is created."""

    def __init__(self, disk: Disk, now_ms: int, settings: OutboxSettings | None = None) -> None:
        _expect_outbox(disk)
        self._now_ms = now_ms
        journal, self._ledger, changes = open_journal(disk, settings or OutboxSettings(), now_ms, os.urandom)
        self._journal: Journal | None = journal
        self._close = journal.close
        for change in changes:
            self._write(change)

    @classmethod
    def read_only(cls, disk: Disk, now_ms: int) -> Self:
        """Opens the directory without changing it. Holds the disk's lock, shared if the disk is read-only."""
        self = cls.__new__(cls)
        try:
            disk.lock()
        except OSError:
            raise InvalidSetting(name="directory", reason="is in use by another process", nearest=None) from None
        try:
            _expect_outbox(disk)
            self._ledger = read_ledger(disk, OutboxSettings(), now_ms)
        except BaseException:
            disk.unlock()
            raise
        self._now_ms, self._journal, self._close = now_ms, None, disk.unlock
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    @property
    def client_id(self) -> int | None:
        return None if self._ledger.identity is None else self._ledger.identity.client_id

    @property
    def epoch(self) -> int:
        return 0 if self._ledger.identity is None else self._ledger.identity.epoch

    @property
    def size_bytes(self) -> int:
        return self._ledger.bytes

    def pending(self) -> list[Entry]:
        """What is owed, oldest first; an entry with an attempt is in doubt."""
        return list(self._ledger.entries.values())

    def dead_letters(self) -> list[DeadLetter]:
        return list(self._ledger.dead.values())

    def retry(self, dead_id: int, intent: Intent | None = None) -> int:
        """Resubmits the dead letter, or `intent` in its place. Returns the new id. The next start of the service forwards it."""
        dead = self._dead(dead_id)
        again = intent or dead.intent
        if again is None:
            raise InvalidRequest(reason=f"this dead letter cannot be read, and needs data in its place: dead_id={dead_id}")
        (entry,), change = self._ledger.submit([again], self._now_ms)
        change.deletes += self._ledger.forget(dead).deletes
        self._write(change)
        self._ledger.admit(entry)
        return entry.entry_id

    def drop(self, dead_id: int) -> None:
        """Removes the dead letter permanently."""
        self._write(self._ledger.forget(self._dead(dead_id)))

    def _dead(self, dead_id: int) -> DeadLetter:
        dead = self._ledger.dead.get(dead_id)
        if dead is None:
            raise InvalidRequest(reason=f"no such dead letter: dead_id={dead_id}")
        return dead

    def _write(self, change: Change) -> None:
        if self._journal is None:
            raise InvalidRequest(reason="the outbox was opened read-only")
        apply(self._journal, change)
        self._journal.sync()


def _expect_outbox(disk: Disk) -> None:
    if survey(disk).check is None:
        raise InvalidRequest(reason="there is no outbox in the directory: no service has kept one there yet, or it is another directory")
