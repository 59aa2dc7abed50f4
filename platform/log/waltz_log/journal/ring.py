"""The files of a journal as a ring: created, kept ready, reused under a new id, removed, set aside. It decides which file is written next and what
happens to a file that is not needed. It never reads records.

A file is created under a temporary name, filled with a byte that no record begins with, synced, renamed, and made durable by a sync of the directory.
So an incomplete file is never visible, and a later write changes only bytes. A reused file gets the name of its new id, the directory is synced, and
then its header is written and synced. From then on the rest of the old use is ignored, because each record repeats the id. A crash between the two
leaves the old use or the new one. Both are correct, because the file was not needed.

Invariants: never more than `files_max` files; ids rise in the order in which files are written; a file that was set aside is never touched again; the
free files are reused in the order in which they became free. Source: the layout's "Header Id"; docs/internals/journal.md.
"""

from __future__ import annotations

import errno
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from waltz_log.core.ports import Disk, DiskFile
from waltz_log.errors import JournalFull
from waltz_log.journal.directory import ATTIC, FoundFile, following_id, journal_name
from waltz_log.journal.record_codec import FILE_HEADER_BYTES, FILL, CheckKind
from waltz_log.journal.record_ledger import JournalFile
from waltz_log.journal.settings import JournalSettings

__all__ = ["NextFile", "Ring"]

FILL_BYTES: Final = 1 << 20
NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True)
class NextFile:
    """A file to be prepared: a new one, or `old` reused. The caller prepares it and returns it before it requests another, or drops it if there is no
    space; its id stays unused then."""

    file: JournalFile
    old: JournalFile | None


