"""The journal: records that live until they are deleted, alone or in transactions, in a bounded ring of files.

One caller at a time. It blocks on its disk and starts no thread, task or timer, so it runs in a simulator as in a thread (group_commit.py is the
shell for many threads). Appending only buffers: records appended before a `sync` are on the medium when it returns, and not earlier. A full buffer or
file is written, but that acknowledges nothing.

Invariants: the ledger (record_ledger.py) changes only together with the record of the change; an invalid call, or one without room, affects only its
transaction; only the open transaction that changed a record may change it until the transaction ends; a failed write or sync is final. Source: the
layout; docs/internals/journal.md.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from types import TracebackType
from typing import Final, Self

from waltz_log.core.ports import Disk
from waltz_log.errors import CorruptData, InvalidRequest, JournalFull, UnknownRecord, WaltzError
from waltz_log.journal.compaction import Compactor
from waltz_log.journal.journal_transaction import Transaction
from waltz_log.journal.loading import Loaded, LoadedRecord
from waltz_log.journal.open_directory import Opened, open_directory
from waltz_log.journal.record_codec import (
    ADD,
    ADD_TX,
    BODY_OVERHEAD_BYTES,
    COMMIT,
    DELETE_BYTES,
    DELETE_TX,
    DELETE_TX_BYTES,
    FILE_HEADER_BYTES,
    ID_MAX,
    PREPARE,
    TX_BODY_OVERHEAD_BYTES,
    UPDATE,
    UPDATE_TX,
    CheckKind,
    check_ids,
    encode_adds,
    encode_body,
    encode_delete,
    encode_rollback,
    encode_summary,
    summary_bytes,
)
from waltz_log.journal.record_ledger import JournalFile
from waltz_log.journal.settings import JournalSettings
from waltz_log.journal.statistics import JournalStatistics, gather
from waltz_log.journal.writer import Writer

__all__ = ["Journal"]

RESERVE_BYTES_MAX: Final = 64 * 1024
"""Kept free in addition to the room for all deletes: for commits, and for updates when adds are refused already."""


class Journal:
    """A journal on a disk, for one caller at a time, made by `open`. Appending only buffers; `sync` puts everything on the medium. Errors:
    `UnknownRecord` and other `InvalidRequest`s (the call was wrong), `TransactionTooLarge` (a record larger than a file), `JournalFull` (delete
    first), `JournalFailed` (final)."""

    def __init__(self, disk: Disk, settings: JournalSettings, opened: Opened) -> None:
        self._disk = disk
        self._settings = settings
        self._check: CheckKind = opened.check
        self._ring = opened.ring
        self._ledger = opened.loading.ledger
        self._places = self._ledger.places
        self._writer = opened.writer
        self._loaded = opened.loading.loaded
        assert self._loaded is not None
        self._transactions = opened.loading.transactions
        self._transaction_id = self._loaded.transaction_id_max
        self._owners: dict[int, int] = {each: tx.id for tx in self._transactions.values() for each in tx.lives}
        """Record id to the open transaction that changed it."""
        self._reserve_bytes = min(RESERVE_BYTES_MAX, settings.file_bytes // 2)
        self._compactor = Compactor(disk, settings, self._ledger, self._writer, opened.salt, self._owners, self._next_transaction_id)

    @classmethod
    def open(cls, disk: Disk, settings: JournalSettings | None = None, entropy: Callable[[int], bytes] = os.urandom) -> Self:
        """Locks the disk's directory and loads the journal, or creates one. `entropy` provides the secret of a new journal. Raises `InvalidSetting`
        if another process holds the directory, `CorruptData` if its files cannot be one journal."""
        settings = settings if settings is not None else JournalSettings()
        return cls(disk, settings, open_directory(disk, settings, entropy))

    # ---- what was there --------------------------------------------------------------------------------------------------------------------------

    @property
    def loaded(self) -> Loaded:
        """The records and transactions that opening found, until `drop_loaded`."""
        if self._loaded is None:
            raise InvalidRequest(reason="the loaded records were released")
        return self._loaded

    def drop_loaded(self) -> None:
        """Frees the memory of `loaded`."""
        self._loaded = None

    def __contains__(self, record_id: object) -> bool:
        """Whether a record lives. What an open transaction does to it does not count yet."""
        return record_id in self._places

    def __len__(self) -> int:
        return len(self._places)

    def read(self, record_id: int) -> list[LoadedRecord]:
        """A live record as stored in its files: its add and its updates in order. Raises `CorruptData` if it is corrupt there."""
        self._writer.usable()
        if record_id not in self._places:
            raise UnknownRecord(what="record", id=record_id)
        try:
            parts = self._compactor.read(record_id)
        except OSError as error:
            self._writer.fail(error)
        if not parts:
            raise CorruptData(where=f"journal record {record_id}", offset=-1, transaction_id=-1, reason="damaged; the log names its file")
        return [LoadedRecord(each.record_id, each.user_type, each.body, each.kind in (UPDATE, UPDATE_TX)) for each in parts]

    # ---- records outside transactions ------------------------------------------------------------------------------------------------------------

    def add(self, record_id: int, user_type: int, body: bytes) -> None:
        """Adds a record. No live record may have its id. The caller chooses ids, and may use one again after a delete. Raises `JournalFull` if the
        rest is kept for deletes, and `TransactionTooLarge`."""
        writer = self._writer
        writer.usable()
        if record_id in self._places or record_id in self._owners:
            raise InvalidRequest(reason=f"record {record_id} exists already")
        size = BODY_OVERHEAD_BYTES + len(body)
        self._expect_free(size, 1)
        file, offset = self._put(ADD, record_id, user_type, body, size)
        self._ledger.add(record_id, file, offset)
        if writer.moved:
            self._after_move()

    def _put(self, kind: int, record_id: int, user_type: int, body: bytes, size: int, transaction_id: int | None = None) -> tuple[JournalFile, int]:
        """Appends an add or update of that size. Its file and offset."""
        check_ids(record_id, user_type)
        writer = self._writer
        writer.reserve(size, leaving_one=True)
        file = writer.file
        offset = writer.put(encode_body(kind, file.id, writer.seed, record_id, user_type, body, transaction_id))
        file.records += 1
        file.bytes += size
        return file, offset

    def append_all(self, records: Sequence[tuple[int, int, bytes]]) -> None:
        """Adds many new records (record id, user type, body) in one step: all of them or, if it raises, none. Not a transaction: a crash before the
        next sync can lose some of them."""
        writer = self._writer
        writer.usable()
        ids = [record[0] for record in records]
        if not self._places.keys().isdisjoint(ids) or len(set(ids)) != len(ids) or (self._owners and not self._owners.keys().isdisjoint(ids)):
            raise InvalidRequest(reason="one of the records exists already, or is twice in the call")
        sizes = [BODY_OVERHEAD_BYTES + len(record[2]) for record in records]
        ends = list(accumulate(sizes))
        if not ends:
            return
        largest = max(sizes)
        writer.refuse_too_large(largest)
        types = {record[1] for record in records}
        for pick in (min, max):
            check_ids(pick(ids), pick(types))
        # Each file may leave a tail that the next record did not fit.
        files = 0 if writer.fits(ends[-1]) else 1 + ends[-1] // max(1, self._settings.file_bytes - FILE_HEADER_BYTES - largest)
        self._expect_free(ends[-1] + files * largest, len(records))
        if files:
            writer.make_ready(files)
        done = 0
        while done < len(records):
            done += self._append_some(records, sizes, ids, done)
        if writer.moved:
            self._after_move()

    def _append_some(self, records: Sequence[tuple[int, int, bytes]], sizes: list[int], ids: list[int], done: int) -> int:
        """Appends what fits the file, from `done` on; at least one. How many."""
        writer = self._writer
        writer.reserve(sizes[done])  # `append_all` has made files ready
        places = list(accumulate(sizes[done:], initial=writer.position))
        count = bisect_right(places, writer.file.size) - 1
        file, total = writer.file, places[count] - places[0]
        writer.put(b"".join(encode_adds(file.id, writer.seed, records[done : done + count])))
        file.records += count
        file.bytes += total
        base = file.base
        self._ledger.add_all(ids[done : done + count], [base + place for place in places[:count]], file)
        return count

    def update(self, record_id: int, user_type: int, body: bytes) -> None:
        """Appends a part to a live record. A part of a replaceable type replaces the previous part of that type."""
        writer = self._writer
        writer.usable()
        self._check_changeable(record_id)
        size = BODY_OVERHEAD_BYTES + len(body)
        self._expect_free(size, 0)
        file, offset = self._put(UPDATE, record_id, user_type, body, size)
        self._ledger.update(record_id, user_type, file, offset)
        if writer.moved:
            self._after_move()

    def delete(self, record_id: int) -> None:
        """Deletes a record. There is always room for a delete, even if adds and updates are refused."""
        writer = self._writer
        writer.usable()
        self._check_changeable(record_id)
        writer.reserve(DELETE_BYTES)
        writer.put(encode_delete(writer.file.id, writer.seed, record_id))
        self._ledger.delete(record_id, writer.file)
        if writer.moved:
            self._after_move()

    def _check_changeable(self, record_id: int) -> None:
        if record_id not in self._places:
            raise UnknownRecord(what="record", id=record_id)
        if record_id in self._owners:
            raise InvalidRequest(reason=f"record {record_id} belongs to the open transaction {self._owners[record_id]}")

    def _expect_free(self, size: int, adds: int) -> None:
        """Refuses what would leave too little room to delete everything."""
        writer = self._writer
        kept = self._kept_bytes(adds)
        if writer.free_bytes - size < kept:
            writer.reclaim()
            if writer.free_bytes - size < kept:
                self._compactor.run()
            if writer.free_bytes - size < kept:
                limit = self._settings.files_max * self._settings.file_bytes
                raise JournalFull(reason=f"{writer.free_bytes} of {limit} bytes are free, and deletes need them")

    def _kept_bytes(self, adds: int) -> int:
        return DELETE_TX_BYTES * (len(self._places) + len(self._owners) + adds) + (self._reserve_bytes if adds else 0)

    # ---- transactions ----------------------------------------------------------------------------------------------------------------------------

    def begin(self, transaction_id: int | None = None) -> int:
        """Begins a transaction and returns its id. Its changes count together when it is committed, or not at all. The id is the next one, or the
        given one, which must be above all earlier ids: otherwise remains of an older transaction of that id would count."""
        self._writer.usable()
        if transaction_id is not None:
            if not self._transaction_id < transaction_id <= ID_MAX:
                raise InvalidRequest(reason=f"transaction ids must increase: {transaction_id} is not above {self._transaction_id}")
            self._transaction_id = transaction_id - 1
        transaction = Transaction(self._next_transaction_id())
        self._transactions[transaction.id] = transaction
        return transaction.id

    def _next_transaction_id(self) -> int:
        self._transaction_id += 1
        return self._transaction_id

    def add_in(self, transaction_id: int, record_id: int, user_type: int, body: bytes) -> None:
        """Adds a record within a transaction. Raises as `add`; after an error the transaction can only be rolled back."""
        self._put_in(transaction_id, ADD_TX, record_id, user_type, body)

    def update_in(self, transaction_id: int, record_id: int, user_type: int, body: bytes) -> None:
        """Appends a part to a record within a transaction. The record lives, or was added in the same transaction. After an error the transaction
        can only be rolled back."""
        self._put_in(transaction_id, UPDATE_TX, record_id, user_type, body)

    def delete_in(self, transaction_id: int, record_id: int) -> None:
        """Deletes a record within a transaction, at its commit. After an error the transaction can only be rolled back."""
        self._put_in(transaction_id, DELETE_TX, record_id)

    def _put_in(self, transaction_id: int, kind: int, record_id: int, user_type: int = 0, body: bytes = b"") -> None:
        transaction = self._open_transaction(transaction_id)
        writer = self._writer
        try:
            self._check_within(transaction, kind, record_id)
            if kind == DELETE_TX:
                writer.reserve(DELETE_TX_BYTES)
                file = writer.file
                offset = writer.put(encode_delete(file.id, writer.seed, record_id, transaction_id))
            else:
                size = TX_BODY_OVERHEAD_BYTES + len(body)
                self._expect_free(size, 1 if kind == ADD_TX else 0)
                file, offset = self._put(kind, record_id, user_type, body, size, transaction_id)
        except WaltzError as error:
            transaction.failure = str(error)
            raise
        if transaction.touch(file):
            file.pins += 1
        transaction.record(kind, record_id, user_type, file, offset)
        self._owners[record_id] = transaction_id
        if writer.moved:
            self._after_move()

    def _open_transaction(self, transaction_id: int) -> Transaction:
        self._writer.usable()
        transaction = self._transactions.get(transaction_id)
        if transaction is None:
            raise UnknownRecord(what="transaction", id=transaction_id)
        if transaction.prepared:
            raise InvalidRequest(reason=f"transaction {transaction_id} is prepared: it can be committed or rolled back")
        if transaction.failure is not None:
            raise InvalidRequest(reason=f"transaction {transaction_id} failed and can be rolled back: {transaction.failure}")
        return transaction

    def _check_within(self, transaction: Transaction, kind: int, record_id: int) -> None:
        owner = self._owners.get(record_id)
        if owner is not None and owner != transaction.id:
            raise InvalidRequest(reason=f"record {record_id} belongs to the open transaction {owner}")
        lives = transaction.lives.get(record_id)
        if kind == ADD_TX:
            # A record deleted in the transaction could not be distinguished from one that is deleted at its end.
            if lives is not None or record_id in self._places:
                raise InvalidRequest(reason=f"record {record_id} exists already, or existed within the transaction")
        elif not (record_id in self._places if lives is None else lives):
            raise UnknownRecord(what="record", id=record_id)

    def prepare(self, transaction_id: int) -> None:
        """Completes a transaction: once synced it survives a crash, and stays in doubt until it is committed or rolled back."""
        transaction = self._open_transaction(transaction_id)
        writer = self._writer
        writer.reserve(summary_bytes(len(transaction.counts)))
        writer.put(encode_summary(PREPARE, writer.file.id, writer.seed, transaction_id, transaction.summary()))
        if transaction.touch(writer.file):
            writer.file.pins += 1
        transaction.prepared = True
        if writer.moved:
            self._after_move()

    def commit(self, transaction_id: int) -> None:
        """Makes all changes of the transaction count. If any of its calls failed, the transaction cannot be committed."""
        self._writer.usable()
        transaction = self._transactions.get(transaction_id)
        if transaction is None or not transaction.prepared:
            transaction = self._open_transaction(transaction_id)
        writer = self._writer
        if transaction.counts:
            writer.reserve(summary_bytes(len(transaction.counts)))
            writer.put(encode_summary(COMMIT, writer.file.id, writer.seed, transaction_id, transaction.summary()))
            for kind, record_id, user_type, file, place in transaction.in_order_of_effect():
                if kind == ADD_TX:
                    self._ledger.add(record_id, file, place - file.base)
                elif kind == UPDATE_TX:
                    self._ledger.update(record_id, user_type, file, place - file.base)
                else:
                    self._ledger.delete(record_id, file)
        self._forget(transaction)

    def rollback(self, transaction_id: int) -> None:
        """Ends a transaction without any of its changes."""
        self._writer.usable()
        transaction = self._transactions.get(transaction_id)
        if transaction is None:
            raise UnknownRecord(what="transaction", id=transaction_id)
        if transaction.counts:
            self._writer.reserve(DELETE_BYTES)
            self._writer.put(encode_rollback(self._writer.file.id, self._writer.seed, transaction_id))
        self._forget(transaction)

    def _forget(self, transaction: Transaction) -> None:
        """It is decided, by the record that was just put."""
        for file in transaction.counts:
            self._writer.file.must_outlive(file)
        transaction.unpin()
        for record_id in transaction.lives:
            del self._owners[record_id]
        del self._transactions[transaction.id]
        if self._writer.moved:
            self._after_move()

    # ---- the disk --------------------------------------------------------------------------------------------------------------------------------

    @property
    def writer(self) -> Writer:
        """For `GroupCommitJournal`, which syncs while callers append."""
        return self._writer

    def only_appends(self, size: int, adds: int) -> bool:
        """Whether a call that appends this many bytes and adds certainly changes no file, frees none and syncs nothing. For
        `GroupCommitJournal`."""
        writer = self._writer
        return writer.fits(size) and not writer.moved and writer.free_bytes - size >= self._kept_bytes(adds or 1)

    def summary_bytes(self, transaction_id: int) -> int:
        """The maximum size of the record that ends a transaction."""
        transaction = self._transactions.get(transaction_id)
        return summary_bytes(len(transaction.counts) + 1 if transaction is not None else 1)

    def sync(self) -> None:
        """Returns when everything that was appended before is on the medium."""
        self._writer.sync()

    def reclaim(self) -> int:
        """Syncs, and frees the files that are not needed. Returns how many. The journal also does so at each change of the file."""
        return self._writer.reclaim()

    def compact(self) -> int:
        """Rewrites the live records of sparse files, so that these can be freed, until that frees nothing more. Returns how many files were freed."""
        self._writer.usable()
        return self._compactor.run()

    def _after_move(self) -> None:
        self._writer.moved = False
        self._compactor.step_if_due()

    def statistics(self) -> JournalStatistics:
        """A snapshot; its fields are documented at the class."""
        return gather(self._check, len(self._transactions), self._ledger, self._ring, self._writer, self._compactor.records)

    def close(self) -> None:
        """Syncs, unless the journal failed, and unlocks the directory. Open transactions count as failed; prepared ones stay in doubt."""
        try:
            self._writer.close()
        finally:
            self._disk.unlock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
