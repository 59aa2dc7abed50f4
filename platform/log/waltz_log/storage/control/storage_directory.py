"""Reads the small files of a storage directory without opening the directory as a node would: for the tools.

Accepts a directory of Java Waltz as well as ours. Never changes, locks or repairs anything; a file that is being written is read again until it is
complete.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
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
    decode_counter,
    decode_mark,
    newest,
)
from waltz_log.core.formats.java_control_format import JAVA_ENTRY_BYTES, JavaEntry, decode_java_entry, is_java_size
from waltz_log.core.formats.segment_format import DATA, first_id_of
from waltz_log.core.ports import Disk
from waltz_log.errors import CorruptData, InvalidSetting

__all__ = ["ControlEntry", "FenceView", "StorageDirectory", "partition_directories", "read_directory", "read_file", "segment_firsts"]

SMALL_FILE_BYTES_MAX: Final = 64 * 1024 * 1024
"""The size of a control file for a million partitions; a larger file is something else under that name."""

READS_MAX: Final = 3
"""How often a file is read before a struct with a wrong checksum counts as damaged: a node may be writing it."""


@dataclass(frozen=True, slots=True)
class ControlEntry:
    """`partition`: the number in the file. `structs`: None if the checksum does not match. `current`: the valid newest one, None if neither is
    valid."""

    partition: int
    structs: tuple[SessionMark | None, SessionMark | None]
    current: int | None

    @property
    def mark(self) -> SessionMark | None:
        return None if self.current is None else self.structs[self.current]


@dataclass(frozen=True, slots=True)
class FenceView:
    """`start`: how often the directory was started; `sessions`: the newest seen of each partition. None if neither half of a pair is valid."""

    header: ControlHeader
    start: int | None
    sessions: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class StorageDirectory:
    """`java`: the entries as the original wrote them, None in a directory of ours. `fence`: None if there is no such file."""

    header: ControlHeader
    entries: tuple[ControlEntry, ...]
    fence: FenceView | None
    java: tuple[JavaEntry, ...] | None

    @property
    def key(self) -> UUID:
        return self.header.cluster_key

    def known_good(self, partition: int) -> int:
        """Every record up to this id must be intact: the local low-water mark, -1 if it is not known."""
        mark = self.entries[partition].mark if 0 <= partition < len(self.entries) else None
        return -1 if mark is None else mark.local_low_water_mark


def read_file(disk: Disk, path: str) -> bytes:
    file = disk.open(path, "read")
    try:
        size = file.size()
        if size > SMALL_FILE_BYTES_MAX:
            raise CorruptData(where=path, offset=0, transaction_id=-1, reason=f"is not a control file: bytes={size}")
        return file.read(0, size)
    finally:
        file.close()


def read_directory(disk: Disk) -> StorageDirectory:
    """Raises `InvalidSetting` if it is no storage directory, `CorruptData` if a header or a size is wrong. The result lists damaged entries."""
    if not disk.exists(CONTROL_FILE):
        raise InvalidSetting(name="directory", reason=f"is not a storage directory: it holds no {CONTROL_FILE}", nearest=None)
    for _ in range(READS_MAX - 1):
        found = _read_directory(disk)
        if all(None not in entry.structs for entry in found.entries):
            return found
    return _read_directory(disk)


def _read_directory(disk: Disk) -> StorageDirectory:
    content = read_file(disk, CONTROL_FILE)
    header = ControlHeader.from_bytes(content, CONTROL_FILE)
    fence = _read_fence(disk) if disk.exists(FENCE_FILE) else None
    body = content[CONTROL_HEADER_BYTES:]
    if is_java_size(len(content), header.partitions):
        java = tuple(decode_java_entry(body[at : at + JAVA_ENTRY_BYTES]) for at in range(0, len(body), JAVA_ENTRY_BYTES))
        return StorageDirectory(header, tuple(_of_java(entry) for entry in java), fence, java)
    expected = header.partitions * ENTRY_BYTES
    if len(body) != expected:
        reason = f"{len(content)} bytes for {header.partitions} partitions, expected {CONTROL_HEADER_BYTES + expected}"
        raise CorruptData(where=CONTROL_FILE, offset=len(content), transaction_id=-1, reason=reason)
    return StorageDirectory(header, tuple(_entry(body[at : at + ENTRY_BYTES]) for at in range(0, len(body), ENTRY_BYTES)), fence, None)


def _entry(data: bytes) -> ControlEntry:
    pair = (decode_mark(data[4 : 4 + MARK_BYTES]), decode_mark(data[4 + MARK_BYTES :]))
    current = newest(pair)
    return ControlEntry(int.from_bytes(data[:4], "big", signed=True), pair, None if current is None else current[1])


def _of_java(entry: JavaEntry) -> ControlEntry:
    first, second = entry.structs
    marks = (None if first is None else first.mark, None if second is None else second.mark)
    current = entry.current
    return ControlEntry(entry.partition, marks, None if current is None else entry.structs.index(current))


def _read_fence(disk: Disk) -> FenceView:
    content = read_file(disk, FENCE_FILE)
    header = ControlHeader.from_bytes(content, FENCE_FILE)
    body = content[CONTROL_HEADER_BYTES:]
    expected = 2 * COUNTER_BYTES * (1 + header.partitions)
    if len(body) != expected:
        reason = f"{len(content)} bytes for {header.partitions} partitions, expected {CONTROL_HEADER_BYTES + expected}"
        raise CorruptData(where=FENCE_FILE, offset=len(content), transaction_id=-1, reason=reason)
    counters = []
    for at in range(0, len(body), 2 * COUNTER_BYTES):
        found = newest([decode_counter(body[at + shift : at + shift + COUNTER_BYTES]) for shift in (0, COUNTER_BYTES)])
        counters.append(None if found is None else found[0])
    return FenceView(header, counters[0], tuple(counters[1:]))


def partition_directories(disk: Disk) -> list[int]:
    """The partition numbers of the subdirectories, in ascending order."""
    return sorted(int(name) for name in disk.list("") if name.isascii() and name.isdigit() and str(int(name)) == name)


def segment_firsts(disk: Disk, directory: str) -> list[int]:
    return sorted(first for name in disk.list(directory) if (first := first_id_of(name, DATA)) is not None)
