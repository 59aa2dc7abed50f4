"""A journal for many threads, which append under one lock and share their syncs.

A thread that waits for its record while no sync is running leads one. It writes and syncs all that was appended, *outside* the lock, while other
threads continue to append. Then it wakes the threads whose records are synced. So a single caller needs no thread switch, and many callers share
one sync. A background thread syncs records without a waiter within `flush_s` and calls the callbacks; another prepares the next file.

Invariants: one sync at a time; while it runs, the file is not changed and no other operation that syncs begins; a call returns, or its callback is
called without an error, only after a sync that began after its record was appended; after a failure every waiter gets the error and nothing is synced
again. `linger_s` counts from the start of the previous sync, so it includes the duration of that sync. Callbacks are called in order, on the
journal's thread, without the lock. They must be short and may append. Source: docs/internals/journal.md.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self, TypeVar

from waltz_log.errors import InvalidRequest, JournalFull, WaltzError
from waltz_log.journal.journal import Journal
from waltz_log.journal.loading import Loaded, LoadedRecord
from waltz_log.journal.record_codec import BODY_OVERHEAD_BYTES, DELETE_TX_BYTES, TX_BODY_OVERHEAD_BYTES
from waltz_log.journal.settings import GroupCommitSettings
from waltz_log.journal.statistics import JournalStatistics
from waltz_log.loggers import get_logger

__all__ = ["GroupCommitJournal", "OnDone"]

T = TypeVar("T")

OnDone = Callable[[WaltzError | None], None]
"""Called once: with None when the record is on the medium, or with why it may not be."""

log = get_logger(__name__)


class GroupCommitJournal:
    """A journal for many threads, which share its syncs. It owns the journal: no other code may call that from now on, and `close` closes it. The
    journal's own thread calls `on_done`, with None or with the error."""

    def __init__(self, journal: Journal, settings: GroupCommitSettings | None = None, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._journal = journal
        self._writer = journal.writer
        self._settings = settings if settings is not None else GroupCommitSettings()
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._done = threading.Condition(self._lock)
        """Something that others wait for has ended: a sync, a preparation, an exclusive call."""
        self._sleepers: list[tuple[int, threading.Lock]] = []
        """The callers that wait until the file is on disk up to an offset, each with the lock on which it sleeps."""
        self._work = threading.Condition(self._lock)
        """There is something for the thread that flushes."""
        self._wanted = threading.Condition(self._lock)
        """A file should be prepared."""
        self._syncing = False
        self._lingering = False
        """A sync is to begin and waits for company."""
        self._preparing = False
        self._waiting_alone = 0
        """Calls that wait for the sync that runs to end, and no other to begin before them."""
        self._sync_began_s = float("-inf")
        self._unsynced_since_s: float | None = None
        self._callbacks: deque[tuple[int, OnDone]] = deque()
        self._armed = False
        self._moves = -1
        self._closing = False
        self._threads = [
            threading.Thread(target=each, name=f"waltz-journal-{each.__name__.strip('_')}", daemon=True) for each in (self._flush, self._prepare)
        ]
        for thread in self._threads:
            thread.start()

    # ---- changes ---------------------------------------------------------------------------------------------------------------------------------

    def add(self, record_id: int, user_type: int, body: bytes, *, sync: bool = True, on_done: OnDone | None = None) -> None:
        """As `Journal.add`. With `sync` the call returns when the record is on the medium. With `on_done` it returns immediately, and `on_done` is
        called then. With neither, the record is on the medium within `flush_s`. Waits while `unsynced_bytes_max` bytes are not synced."""
        self._change(lambda: self._journal.add(record_id, user_type, body), BODY_OVERHEAD_BYTES + len(body), 1, sync, on_done)

    def append_all(self, records: Sequence[tuple[int, int, bytes]], *, sync: bool = True, on_done: OnDone | None = None) -> None:
        """As `Journal.append_all`; `sync` and `on_done` as in `add`, for all of the records."""
        size = sum([len(record[2]) for record in records]) + BODY_OVERHEAD_BYTES * len(records)
        self._change(lambda: self._journal.append_all(records), size, len(records), sync, on_done)

    def update(self, record_id: int, user_type: int, body: bytes, *, sync: bool = True, on_done: OnDone | None = None) -> None:
        """As `Journal.update`; `sync` and `on_done` as in `add`."""
        self._change(lambda: self._journal.update(record_id, user_type, body), BODY_OVERHEAD_BYTES + len(body), 1, sync, on_done)

    def delete(self, record_id: int, *, sync: bool = True, on_done: OnDone | None = None) -> None:
        """As `Journal.delete`; `sync` and `on_done` as in `add`."""
        self._change(lambda: self._journal.delete(record_id), DELETE_TX_BYTES, 0, sync, on_done)

    def begin(self) -> int:
        """As `Journal.begin`."""
        with self._lock:
            return self._journal.begin()

    def add_in(self, transaction_id: int, record_id: int, user_type: int, body: bytes) -> None:
        """As `Journal.add_in`. It is on the medium when `prepare` or `commit` is."""
        self._change(lambda: self._journal.add_in(transaction_id, record_id, user_type, body), TX_BODY_OVERHEAD_BYTES + len(body), 1)

    def update_in(self, transaction_id: int, record_id: int, user_type: int, body: bytes) -> None:
        """As `Journal.update_in`. It is on the medium when `prepare` or `commit` is."""
        self._change(lambda: self._journal.update_in(transaction_id, record_id, user_type, body), TX_BODY_OVERHEAD_BYTES + len(body), 1)

    def delete_in(self, transaction_id: int, record_id: int) -> None:
        """As `Journal.delete_in`. It is on the medium when `prepare` or `commit` is."""
        self._change(lambda: self._journal.delete_in(transaction_id, record_id), DELETE_TX_BYTES, 0)

    def prepare(self, transaction_id: int, *, sync: bool = True, on_done: OnDone | None = None) -> None:
        """As `Journal.prepare`; `sync` and `on_done` as in `add`."""
        self._end(self._journal.prepare, transaction_id, sync, on_done)

    def commit(self, transaction_id: int, *, sync: bool = True, on_done: OnDone | None = None) -> None:
        """As `Journal.commit`; `sync` and `on_done` as in `add`."""
        self._end(self._journal.commit, transaction_id, sync, on_done)

    def rollback(self, transaction_id: int, *, sync: bool = True, on_done: OnDone | None = None) -> None:
        """As `Journal.rollback`; `sync` and `on_done` as in `add`."""
        self._end(self._journal.rollback, transaction_id, sync, on_done)

    def _end(self, end: Callable[[int], None], transaction_id: int, sync: bool, on_done: OnDone | None) -> None:
        with self._lock:
            size = self._journal.summary_bytes(transaction_id)
        self._change(lambda: end(transaction_id), size, 0, sync, on_done)

    def sync(self) -> None:
        """Returns when everything that any thread appended before is on the medium."""
        with self._lock:
            self._writer.usable()
            self._wait_synced(self._writer.appended)

    # ---- reading and compaction --------------------------------------------------------------------------------------------------------------------

    @property
    def loaded(self) -> Loaded:
        """As `Journal.loaded`."""
        return self._journal.loaded

    def drop_loaded(self) -> None:
        """As `Journal.drop_loaded`."""
        self._journal.drop_loaded()

    def read(self, record_id: int) -> list[LoadedRecord]:
        """As `Journal.read`. Appends wait meanwhile."""
        return self._alone(lambda: self._journal.read(record_id))

    def reclaim(self) -> int:
        """As `Journal.reclaim`. Appends wait meanwhile."""
        return self._alone(self._journal.reclaim)

    def compact(self) -> int:
        """As `Journal.compact`. Appends wait meanwhile."""
        return self._alone(self._journal.compact)

    def statistics(self) -> JournalStatistics:
        """As `Journal.statistics`."""
        with self._lock:
            return self._journal.statistics()

    def close(self) -> None:
        """Syncs what there is, unless the journal failed, and ends the threads and the journal. Callbacks have been called when it returns. Not to be
        called from one."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            self._work.notify_all()
            self._wanted.notify_all()
        for thread in self._threads:
            thread.join()
        try:
            with self._lock:
                while self._syncing:
                    self._done.wait()
                try:
                    self._journal.close()
                finally:
                    self._wake_all()
        finally:
            due, self._callbacks = list(self._callbacks), deque()
            self._call_back(due, self._writer.failure)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # ---- one change ------------------------------------------------------------------------------------------------------------------------------

    def _change(self, change: Callable[[], None], size: int, adds: int, sync: bool = False, on_done: OnDone | None = None) -> None:
        with self._lock:
            self._admit(size, adds)
            writer = self._writer
            try:
                change()
            finally:
                if writer.failed:
                    self._wake_all()
            if self._moves != writer.moves:
                self._moves = writer.moves
                self._wanted.notify()
            if self._unsynced_since_s is None and writer.synced != writer.appended:
                self._unsynced_since_s = self._monotonic()
            if self._lingering and writer.appended - writer.synced >= self._settings.group_bytes:
                self._notify()
            if on_done is not None:
                self._callbacks.append((writer.appended, on_done))
                self._armed = True
                self._work.notify()
            elif not sync and not self._armed:
                self._armed = True
                self._work.notify()
            target = writer.appended
        if sync and on_done is None:
            self._await_synced(target)

    def _wake_all(self) -> None:
        """Wakes every waiter to check its condition again, usually because of a failure."""
        self._notify()
        self._work.notify_all()
        self._wanted.notify_all()

    def _admit(self, size: int, adds: int) -> None:
        """Returns when the change may be made: not too much is unsynced, and where it will change the file or free some, nothing runs beside it."""
        writer = self._writer
        while True:
            if self._closing:
                raise InvalidRequest(reason="the journal is closed")
            writer.usable()
            if writer.appended - writer.synced >= self._settings.unsynced_bytes_max:
                self._wait_synced(writer.appended)
            elif (self._syncing or self._preparing) and not self._journal.only_appends(size, adds):
                self._wait_alone()
            else:
                return

    def _alone(self, call: Callable[[], T]) -> T:
        """Makes a call that may sync or read, beside which no sync may run."""
        with self._lock:
            while self._syncing or self._preparing:
                self._wait_alone()
            try:
                return call()
            finally:
                self._wake_all()

    def _wait_alone(self) -> None:
        """Until something ends; no sync begins meanwhile, and one that lingers begins at once."""
        self._waiting_alone += 1
        if self._lingering:
            self._notify()
        self._done.wait()
        self._waiting_alone -= 1
        self._notify()

    def _notify(self) -> None:
        """Wakes waiters after an operation ended: those that wait for the operation, those whose record is synced, and, if no sync is running, one
        that leads the next sync."""
        self._done.notify_all()
        writer, lead = self._writer, not (self._syncing or self._waiting_alone)
        asleep = []
        for target, sleeper in self._sleepers:
            if target <= writer.synced or writer.failed:
                sleeper.release()
            elif lead:
                sleeper.release()
                lead = False
            else:
                asleep.append((target, sleeper))
        self._sleepers = asleep

    # ---- syncing ---------------------------------------------------------------------------------------------------------------------------------

    def _wait_synced(self, target: int) -> None:
        """Waits. Called with the lock held, which is released meanwhile."""
        writer = self._writer
        while writer.synced < target:
            if writer.failed:
                writer.usable()
            if self._syncing or self._waiting_alone:
                self._done.wait()
            else:
                self._lead()

    def _await_synced(self, target: int) -> None:
        """The same without the lock: a thread that is woken because its record is on the medium need not acquire it again."""
        writer = self._writer
        while writer.synced < target:
            with self._lock:
                if writer.synced < target and writer.failed:
                    writer.usable()
                if writer.synced < target and not (self._syncing or self._waiting_alone):
                    self._lead()
                if writer.synced >= target or writer.failed:
                    continue
                sleeper = threading.Lock()
                sleeper.acquire()
                self._sleepers.append((target, sleeper))
            sleeper.acquire()

    def _lead(self) -> None:
        """Syncs all that was appended. Called with the lock held, which is released meanwhile. Waiters get a failure."""
        self._syncing = True
        try:
            self._linger()
            self._unsynced_since_s = None
            pending = None if self._writer.failed else self._writer.begin_sync()
            if pending is None:
                return  # a change of the file has synced it meanwhile
            self._sync_began_s = self._monotonic()
            failure = None
            self._lock.release()
            try:
                pending.run()
            except OSError as error:
                failure = error
            finally:
                self._lock.acquire()
            if failure is None:
                self._writer.end_sync(pending)
            else:
                self._writer.record_failure(failure)
        finally:
            self._syncing = False
            self._notify()
            if self._callbacks:
                self._work.notify()

    def _linger(self) -> None:
        """Waits for more records until `linger_s` after the previous sync began. After a slow sync the wait is short."""
        writer, settings = self._writer, self._settings
        due_s = self._sync_began_s + settings.linger_s
        while writer.appended - writer.synced < settings.group_bytes and not (self._closing or self._waiting_alone or writer.failed):
            left_s = due_s - self._monotonic()
            if left_s <= 0:
                break
            self._lingering = True
            self._done.wait(left_s)
            self._lingering = False

    # ---- the threads -----------------------------------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Syncs records without a waiter, and calls the callbacks."""
        with self._lock:
            while not self._closing:
                due = self._due_callbacks()
                if due:
                    failure = self._writer.failure
                    self._lock.release()
                    try:
                        self._call_back(due, failure)
                    finally:
                        self._lock.acquire()
                elif self._writer.failed or not self._armed:
                    self._work.wait()
                elif self._syncing or self._waiting_alone:
                    self._done.wait()
                elif self._callbacks:
                    self._lead()
                elif self._unsynced_since_s is None:
                    self._armed = False
                else:
                    left_s = self._unsynced_since_s + self._settings.flush_s - self._monotonic()
                    if left_s <= 0:
                        self._lead()
                    else:
                        self._work.wait(left_s)

    def _due_callbacks(self) -> list[tuple[int, OnDone]]:
        due = []
        while self._callbacks and (self._writer.failed or self._callbacks[0][0] <= self._writer.synced):
            due.append(self._callbacks.popleft())
        return due

    def _call_back(self, due: list[tuple[int, OnDone]], failure: WaltzError | None) -> None:
        synced = self._writer.synced
        for appended, on_done in due:
            try:
                on_done(None if appended <= synced else failure)
            except Exception:
                # A callback's defect is its owner's; the others and the journal go on.
                log.exception("journal callback failed")

    def _prepare(self) -> None:
        """Keeps one file ready, so that a change of the file seldom waits for one to be made."""
        with self._lock:
            while not self._closing and not self._writer.failed:
                planned = self._writer.plan_next()
                if planned is None:
                    self._wanted.wait()
                    continue
                self._preparing = True
                failure: Exception | None = None
                self._lock.release()
                try:
                    self._writer.prepare_next(planned)
                except (OSError, JournalFull) as error:
                    failure = error
                finally:
                    self._lock.acquire()
                    self._preparing = False
                    self._notify()
                if failure is None:
                    self._writer.next_prepared(planned)
                elif isinstance(failure, OSError):
                    self._writer.record_failure(failure)
                    self._work.notify_all()
                else:
                    self._wanted.wait()  # no space: the next change of the file raises it