class Ring:
    """One caller at a time, except for `prepare`, which changes nothing here and may run in parallel with other calls."""

    def __init__(self, disk: Disk, settings: JournalSettings, check: CheckKind) -> None:
        self._disk = disk
        self._settings = settings
        self._check: CheckKind = check
        self._ready: deque[JournalFile] = deque()
        self._free: deque[JournalFile] = deque()
        self._last_id = 0
        self._serial = 0
        self.in_use = 0
        """Files that hold data, the current one among them."""
        self.reused = 0
        self.set_aside = len(disk.list(ATTIC))

    def restore(self, data: list[JournalFile], empty: list[JournalFile]) -> None:
        """What was found: files whose ids are later than all data are ready as they are, the others are free."""
        self.in_use = len(data)
        self._serial = max((file.serial for file in [*data, *empty]), default=0)
        after = data[-1].serial if data else 0
        for file in empty:
            usable = file.serial > after and not file.damaged and file.size == self._settings.file_bytes
            (self._ready if usable else self._free).append(file)
        newest = max([*data[-1:], *empty], key=lambda file: file.serial, default=None)
        self._last_id = newest.id if newest is not None else 0

    # ---- what there is ---------------------------------------------------------------------------------------------------------------------------

    @property
    def ready(self) -> int:
        return len(self._ready)

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def total(self) -> int:
        return self.in_use + len(self._ready) + len(self._free)

    @property
    def spare(self) -> int:
        """Files that can still be written before one has to be reclaimed: ready, free, or to be made."""
        return max(0, self._settings.files_max - self.in_use)

    # ---- the next file ---------------------------------------------------------------------------------------------------------------------------

    def plan(self) -> NextFile | None:
        """The file that is to be prepared next, from a free one if there is one of the right size; None if there may be no more."""
        old = self._free.popleft() if self._free else None
        if old is not None and (old.damaged or old.size != self._settings.file_bytes):
            self._dispose(old)
            return self.plan()
        if old is None and self.total >= self._settings.files_max:
            return None
        self._last_id = following_id(self._last_id)
        while self._disk.exists(journal_name(self._last_id, self._check)):  # a name by size may be ahead of its header
            self._last_id = following_id(self._last_id)
        self._serial += 1
        return NextFile(JournalFile(journal_name(self._last_id, self._check), self._last_id, self._settings.file_bytes, self._serial), old)

    def prepare(self, planned: NextFile) -> None:
        """Makes the file. Durable when it returns. `JournalFull` if the disk has no space for one more; other `OSError`s pass through."""
        if planned.old is None:
            try:
                self._make(planned.file)
            except OSError as error:
                if error.errno in NO_SPACE:
                    raise JournalFull(reason=f"no space for one more file: {error.strerror}") from None
                raise
        else:
            self._rename(planned.old.name, planned.file.name)
            handle = self._disk.open(planned.file.name, "write")
            try:
                handle.write(0, planned.file.id.to_bytes(FILE_HEADER_BYTES, "big"))
                handle.sync()
            finally:
                handle.close()

    def add_ready(self, planned: NextFile) -> None:
        """Adds a file that is prepared."""
        self._ready.append(planned.file)
        self.reused += planned.old is not None

    def next_file(self) -> JournalFile:
        """The next file to be written, prepared where none is ready. `JournalFull` if there is none."""
        self.make_ready(1)
        self.in_use += 1
        return self._ready.popleft()

    def make_ready(self, count: int) -> None:
        """At least this many files are ready when it returns. `JournalFull` if that is not possible."""
        while len(self._ready) < count:
            planned = self.plan()
            if planned is None:
                raise JournalFull(reason=f"all {self._settings.files_max} files hold live records")
            self.prepare(planned)
            self.add_ready(planned)

    def _make(self, file: JournalFile) -> None:
        temporary = file.name.rpartition(".")[0] + ".tmp"
        handle = self._disk.open(temporary, "create")
        try:
            handle.allocate(file.size)
            self._fill(handle, file.size)
            handle.write(0, file.id.to_bytes(FILE_HEADER_BYTES, "big"))
            handle.sync()
        except OSError:
            handle.close()
            with suppress(OSError):  # the next opening removes it otherwise; what failed is what counts
                self._disk.remove(temporary)
            raise
        handle.close()
        self._rename(temporary, file.name)

    @staticmethod
    def _fill(handle: DiskFile, size: int) -> None:
        block = FILL * min(size, FILL_BYTES)
        for offset in range(0, size, len(block)):
            handle.write(offset, block[: size - offset])

    def _rename(self, old: str, new: str) -> None:
        if old != new:
            self._disk.rename(old, new)
            self._disk.sync_directory("")

    # ---- what is not needed ----------------------------------------------------------------------------------------------------------------------

    def release(self, files: list[JournalFile]) -> None:
        """They hold nothing that is needed, and are given in the order in which they may be overwritten. Every record that frees it is on disk."""
        self.in_use -= len(files)
        self._free.extend(files)
        while self._free and self.total > max(self._settings.files_pool, self._settings.files_min):
            self._dispose(self._free.popleft())

    def _dispose(self, file: JournalFile) -> None:
        if file.damaged:
            self.put_aside(file.name, file.name)
        else:
            self._disk.remove(file.name)
            self._disk.sync_directory("")

    def put_aside(self, name: str, kept_as: str) -> None:
        """Moves a file to the attic, under an unused name."""
        if not self._disk.exists(ATTIC):
            self._disk.make_directory(ATTIC)
            self._disk.sync_directory("")
        kept, number = f"{ATTIC}/{kept_as}", 1
        while self._disk.exists(kept):
            kept, number = f"{ATTIC}/{kept_as}.{number}", number + 1
        self._disk.rename(name, kept)
        self._disk.sync_directory(ATTIC)
        self._disk.sync_directory("")
        self.set_aside += 1

    def correct_header(self, found: FoundFile) -> None:
        """The header says again what the name and every record say."""
        handle = self._disk.open(found.name, "write")
        try:
            handle.write(0, found.id.to_bytes(FILE_HEADER_BYTES, "big"))
            handle.sync()
        finally:
            handle.close()
