"""The two small files of a storage directory: the session and marks at which each replica was last clean, and its fence
(core/formats/control_format.py).

Every change is one write of the older half of a pair and one sync, finished when the call returns; in the fence file the other half follows without a
sync. A failed write or sync is final: the file is not written again until the node restarts, because the content of the medium is then unknown. All
calls block.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from uuid import UUID

from waltz_log.core.formats.control_format import (
    CONTROL_FILE,
    CONTROL_HEADER_BYTES,
    COUNTER_BYTES,
    ENTRY_BYTES,
    FENCE_FILE,
    MARK_BYTES,
    ControlHeader,
    SessionMark,
    counter_offset,
    decode_counter,
    decode_mark,
    encode_counter,
    encode_entry,
    encode_mark,
    mark_offset,
    newest,
)
from waltz_log.core.ports import Clock, Disk, DiskFile
from waltz_log.errors import ClusterKeyMismatch, CorruptData, InvalidSetting, StorageFailed, StorageFull

__all__ = ["ControlFiles", "write_small_file"]

START_SLOT = 0


class ControlFiles:
    """Both files, open. `start`: how often the directory was started. Created by `open`."""

    def __init__(self, disk: Disk, header: ControlHeader, control: DiskFile, fence: DiskFile) -> None:
        self._disk = disk
        self.header = header
        self.start = -1
        self._control = control
        self._fence = fence
        self._broken: str | None = None
        self._marks: list[tuple[SessionMark, int] | None] = []
        self._counters: list[tuple[int, int] | None] = []
        self.damaged: list[int] = []
        """The partitions of which one of both structs, or of both fences, was not valid when the files were opened. The other one is used. A crash in
        the middle of a write leaves such a pair, and so does a damaged disk."""

    @staticmethod
    def create(disk: Disk, clock: Clock, cluster_key: UUID, partitions: int) -> None:
        """Creates both files. The control file comes last: if it exists, the other does too. Raises `InvalidSetting` if there is one already."""
        if disk.exists(CONTROL_FILE):
            raise InvalidSetting(name="directory", reason="holds a control file already", nearest=None)
        header = ControlHeader(clock.now_ms(), cluster_key, partitions)
        write_small_file(disk, FENCE_FILE, header.to_bytes() + b"".join(2 * encode_counter(value) for value in [0] + [-1] * partitions))
        write_small_file(disk, CONTROL_FILE, header.to_bytes() + b"".join(encode_entry(partition, SessionMark()) for partition in range(partitions)))

    @classmethod
    def open(cls, disk: Disk, owns: Callable[[int], bool] | None = None) -> ControlFiles:
        """Reads both files.

        `owns`: the partitions that only this process writes, if other processes have the files open too; entries of other partitions are left alone
        and may be stale. None: all partitions. Raises `InvalidSetting` if there is no control file, `CorruptData` if a file cannot be used at all. If
        both structs of a partition are invalid, `mark` reports it, not `open`: the other partitions are served."""
        if not disk.exists(CONTROL_FILE):
            raise InvalidSetting(name="directory", reason=f"holds no {CONTROL_FILE}: no storage node was created here", nearest=None)
        control = disk.open(CONTROL_FILE, "write")
        header = ControlHeader.from_bytes(control.read(0, CONTROL_HEADER_BYTES), CONTROL_FILE)
        expected = CONTROL_HEADER_BYTES + header.partitions * ENTRY_BYTES
        if control.size() != expected:
            reason = f"{control.size()} bytes for {header.partitions} partitions, expected {expected}; a directory of Java Waltz must be migrated"
            raise CorruptData(where=CONTROL_FILE, offset=0, transaction_id=-1, reason=reason)
        if not disk.exists(FENCE_FILE):
            raise InvalidSetting(name="directory", reason=f"holds no {FENCE_FILE}: without it an older owner could write", nearest=None)
        fence = disk.open(FENCE_FILE, "write")
        other = ControlHeader.from_bytes(fence.read(0, CONTROL_HEADER_BYTES), FENCE_FILE)
        if other.cluster_key != header.cluster_key:
            raise ClusterKeyMismatch(where=FENCE_FILE)
        # A killed process may have left names and bytes in the page cache only. Sync them before reporting them.
        control.sync()
        fence.sync()
        disk.sync_directory("")
        found = cls(disk, header, control, fence)
        for partition in range(header.partitions):
            pair = [decode_mark(control.read(mark_offset(partition, which), MARK_BYTES)) for which in (0, 1)]
            found._marks.append(newest(pair))
            if pair.count(None) == 1:
                found.damaged.append(partition)
        for slot in range(header.partitions + 1):
            counters = [decode_counter(fence.read(counter_offset(slot, which), COUNTER_BYTES)) for which in (0, 1)]
            found._counters.append(newest(counters))
            if counters.count(None) == 1 and slot != START_SLOT:
                found.damaged.append(slot - 1)
            if counters[0] != counters[1] and (owns is None or (slot != START_SLOT and owns(slot - 1))):
                found._mirror(slot)
        start = found._counters[START_SLOT]
        if start is None:
            raise CorruptData(where=FENCE_FILE, offset=counter_offset(START_SLOT, 0), transaction_id=-1, reason="start count is unreadable")
        found.start = start[0]
        return found

    def count_start(self, above: int = -1) -> None:
        """Counts one more start of the directory, and of the one that it replaces, which was started `above` times. Durable when it returns. Raises
        `StorageFailed`."""
        start = max(self.start, above) + 1
        self._count(START_SLOT, start, partition=-1)
        self.start = start

    def grow(self, partitions: int) -> None:
        """Adds space for more partitions: new files are renamed over the old ones, the fences first. Also while the node serves: the caller excludes
        other changes of the files meanwhile.

        Raises `StorageFull` if there was no space for the new files: the old ones remain, and the next call tries again. Raises `StorageFailed`
        otherwise; then it is unknown which files remain, and nothing is written any more."""
        added = partitions - self.header.partitions
        if added <= 0:
            return
        if self._broken is not None:
            raise StorageFailed(partition=-1, reason=self._broken)
        try:
            self._put_larger(partitions, added)
        except StorageFull:
            raise
        except OSError as error:
            self._broken = f"control files failed: {error}"
            raise StorageFailed(partition=-1, reason=self._broken) from None

    def _put_larger(self, partitions: int, added: int) -> None:
        header = ControlHeader(self.header.creation_time_ms, self.header.cluster_key, partitions).to_bytes()
        fences = self._fence.read(CONTROL_HEADER_BYTES, counter_offset(self.header.partitions + 1, 0) - CONTROL_HEADER_BYTES)
        entries = self._control.read(CONTROL_HEADER_BYTES, self.header.partitions * ENTRY_BYTES)
        more = b"".join(encode_entry(partition, SessionMark()) for partition in range(self.header.partitions, partitions))
        try:  # stage both before replacing either, so that a full disk changes nothing
            _stage(self._disk, FENCE_FILE, header + fences + added * 2 * encode_counter(-1))
            _stage(self._disk, CONTROL_FILE, header + entries + more)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            reason = f"no room for the control files of {partitions} partitions: {error}"
            raise StorageFull(partition=-1, reason=reason, free_bytes=max(0, self._disk.free_bytes())) from None
        _replace(self._disk, FENCE_FILE)
        _replace(self._disk, CONTROL_FILE)
        self.close()
        self._fence, self._control = self._disk.open(FENCE_FILE, "write"), self._disk.open(CONTROL_FILE, "write")
        self._marks += [(SessionMark(), 0)] * added
        self._counters += [(-1, 0)] * added
        self.header = ControlHeader.from_bytes(header, CONTROL_FILE)  # last: from now on callers use the new partitions

    # ---- reading ---------------------------------------------------------------------------------------------------------------------------------

    def mark(self, partition: int) -> SessionMark:
        """Raises `CorruptData` if neither struct of the partition is valid."""
        found = self._marks[partition]
        if found is None:
            where = mark_offset(partition, 0)
            raise CorruptData(where=CONTROL_FILE, offset=where, transaction_id=-1, reason=f"both structs are invalid partition={partition}")
        return found[0]

    def fence(self, partition: int) -> int:
        """The newest session seen. Raises `CorruptData` if it cannot be read: a value that is too low would let an old owner write."""
        found = self._counters[1 + partition]
        if found is None:
            where = counter_offset(1 + partition, 0)
            raise CorruptData(where=FENCE_FILE, offset=where, transaction_id=-1, reason=f"both fences are unreadable partition={partition}")
        return max(found[0], self.mark(partition).session)

    # ---- writing ---------------------------------------------------------------------------------------------------------------------------------

    def set_mark(self, partition: int, mark: SessionMark) -> None:
        """Durable when it returns. Raises `StorageFailed`."""
        current = self._marks[partition]
        assert current is not None, "a partition without a valid struct is not opened"
        assert mark >= current[0], "session marks never go back"
        which = 1 - current[1]
        self._write(self._control, mark_offset(partition, which), encode_mark(mark), partition)
        self._marks[partition] = (mark, which)

    def disown(self, partition: int, mark: SessionMark) -> None:
        """Sets a mark whose session is negative, as that of a restored directory. Both structs must have it, because of two the newer session counts;
        after a crash between the two writes, the mark is the one before. Durable when it returns. Raises `StorageFailed`."""
        current = self._marks[partition]
        assert current is not None, "a partition without a valid struct is not opened"
        assert mark.session < -1, "only a restored session is below every other"
        for which in (1 - current[1], current[1]):
            self._write(self._control, mark_offset(partition, which), encode_mark(mark), partition)
        self._marks[partition] = (mark, current[1])

    def raise_fence(self, partition: int, session: int) -> None:
        """Durable when it returns. Raises `StorageFailed`."""
        assert session >= self.fence(partition), "fences never go back"
        self._count(1 + partition, session, partition)

    def _count(self, slot: int, value: int, partition: int) -> None:
        current = self._counters[slot]
        assert current is not None
        which = 1 - current[1]
        self._write(self._fence, counter_offset(slot, which), encode_counter(value), partition)
        self._counters[slot] = (value, which)
        self._mirror(slot)

    def _mirror(self, slot: int) -> None:
        """Writes the same value to the other half of a pair once the first half is on the medium. A corrupt bit in one half then loses nothing. If
        this write fails, or is lost or torn in a crash, the synced half remains valid, so no caller waits for it or learns of its failure."""
        current = self._counters[slot]
        if current is not None:
            with suppress(OSError):
                self._fence.write(counter_offset(slot, 1 - current[1]), encode_counter(current[0]))

    def _write(self, file: DiskFile, offset: int, data: bytes, partition: int) -> None:
        if self._broken is not None:
            raise StorageFailed(partition=partition, reason=self._broken)
        try:
            file.write(offset, data)
            file.sync()
        except OSError as error:
            self._broken = f"control files failed: {error}"
            raise StorageFailed(partition=partition, reason=self._broken) from None

    def close(self) -> None:
        self._control.close()
        self._fence.close()


def write_small_file(disk: Disk, name: str, content: bytes) -> None:
    """Writes a whole file at once: temporary, synced, renamed, directory synced."""
    _stage(disk, name, content)
    _replace(disk, name)


def _stage(disk: Disk, name: str, content: bytes) -> None:
    """Writes the file under a temporary name, synced. Removes the remains of a failed attempt first."""
    temporary = f"{name}.new"
    if disk.exists(temporary):
        disk.remove(temporary)
    file = disk.open(temporary, "create")
    try:
        file.write(0, content)
        file.sync()
    finally:
        file.close()


def _replace(disk: Disk, name: str) -> None:
    """Renames the staged file over the old one, durably."""
    disk.rename(f"{name}.new", name)
    disk.sync_directory("")
