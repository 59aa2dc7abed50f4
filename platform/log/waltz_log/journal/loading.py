"""Reads every healthy record of a journal's files in the order of writing, and decides what it means. Never writes.

The rules of the layout: files in the order of their ids; records anywhere in a file, holes and records of an earlier use skipped; a transaction
counts at the place of its commit, adds and updates first and deletes last, when it is complete. Complete means that *every* file that its commit or
prepare lists holds exactly as many of its records as listed, and no other file holds one; a listed file that is gone was reclaimed and counts as
safe. (The original counts in the file of the commit alone, and so can load half a transaction.) A prepared transaction without commit or rollback is
in doubt, and the caller gets it with its records. Other records of transactions are ignored.

Memory: one file at a time, the live records, and the records of undecided transactions. Source: "Reading Records", "Record Health", "Holes on
Transactions"; docs/internals/journal.md.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import lt
from typing import Literal

from waltz_log.core.ports import Disk
from waltz_log.errors import CorruptData
from waltz_log.journal.directory import Directory, FoundFile, ring_order
from waltz_log.journal.journal_transaction import Transaction
from waltz_log.journal.living import LivingRecords, LoadedRecord, Rows
from waltz_log.journal.record_codec import (
    ADD,
    ADD_TX,
    COMMIT,
    DELETE,
    DELETE_TX,
    PREPARE,
    ROLLBACK,
    UNHEALTHY,
    UPDATE,
    UPDATE_TX,
    AddRun,
    Record,
    scan,
    scan_runs,
)
from waltz_log.journal.record_ledger import JournalFile, Ledger
from waltz_log.journal.settings import JournalSettings

__all__ = ["Loaded", "LoadedRecord", "Loading", "PreparedTransaction", "Strike", "load"]


@dataclass(frozen=True, slots=True)
class PreparedTransaction:
    """In doubt: `commit` or `rollback` of the journal decides it. `records`: its adds and updates in order; `deletes`: the ids it deletes."""

    transaction_id: int
    records: list[LoadedRecord]
    deletes: list[int]


@dataclass(frozen=True, slots=True)
class Loaded:
    """The loaded records and transactions. A record that compaction wrote again counts as written then. An application that needs its own order keeps
    it in ids or bodies."""

    records: LivingRecords
    """The adds and updates of what lives, in the order of writing."""
    prepared: list[PreparedTransaction]
    failed_transactions: list[int]
    """Neither committed nor prepared nor rolled back: what was open when the process ended. Nothing of them counts."""
    broken_transactions: list[int]
    """Committed or prepared, but records of them are missing: not acknowledged before a crash, or damaged. Nothing of them counts."""
    record_id_max: int
    """The highest seen, living or not; -1 if there is none. What was reclaimed is not seen: who must never use an id twice keeps its own count."""
    transaction_id_max: int
    unhealthy: int
    """Places that begin like a record and are none: a write that a crash tore, or damage."""


@dataclass(frozen=True, slots=True)
class Strike:
    """A commit or prepare of a broken transaction, to be invalidated: once the file with the hole is reclaimed, the transaction would appear
    complete."""

    file: JournalFile
    offset: int


@dataclass(slots=True)
class Loading:
    """The journal's state according to its files. `load` fills it."""

    ledger: Ledger
    data: list[JournalFile] = field(default_factory=list)
    """Files with records, oldest first."""
    empty: list[JournalFile] = field(default_factory=list)
    """Files without, oldest first."""
    transactions: dict[int, Transaction] = field(default_factory=dict)
    """In doubt."""
    strikes: list[Strike] = field(default_factory=list)
    unsealed: frozenset[int] = frozenset()
    """Ids of the files that may hold what is not on the medium yet."""
    loaded: Loaded | None = None


def load(disk: Disk, directory: Directory, settings: JournalSettings, mode: Literal["read", "write"] = "read") -> Loading:
    """Reads all files. `mode`: `write` where the journal will be written to: what was perhaps not synced is then read as the medium has it.
    Raises `CorruptData` if a header by size is not the file's."""
    collecting = gc.isenabled()
    gc.disable()  # what is loaded lives: the collector would walk it again and again, and find nothing
    try:
        found = _Loader(disk, directory, settings, mode).run()
        if mode == "write" and found.loaded is not None and found.loaded.failed_transactions:
            # An opening whose sync failed may have invalidated one only in memory. Such memory is not trusted.
            found = _Loader(disk, directory, settings, mode, all_from_medium=True).run()
        return found
    finally:
        if collecting:
            gc.enable()


