"""Compaction: the live records of sparse files are written again at the end of the journal, so that those files can be freed. Also reads live
records.

Each step chooses the files that can be freed by writing the fewest bytes. Their live records are appended as ordinary records in the old order. After
a sync the files are not needed and are freed like any other. Adding a live record again replaces it as a whole. So a crash at any point leaves each
record in its old place or its new one, and no control file is needed. A record with updates is written as a small transaction, because its parts must
not be separated.

(The original writes to files next to the journal and swaps them with a control file, which makes the transaction counts in the files unusable. Here
the counts of a commit stay correct: the files that it lists keep their records or disappear.)

Compaction never moves a record that an open transaction uses, and never frees a file that such a transaction pins. One step copies at most one file
and reads those that it frees, which bounds how long an append that caused it waits.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Final

from waltz_log.core.ports import Disk
from waltz_log.errors import JournalFull
from waltz_log.journal.directory import FILE_ID_MAX, id_distance
from waltz_log.journal.journal_transaction import Transaction
from waltz_log.journal.record_codec import (
    ADD,
    ADD_TX,
    BODY_OVERHEAD_BYTES,
    COMMIT,
    DELETE_BYTES,
    DELETE_TX_BYTES,
    FILE_HEADER_BYTES,
    TX_BODY_OVERHEAD_BYTES,
    UPDATE_TX,
    Record,
    check_seed,
    encode_body,
    encode_rollback,
    encode_summary,
    record_at,
    record_bytes,
    summary_bytes,
)
from waltz_log.journal.record_ledger import OFFSET_BITS, OFFSET_MASK, JournalFile, Ledger
from waltz_log.journal.settings import JournalSettings
from waltz_log.journal.writer import Writer
from waltz_log.loggers import get_logger

__all__ = ["Compactor"]

HEAD_BYTES: Final = 30
"""The bytes of any record that determine its length."""
STEP_FILES_MAX: Final = 8
"""Files read in one step: with the default size a quarter of a second."""
ID_DISTANCE_MAX: Final = FILE_ID_MAX // 4
"""Ids wrap: files stay so near to each other that the way round is always the widest gap, by which the oldest is known."""
WORTH_PERCENT: Final = 90
"""When asked for: fuller files would be copied for next to nothing."""

log = get_logger(__name__)


class Compactor:
    """`owners`: records that open transactions hold; `next_transaction_id` gives ids for the small transactions."""

    def __init__(
        self,
        disk: Disk,
        settings: JournalSettings,
        ledger: Ledger,
        writer: Writer,
        salt: bytes | None,
        owners: Container[int],
        next_transaction_id: Callable[[], int],
    ) -> None:
        self._disk = disk
        self._settings = settings
        self._ledger = ledger
        self._writer = writer
        self._salt = salt
        self._owners = owners
        self._next_transaction_id = next_transaction_id
        self._busy = False
        self.records = 0
        """Written again so far."""

    # ---- when and what ---------------------------------------------------------------------------------------------------------------------------

    def step_if_due(self) -> None:
        """One step where the settings ask for it, or where the oldest file's id is about to be overtaken."""
        if self._busy:
            return
        files = self._ledger.files
        oldest = next(iter(files.values()))
        if id_distance(oldest.id, self._writer.file.id) > ID_DISTANCE_MAX:
            self._step(self._closure(oldest))
        if 0 < self._settings.compact_files_min <= len(files):
            living = sum(file.live_bytes for file in files.values())
            if living * 100 <= self._settings.compact_percent * sum(file.size for file in files.values()):
                percent, before = self._settings.compact_percent, self._writer.file.serial
                # As little as frees a file, because an append waits; more only where what must go together is more.
                self._step(self._choose(percent, before, self._usable * percent // 100) or self._choose(percent, before, self._usable))

    def run(self) -> int:
        """All that is worth it, of the files there are now. How many were freed."""
        if self._busy:
            return 0
        freed = self._writer.reclaim()
        limit = self._writer.file.serial
        while group := self._choose(WORTH_PERCENT, limit, self._usable):
            step = self._step(group)
            freed += step
            if not step:
                break
        self._writer.moved = False
        return freed

    def _closure(self, file: JournalFile) -> set[JournalFile]:
        """The file and all that must go before it."""
        group, found = {file}, [file]
        while found:
            for other in found.pop().outlives:
                if other not in group and not other.gone:
                    group.add(other)
                    found.append(other)
        return group

    @property
    def _usable(self) -> int:
        return self._settings.file_bytes - FILE_HEADER_BYTES

    def _choose(self, percent: int, before_serial: int, living_max: int) -> set[JournalFile]:
        """Files whose live bytes together are at most that share of their size, and at most this many bytes; empty if there are none."""
        chosen: set[JournalFile] = set()
        for file in sorted(self._ledger.files.values(), key=lambda each: (each.live_bytes, each.serial)):
            if file in chosen or file.serial >= before_serial:
                continue
            group = chosen | self._closure(file)
            if any(each.pins or each.damaged or each.serial >= before_serial for each in group):
                continue
            living = sum(each.live_bytes for each in group)
            if living <= living_max and living * 100 <= percent * sum(each.size for each in group):
                chosen = group
            if len(chosen) >= STEP_FILES_MAX:
                break
        return chosen

    # ---- one step --------------------------------------------------------------------------------------------------------------------------------

    def _step(self, group: set[JournalFile]) -> int:
        """Writes again what lives in the files. How many files were freed."""
        files = {file.serial: file for file in group}
        needed = sum(file.live_bytes for file in group)
        if not group or self._writer.free_bytes < needed + DELETE_TX_BYTES * len(self._ledger.places):
            return 0
        self._busy = True
        try:
            reclaimed = self._writer.reclaimed
            contents: dict[int, bytes] = {}
            for place, record_id in self._living_in(files):
                if place >> OFFSET_BITS not in contents:
                    contents = {place >> OFFSET_BITS: self._content(files[place >> OFFSET_BITS])}
                self._move(record_id, contents)
            self._writer.reclaim()
            return self._writer.reclaimed - reclaimed
        except JournalFull:  # what was moved is moved; the rest stays where it is
            return 0
        except OSError as error:
            self._writer.fail(error)
        finally:
            self._busy = False

    def _living_in(self, files: Container[int]) -> list[tuple[int, int]]:
        """(first place in the files, record id) of what lives there, in the order of writing."""
        found = []
        for record_id, places in self._ledger.places.items():
            if isinstance(places, int):
                if places >> OFFSET_BITS in files:
                    found.append((places, record_id))
            else:
                inside = [place for place in places if place >> OFFSET_BITS in files]
                if inside:
                    found.append((inside[0], record_id))
        return sorted(found)

    def _move(self, record_id: int, contents: Mapping[int, bytes]) -> None:
        if record_id in self._owners:
            return
        records = self.read(record_id, contents)
        if not records or records[0].kind not in (ADD, ADD_TX):
            return
        writer = self._writer
        if len(records) == 1:
            record = records[0]
            writer.reserve(BODY_OVERHEAD_BYTES + len(record.body))
            file = writer.file
            offset = writer.put(encode_body(ADD, file.id, writer.seed, record_id, record.user_type, record.body))
            self._count(file, BODY_OVERHEAD_BYTES + len(record.body))
            self._ledger.add(record_id, file, offset)
        else:
            self._move_parts(record_id, records)
        self.records += 1

    def _move_parts(self, record_id: int, records: list[Record]) -> None:
        writer = self._writer
        transaction = Transaction(self._next_transaction_id())
        try:
            self._put_parts(transaction, record_id, records)
            writer.reserve(summary_bytes(len(transaction.counts)))
        except JournalFull:
            self._roll_back(transaction)
            raise
        writer.put(encode_summary(COMMIT, writer.file.id, writer.seed, transaction.id, transaction.summary()))
        for _, _, user_type, file, place in transaction.elements:
            if place == transaction.elements[0].place:
                self._ledger.add(record_id, file, place - file.base)
            else:
                self._ledger.update(record_id, user_type, file, place - file.base)
            writer.file.must_outlive(file)
        transaction.unpin()

    def _put_parts(self, transaction: Transaction, record_id: int, records: list[Record]) -> None:
        writer = self._writer
        for record in records:
            kind = ADD_TX if record is records[0] else UPDATE_TX
            writer.reserve(TX_BODY_OVERHEAD_BYTES + len(record.body))
            file = writer.file
            offset = writer.put(encode_body(kind, file.id, writer.seed, record_id, record.user_type, record.body, transaction.id))
            self._count(file, TX_BODY_OVERHEAD_BYTES + len(record.body))
            if file not in transaction.counts:
                file.pins += 1  # a change of the file within the transaction must not free what it has written
            transaction.record(kind, record_id, record.user_type, file, offset)

    def _roll_back(self, transaction: Transaction) -> None:
        """Nothing of it counts, and its files can go. Without room even for this record, the next opening reports the transaction as open."""
        writer = self._writer
        with suppress(JournalFull):
            writer.reserve(DELETE_BYTES)
            writer.put(encode_rollback(writer.file.id, writer.seed, transaction.id))
            for file in transaction.counts:
                writer.file.must_outlive(file)
        transaction.unpin()

    @staticmethod
    def _count(file: JournalFile, size: int) -> None:
        file.records += 1
        file.bytes += size

    # ---- reading ---------------------------------------------------------------------------------------------------------------------------------

    def _content(self, file: JournalFile) -> bytes:
        handle = self._disk.open(file.name, "read")
        try:
            return handle.read(0, file.size)
        finally:
            handle.close()

    def read(self, record_id: int, contents: Mapping[int, bytes] = MappingProxyType({})) -> list[Record]:
        """The parts of a living record, in order; of those files whose contents are given, from there. Empty if a part is damaged, which is
        logged. What was appended must be written. `OSError` passes through."""
        found = []
        for place in self._ledger.parts(record_id):
            file, offset = self._ledger.file_of(place), place & OFFSET_MASK
            content = contents.get(file.serial)
            start = 0
            if content is None:
                if file is self._writer.file:
                    self._writer.write()
                content, start = self._read_at(file, offset), offset
            record = record_at(content, offset - start, file.id, check_seed(self._salt, file.id))
            if record is None:
                log.warning("journal record damaged", file=file.name, offset=offset, record=record_id)
                file.damaged = True
                return []
            found.append(record)
        return found

    def _read_at(self, file: JournalFile, offset: int) -> bytes:
        handle = self._disk.open(file.name, "read")
        try:
            head = handle.read(offset, HEAD_BYTES)
            return head + handle.read(offset + len(head), max(0, record_bytes(head) - len(head)))
        finally:
            handle.close()
