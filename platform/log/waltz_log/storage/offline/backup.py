"""Copies the directory of a storage node, which may be running, into a backup: a cut of every partition's log, complete and verified.

It only reads and links files, and neither waits for the node nor delays it. What makes the copy consistent:

- The control file is read before any data and the fences after all of it: the marks of the copy never promise more than its data holds.
- A closed segment is hard-linked if source and target share a file system, else copied. Before a node writes to a file that has other names, it
  replaces the file with a copy. If a link came too late for that, the segment after it is gone or changed: the partition is copied again.
- The last segment is copied up to the end of its index, which was acknowledged, at a record border; index before data, as the node writes them.
- Every copy is verified, record by record, before it counts: a backup never holds corruption.

The manifest comes last. No file of a backup has a name with which a node could start on it: `restore` makes a directory that is marked as restored.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from itertools import pairwise
from typing import Final

from waltz_log.core.formats.backup_manifest import MANIFEST, PARTITIONS, BackupFile, BackupManifest, BackupPartition
from waltz_log.core.formats.control_format import SessionMark
from waltz_log.core.formats.record_layout import HEADER_BYTES, RECORD_OVERHEAD_BYTES, length_of
from waltz_log.core.formats.segment_format import DATA, FILE_HEADER_BYTES, INDEX, TIME_ENTRY_BYTES, TIMES
from waltz_log.core.ports import Disk
from waltz_log.errors import CorruptData, InvalidSetting, Unavailable
from waltz_log.storage.control.storage_directory import StorageDirectory, partition_directories, read_directory, segment_firsts
from waltz_log.storage.integrity.verify import SegmentCheck, written_entries
from waltz_log.storage.segments.holes import refuse_hole
from waltz_log.storage.segments.segment import put_file, segment_path
from waltz_log.storage.segments.times import SegmentTimes

__all__ = ["backup"]

COPY_BYTES: Final = 1024 * 1024
TRIES: Final = 5
"""For one partition whose log is truncated or trimmed while it is copied; recoveries are rare."""

Link = Callable[[str, str], bool]
"""Gives a file of the source a second name in the target; False if it cannot."""


class _Moved(Exception):
    """The log was truncated or trimmed while it was copied."""


def _nothing(_bytes: int) -> None:
    pass


def backup(source: Disk, target: Disk, taken_time_ms: int, *, link: Link | None = None, on_bytes: Callable[[int], None] = _nothing) -> BackupManifest:
    """Fills an empty `target`; everything is durable when it returns. `on_bytes` receives the bytes of each step and may block to limit the pace.
    Raises `InvalidSetting` if the source is no directory of ours, `CorruptData` if it holds corruption, `Unavailable` if its log changed at each try,
    `OSError`."""
    directory = read_directory(source)
    if directory.java is not None:
        raise InvalidSetting(name="directory", reason="is one of Java Waltz: migrate it first", nearest=None)
    copier = _Copier(source, target, directory, link, on_bytes)
    target.make_directory(PARTITIONS)
    ends: dict[int, tuple[int, int]] = {}
    for partition in partition_directories(source):
        if partition < directory.header.partitions:
            ends[partition] = copier.copy_partition(partition)
    target.sync_directory(PARTITIONS)
    after = read_directory(source)
    manifest = BackupManifest(
        cluster_key=directory.key,
        creation_time_ms=directory.header.creation_time_ms,
        taken_time_ms=taken_time_ms,
        start=_known(None if after.fence is None else after.fence.start, "start count"),
        partition_count=directory.header.partitions,
        partitions=tuple(_partition(directory, after, partition, ends.get(partition, (0, -1))) for partition in range(directory.header.partitions)),
        files=tuple(copier.files),
    )
    put_file(target, f"{MANIFEST}.new", manifest.to_bytes())
    target.rename(f"{MANIFEST}.new", MANIFEST)
    target.sync_directory("")
    return manifest


def _known(value: int | None, what: str) -> int:
    if value is None:
        raise CorruptData(where="waltz-storage.fence", offset=0, transaction_id=-1, reason=f"{what} is unreadable")
    return value


def _partition(before: StorageDirectory, after: StorageDirectory, partition: int, ends: tuple[int, int]) -> BackupPartition:
    mark: SessionMark | None = before.entries[partition].mark
    if mark is None:
        raise CorruptData(where="waltz-storage.ctl", offset=0, transaction_id=-1, reason=f"both structs are invalid partition={partition}")
    fence = _known(None if after.fence is None else after.fence.sessions[partition], f"fence of partition {partition}")
    if mark.local_low_water_mark > ends[1]:
        reason = f"acknowledged transactions are missing: known_good={mark.local_low_water_mark}"
        raise CorruptData(where=str(partition), offset=0, transaction_id=ends[1] + 1, reason=reason)
    return BackupPartition(partition, mark, max(fence, mark.session), *ends)


class _Copier:
    def __init__(self, source: Disk, target: Disk, directory: StorageDirectory, link: Link | None, on_bytes: Callable[[int], None]) -> None:
        self._source = source
        self._target = target
        self._directory = directory
        self._link = link
        self._on_bytes = on_bytes
        self.files: list[BackupFile] = []

    def copy_partition(self, partition: int) -> tuple[int, int]:
        """The first and last id that were copied."""
        for _ in range(TRIES):
            kept = len(self.files)
            try:
                return self._try_partition(partition)
            except (_Moved, FileNotFoundError):
                del self.files[kept:]
                self._clear(f"{PARTITIONS}/{partition}")
        self._refuse_damaged(partition)
        raise Unavailable(reason=f"the log of partition {partition} was cut or trimmed again and again while it was copied")

    def _refuse_damaged(self, partition: int) -> None:
        """Raises `CorruptData` if the source itself is damaged, in the same way twice: then it is not a running node that changes the log."""
        found = [self._damage(partition) for _ in range(2)]
        if found[0] is not None and found[1] is not None and found[0].findings[:1] == found[1].findings[:1]:
            self._refuse(found[1])

    def _damage(self, partition: int) -> SegmentCheck | None:
        """The check of the first damaged segment."""
        where = str(partition)
        for first, following in pairwise([*segment_firsts(self._source, where), None]):
            assert first is not None
            check = SegmentCheck(self._source, where, self._directory.key, partition, first, following=following, known_good=first - 1)
            for step in check.run():
                self._on_bytes(step)
            if check.findings:
                return check
        return None

    def _refuse(self, check: SegmentCheck) -> None:
        if check.findings:
            found = check.findings[0]
            where = found.file.removeprefix(f"{PARTITIONS}/")
            raise CorruptData(where=where, offset=found.offset, transaction_id=found.transaction_id, reason=f"not backed up: {found.reason}")

    def _clear(self, directory: str) -> None:
        for name in self._target.list(directory):
            self._target.remove(f"{directory}/{name}")

    def _try_partition(self, partition: int) -> tuple[int, int]:
        where, there = str(partition), f"{PARTITIONS}/{partition}"
        self._target.make_directory(there)
        firsts = segment_firsts(self._source, where)
        if not firsts:
            return (0, -1)
        beginnings = {first: self._beginning(where, first) for first in firsts}
        for first, following in pairwise(firsts):
            for kind in (INDEX, TIMES, DATA):
                self._copy_closed(segment_path(where, first, kind), segment_path(there, first, kind), self._size_max(where, first, following, kind))
            self._verify(partition, there, first, following, beginnings, firsts)
        self._copy_last(where, there, firsts[-1])
        last = self._verify(partition, there, firsts[-1], None, beginnings, firsts)
        if self._written(where, firsts[-1]) < last + 1 - firsts[-1]:
            raise _Moved
        self._target.sync_directory(there)
        return firsts[0], last

    def _beginning(self, where: str, first: int) -> bytes:
        """Distinguishes a segment from another one of the same name: the file's header, and that of the first record if there is one."""
        file = self._source.open(segment_path(where, first, DATA), "read")
        try:
            found = file.read(0, FILE_HEADER_BYTES + HEADER_BYTES)
        finally:
            file.close()
        return found if any(found[FILE_HEADER_BYTES:]) else found[:FILE_HEADER_BYTES]

    def _check_unchanged(self, where: str, beginnings: dict[int, bytes], firsts: list[int]) -> None:
        """Raises if any segment is gone or changed: the log was truncated or trimmed since the segments were listed."""
        if any(not self._beginning(where, first).startswith(beginnings[first]) for first in firsts):
            raise _Moved

    def _verify(self, partition: int, there: str, first: int, following: int | None, beginnings: dict[int, bytes], firsts: list[int]) -> int:
        check = SegmentCheck(self._target, there, self._directory.key, partition, first, following=following, known_good=first - 1)
        for step in check.run():
            self._on_bytes(step)
        if check.findings:
            self._check_unchanged(str(partition), beginnings, firsts)  # apparent corruption may be a truncation
        self._refuse(check)
        self._check_unchanged(str(partition), beginnings, firsts)
        return check.last_id

    # ---- files -----------------------------------------------------------------------------------------------------------------------------------

    def _size_max(self, where: str, first: int, following: int, kind: str) -> int:
        """The most bytes of a closed segment's file that belong to its transactions. `_verify` finds what is wrong within them."""
        entries = following - first
        if kind != DATA:
            return FILE_HEADER_BYTES + entries * (8 if kind == INDEX else TIME_ENTRY_BYTES)
        index = self._source.open(segment_path(where, first, INDEX), "read")
        data = self._source.open(segment_path(where, first, DATA), "read")
        try:
            size = data.size()
            offset = int.from_bytes(index.read(FILE_HEADER_BYTES + 8 * (entries - 1), 8), "big")
            header = data.read(min(offset, size), HEADER_BYTES)
            end = offset + length_of(header) if len(header) == HEADER_BYTES else size
            return end if FILE_HEADER_BYTES < end <= size else size
        finally:
            index.close()
            data.close()

    def _copy_closed(self, path: str, to: str, size_max: int) -> None:
        """Links the file, or copies it. Bytes above `size_max` do not belong to the backup."""
        if not self._source.exists(path):
            if path.endswith(TIMES):
                return  # a segment that the original wrote
            raise FileNotFoundError(path)
        linked = self._link is not None and self._link(path, to)
        if not linked:
            file = self._source.open(path, "read")
            try:
                size = min(size_max, file.size())
            finally:
                file.close()
            self._copy(path, to, size)
            return
        digest, size = sha256(), 0
        file = self._target.open(to, "read")
        try:
            while chunk := file.read(size, min(COPY_BYTES, size_max - size)):
                refuse_hole(file, size, path)
                digest.update(chunk)
                size += len(chunk)
                self._on_bytes(len(chunk))
        finally:
            file.close()
        self.files.append(BackupFile(to, size, digest.hexdigest(), True))

    def _copy(self, path: str, to: str, size: int) -> None:
        """Copies the first `size` bytes, synced."""
        digest, done = sha256(), 0
        source = self._source.open(path, "read")
        try:
            target = self._target.open(to, "create")
            try:
                while done < size:
                    chunk = source.read(done, min(COPY_BYTES, size - done))
                    if not chunk:
                        raise _Moved
                    refuse_hole(source, done, path)
                    target.write(done, chunk)
                    digest.update(chunk)
                    done += len(chunk)
                    self._on_bytes(len(chunk))
                target.sync()
            finally:
                target.close()
        finally:
            source.close()
        self.files.append(BackupFile(to, done, digest.hexdigest(), False))

    def _written(self, where: str, first: int) -> int:
        path = segment_path(where, first, INDEX)
        if not self._source.exists(path):
            return 0
        index = self._source.open(path, "read")
        try:
            return written_entries(index, max(0, index.size() - FILE_HEADER_BYTES) // 8)
        finally:
            index.close()

    def _copy_last(self, where: str, there: str, first: int) -> None:
        entries = self._written(where, first)
        end = FILE_HEADER_BYTES
        if entries:
            index = self._source.open(segment_path(where, first, INDEX), "read")
            data = self._source.open(segment_path(where, first, DATA), "read")
            try:
                offset = int.from_bytes(index.read(FILE_HEADER_BYTES + 8 * (entries - 1), 8), "big")
                header = data.read(offset, HEADER_BYTES)
                length = length_of(header) if len(header) == HEADER_BYTES else -1
                end = offset + length
                if length < RECORD_OVERHEAD_BYTES or end > data.size():
                    raise _Moved
            finally:
                index.close()
                data.close()
        if self._source.exists(segment_path(where, first, INDEX)):
            self._copy(segment_path(where, first, INDEX), segment_path(there, first, INDEX), FILE_HEADER_BYTES + 8 * entries)
        path = segment_path(where, first, TIMES)
        if self._source.exists(path):
            file = self._source.open(path, "read")
            try:
                times_end = SegmentTimes(file, 0).end(first + entries - 1)
            finally:
                file.close()
            self._copy(path, segment_path(there, first, TIMES), times_end)
        self._copy(segment_path(where, first, DATA), segment_path(there, first, DATA), end)
