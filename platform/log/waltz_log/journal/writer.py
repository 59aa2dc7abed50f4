"""The end of the journal: the current file, the buffered bytes, and the change to the next file. It decides when bytes are written and when the file
changes, and makes every failure of the disk final. It never interprets records.

Invariants: `position` is where the next byte goes; all of a file is on the medium before the next one is written; files are freed only after a sync,
because the records that free them must be durable; after a failed write or sync nothing is written or synced any more.
"""

from __future__ import annotations

import copy
from typing import Final, NoReturn

from waltz_log.core.ports import Disk, DiskFile
from waltz_log.errors import InvalidRequest, JournalFailed, TransactionTooLarge, WaltzError
from waltz_log.journal.record_codec import FILE_HEADER_BYTES, check_seed
from waltz_log.journal.record_ledger import JournalFile, Ledger
from waltz_log.journal.ring import NextFile, Ring
from waltz_log.journal.settings import JournalSettings

__all__ = ["PendingSync", "Writer"]

READY_FILES: Final = 2
"""How many files are prepared in advance: the next one, and one that only deletes may use when the disk is full."""


class PendingSync:
    """A sync in progress: `run` may be called in parallel with everything else. Pass its result to `Writer.end_sync`."""

    __slots__ = ("_data", "_handle", "_offset", "appended")

    def __init__(self, handle: DiskFile, offset: int, data: list[bytes], appended: int) -> None:
        self._handle = handle
        self._offset = offset
        self._data = data
        self.appended = appended
        """All bytes that were appended before are on the medium after it."""

    def run(self) -> None:
        if self._data:
            self._handle.write(self._offset, self._data[0] if len(self._data) == 1 else b"".join(self._data))
        self._handle.sync()