class _Loader:
    def __init__(
        self, disk: Disk, directory: Directory, settings: JournalSettings, mode: Literal["read", "write"], *, all_from_medium: bool = False
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._mode: Literal["read", "write"] = mode
        self._all_from_medium = all_from_medium
        self._held: dict[int, bytes] = {}
        """What was read of files already."""
        self._replaceable_types = settings.replaceable_types
        self._ids = {file.id for file in directory.files} | directory.lost_ids
        self._ledger = Ledger(settings.replaceable_types)
        self._found = Loading(self._ledger)
        self._rows = Rows(self._ledger)
        self._open: dict[int, Transaction] = {}
        self._bodies: dict[int, LoadedRecord] = {}
        """For open transactions, by place."""
        self._broken: list[int] = []
        self._record_id_max = -1
        self._transaction_id_max = 0
        self._unhealthy = 0
        self._torn: list[JournalFile] = []
        """Files with unhealthy places only after their last record."""

    def run(self) -> Loading:
        by_id = {file.id: file for file in self._directory.files}
        order = ring_order(by_id)
        self._found.unsealed = frozenset(order if self._all_from_medium else self._unsealed([by_id[file_id] for file_id in order]))
        for serial, file_id in enumerate(order, 1):
            found = by_id[file_id]
            file = JournalFile(found.name, found.id, found.size, serial)
            self._ledger.files[serial] = file
            self._read(file, found)
            self._rows.drop_dead()
            if file.end:
                self._found.data.append(file)
            else:
                del self._ledger.files[serial]
                self._found.empty.append(file)
        self._forgive_tails()
        prepared = sorted((each for each in self._open.values() if each.prepared), key=lambda each: each.id)
        self._found.transactions = {each.id: each for each in prepared}
        self._found.loaded = Loaded(
            self._rows.living(),
            [self._prepared_transaction(each) for each in prepared],
            [each.id for each in self._open.values() if not each.prepared],
            self._broken,
            self._record_id_max,
            self._transaction_id_max,
            self._unhealthy,
        )
        for each in prepared:
            each.pin()
        return self._found

    def _forgive_tails(self) -> None:
        """In the file that was written last, and in the one that was next, an unhealthy end is what a crash tore; everywhere else it is damage."""
        written = self._found.data[-1:]
        after = written[0].serial if written else 0
        following = [file for file in self._found.empty if file.serial > after]
        for file in self._torn:
            if file in written or file in following[:1]:
                file.damaged = False

    def _prepared_transaction(self, transaction: Transaction) -> PreparedTransaction:
        records = [self._bodies[element.place] for element in transaction.elements if element.kind != DELETE_TX]
        return PreparedTransaction(transaction.id, records, [element.record_id for element in transaction.elements if element.kind == DELETE_TX])

    def _unsealed(self, files: list[FoundFile]) -> list[int]:
        """The newest file with a record, and all after it: a file is on the medium, all of it, before a record is written to the next."""
        ids = []
        for found in reversed(files):
            ids.append(found.id)
            data = self._held[found.id] = self._data(found, self._mode)
            if any(isinstance(each, AddRun) or each.kind != UNHEALTHY for each in scan_runs(data, found.id, self._directory.seed(found.id))):
                break
        return ids

    def _data(self, found: FoundFile, mode: Literal["read", "write"]) -> bytes:
        handle = self._disk.open(found.name, mode)
        try:
            return handle.read(0, found.size)
        finally:
            handle.close()

    def _read(self, file: JournalFile, found: FoundFile) -> None:
        data = self._held.pop(found.id, None)
        if data is None:
            data = self._data(found, self._mode if self._all_from_medium else "read")
        end, unhealthy, first_unhealthy = 0, 0, -1
        for found_record in scan_runs(data, file.id, self._directory.seed(file.id)):
            if isinstance(found_record, AddRun):
                self._load_adds(found_record, file)
                end = found_record.offsets[-1]
            elif found_record.kind == UNHEALTHY:
                unhealthy += 1
                first_unhealthy = found_record.offset if first_unhealthy < 0 else first_unhealthy
            else:
                self._load(found_record, file)
                end = found_record.end
        file.end = end
        self._unhealthy += unhealthy
        file.damaged = unhealthy > 0
        if first_unhealthy >= end:
            self._torn.append(file)
        if not end and self._directory.check == "size":
            self._refuse_other_header(file, data)

    def _refuse_other_header(self, file: JournalFile, data: bytes) -> None:
        """A file with a damaged header by size appears free. It is not if its name states the id of its records."""
        named = int(file.name.partition("-")[2].partition(".")[0])
        if named != file.id and any(record.kind != UNHEALTHY for record in scan(data, named, None)):
            reason = f"the header says {file.id} and the records say {named}; correct one of them, or move the file away"
            raise CorruptData(where=file.name, offset=0, transaction_id=-1, reason=reason)

    def _load_adds(self, run: AddRun, file: JournalFile) -> None:
        ids, offsets = run.record_ids, run.offsets
        file.records += len(ids)
        file.bytes += offsets[-1] - offsets[0]
        # Ids that rise above all that was seen are new; others are looked up.
        new = ids[0] > self._record_id_max and all(map(lt, ids, islice(ids, 1, None)))
        if not new:
            new = self._ledger.places.keys().isdisjoint(ids) and len(set(ids)) == len(ids)
        self._record_id_max = max(self._record_id_max, max(ids))
        if new:
            places: Sequence[int]
            if isinstance(offsets, range):
                places = range(file.base + offsets[0], file.base + offsets[-1], offsets.step)
            else:
                places = [file.base + offset for offset in islice(offsets, len(ids))]
            self._ledger.add_all(ids, places, file)
            self._rows.add_all(places, ids, run.user_types, run.bodies)
        else:
            for record_id, user_type, offset, body in zip(ids, run.user_types, offsets, run.bodies, strict=False):
                self._apply(ADD, record_id, user_type, file, offset, body)

    def _load(self, record: Record, file: JournalFile) -> None:
        kind = record.kind
        self._record_id_max = max(self._record_id_max, record.record_id)
        if kind in (ADD, UPDATE):
            file.records += 1
            file.bytes += record.end - record.offset
            self._apply(kind, record.record_id, record.user_type, file, record.offset, record.body)
        elif kind == DELETE:
            self._ledger.delete(record.record_id, file)
        else:
            self._transaction_id_max = max(self._transaction_id_max, record.transaction_id)
            if kind in (PREPARE, COMMIT):
                self._decide(record, file)
            elif kind == ROLLBACK:
                self._end(record.transaction_id, file)
            else:
                self._element(record, file)

    def _element(self, record: Record, file: JournalFile) -> None:
        transaction = self._open.get(record.transaction_id)
        if transaction is None:
            transaction = self._open[record.transaction_id] = Transaction(record.transaction_id)
        transaction.record(record.kind, record.record_id, record.user_type, file, record.offset)
        if record.kind in (ADD_TX, UPDATE_TX):
            file.records += 1
            file.bytes += record.end - record.offset
            loaded = LoadedRecord(record.record_id, record.user_type, record.body, record.kind == UPDATE_TX)
            self._bodies[file.base + record.offset] = loaded

    def _decide(self, record: Record, file: JournalFile) -> None:
        transaction = self._open.get(record.transaction_id) or Transaction(record.transaction_id)
        counted = {each.id: count for each, count in transaction.counts.items() if count}
        listed = dict(record.counts)
        complete = all(counted.get(file_id, 0) == count for file_id, count in listed.items() if file_id in self._ids)
        if not complete or not counted.keys() <= listed.keys():
            self._broken.append(record.transaction_id)
            self._found.strikes.append(Strike(file, record.offset))
            self._forget(record.transaction_id)
        elif record.kind == PREPARE:
            transaction.touch(file)
            transaction.prepared = True
            self._open[record.transaction_id] = transaction
        else:
            for kind, record_id, user_type, owner, place in transaction.in_order_of_effect():
                if kind == DELETE_TX:
                    self._ledger.delete(record_id, owner)
                else:
                    loaded = self._bodies[place]
                    self._apply(ADD if kind == ADD_TX else UPDATE, record_id, user_type, owner, place - owner.base, loaded.body)
            self._end(record.transaction_id, file)

    def _end(self, transaction_id: int, file: JournalFile) -> None:
        transaction = self._open.get(transaction_id)
        for touched in transaction.counts if transaction is not None else ():
            file.must_outlive(touched)
        self._forget(transaction_id)

    def _forget(self, transaction_id: int) -> None:
        transaction = self._open.pop(transaction_id, None)
        for element in transaction.elements if transaction is not None else ():
            self._bodies.pop(element.place, None)

    def _apply(self, kind: int, record_id: int, user_type: int, file: JournalFile, offset: int, body: bytes) -> None:
        if kind == ADD:
            self._ledger.add(record_id, file, offset)
        else:
            self._ledger.update(record_id, user_type, file, offset)
        self._rows.add(file.base + offset, record_id, user_type, body, kind != ADD)