class Writer:
    def __init__(self, disk: Disk, settings: JournalSettings, ring: Ring, ledger: Ledger, salt: bytes | None) -> None:
        self._disk = disk
        self._settings = settings
        self._ring = ring
        self._ledger = ledger
        self._salt = salt
        self._buffer: list[bytes] = []
        self._buffered = 0
        self._failure: WaltzError | None = None
        self.file: JournalFile
        self.seed: int | None = None
        self.position = 0
        self.appended = 0
        """Bytes appended since the journal was opened, and how many of them are on the medium."""
        self.synced = 0
        self.syncs = 0
        self.moves = 0
        self.reclaimed = 0
        self.moved = False
        """The file changed since a caller last set this to False."""

    def start(self, file: JournalFile, position: int) -> None:
        """Continues at an offset in a file of the ring."""
        self._handle = self._disk.open(file.name, "write")
        self.file, self.position = file, position
        self.seed = check_seed(self._salt, file.id)
        self._ledger.files[file.serial] = file

    # ---- state -----------------------------------------------------------------------------------------------------------------------------------

    def usable(self) -> None:
        if self._failure is not None:
            raise copy.copy(self._failure)  # a new one: each raise has its own traceback

    @property
    def failed(self) -> bool:
        return isinstance(self._failure, JournalFailed)

    @property
    def failure(self) -> WaltzError | None:
        """Why nothing is accepted any more."""
        return self._failure

    def record_failure(self, error: OSError) -> JournalFailed:
        """The disk failed. Final."""
        failed = JournalFailed(reason=f"{error.strerror or error}")
        if not self.failed:
            self._buffer.clear()
            self._buffered = 0
            self._failure = failed
        return failed

    def fail(self, error: OSError) -> NoReturn:
        """Records the failure and raises it."""
        raise self.record_failure(error) from error

    @property
    def free_bytes(self) -> int:
        """Bytes that can be written before a file has to be reclaimed."""
        return self._ring.spare * (self._settings.file_bytes - FILE_HEADER_BYTES) + self.file.size - self.position

    def fits(self, size: int) -> bool:
        """Whether this many bytes can be appended without a change of the file."""
        return self.position + size <= self.file.size

    # ---- appending -------------------------------------------------------------------------------------------------------------------------------

    def reserve(self, size: int, *, leaving_one: bool = False) -> None:
        """There is room for a record of that size in the current file, which may be a new one afterwards. `JournalFull` if there is none.
        `leaving_one`: also where the disk has no space for one file more, so that deletes still find one."""
        if self.position + size > self.file.size:
            self.refuse_too_large(size)
            self.move(leaving_one=leaving_one)

    def refuse_too_large(self, size: int) -> None:
        limit = self._settings.file_bytes - FILE_HEADER_BYTES
        if size > limit:
            raise TransactionTooLarge(what="record", size=size, limit=limit)

    def put(self, record: bytes) -> int:
        """Appends what there is room for. Its offset."""
        offset = self.position
        size = len(record)
        self._buffer.append(record)
        self._buffered += size
        self.appended += size
        self.position = self.file.end = offset + size
        if self._buffered >= self._settings.buffer_bytes:
            self.write()
        return offset

    def write(self) -> None:
        """What was appended is in the file, where it can be read; it is not sure yet."""
        if not self._buffer:
            return
        data, self._buffer = b"".join(self._buffer), []
        offset, self._buffered = self.position - len(data), 0
        try:
            self._handle.write(offset, data)
        except OSError as error:
            self.fail(error)

    def sync(self) -> None:
        """What was appended is on the medium."""
        pending = self.begin_sync()
        if pending is not None:
            try:
                pending.run()
            except OSError as error:
                self.fail(error)
            self.end_sync(pending)

    def begin_sync(self) -> PendingSync | None:
        """Returns the buffered bytes as a sync for the caller to run. The caller then calls `end_sync` or `fail`, and does not change the file before
        that. None if all is synced."""
        self.usable()
        if self.synced == self.appended:
            return None
        data, self._buffer = self._buffer, []
        offset, self._buffered = self.position - self._buffered, 0
        return PendingSync(self._handle, offset, data, self.appended)

    def end_sync(self, pending: PendingSync) -> None:
        self.synced = max(self.synced, pending.appended)
        self.syncs += 1

    # ---- files -----------------------------------------------------------------------------------------------------------------------------------

    def move(self, *, leaving_one: bool = False) -> None:
        """Continues in the next file. `JournalFull` if there is none; the current file stays the current one then."""
        self.sync()
        wanted = 2 if leaving_one else 1
        try:
            if self._ring.ready < wanted:
                self._release()
            self._ring.make_ready(max(1, min(wanted, self._ring.spare)))
            file = self._ring.next_file()
            self._handle.close()
            self.start(file, FILE_HEADER_BYTES)
            self._release()
        except OSError as error:
            self.fail(error)
        self.moves += 1
        self.moved = True

    def make_ready(self, count: int) -> None:
        """This many files are ready besides the current one, and one more if `files_max` allows it."""
        wanted = max(count, min(count + 1, self._ring.spare))
        if self._ring.ready < wanted:
            self.sync()
            try:
                self._release()
                self._ring.make_ready(wanted)
            except OSError as error:
                self.fail(error)

    def reclaim(self) -> int:
        """Syncs, and frees what can be freed. How many files that is."""
        self.sync()
        try:
            return self._release()
        except OSError as error:
            self.fail(error)

    def _release(self) -> int:
        going = self._ledger.reclaim(self.file)
        self._ring.release(going)
        self.reclaimed += len(going)
        return len(going)

    def plan_next(self) -> NextFile | None:
        """The file to prepare in advance if too few are ready: `prepare_next` prepares it, then the caller passes it to `next_prepared`."""
        self.usable()
        if self._ring.ready >= READY_FILES:
            return None
        try:
            return self._ring.plan()
        except OSError as error:
            self.fail(error)

    def prepare_next(self, planned: NextFile) -> None:
        """May be called in parallel with all other calls. `OSError` and `JournalFull` pass through."""
        self._ring.prepare(planned)

    def next_prepared(self, planned: NextFile) -> None:
        self._ring.add_ready(planned)

    def close(self) -> None:
        """Nothing is accepted any more. What was appended is synced, unless the journal failed."""
        if self._failure is None:
            try:
                self.sync()
            finally:
                self._failure = self._failure or InvalidRequest(reason="the journal is closed")
                self._handle.close()
        elif self.failed:
            self._handle.close()
