"""Describes a storage directory for a cluster that adopts it: key, marks, and the highest numbers in use.

Reads headers of all records, strictly read-only; changes and verifies nothing. A directory that Java Waltz wrote must be migrated first.
"""

from __future__ import annotations

from pathlib import Path

from waltz_log.core.adoption import DirectoryFacts, PartitionFacts
from waltz_log.core.formats.control_format import CONTROL_FILE, SessionMark
from waltz_log.core.formats.segment_format import DATA, FILE_HEADER_BYTES
from waltz_log.core.ports import Disk
from waltz_log.errors import CorruptData, InvalidSetting
from waltz_log.filesystem import ReadOnlyFileSystemDisk
from waltz_log.storage.control.client_ids import read_client_ids
from waltz_log.storage.control.storage_directory import StorageDirectory, partition_directories, read_directory, segment_firsts
from waltz_log.storage.offline.dump import dump_records
from waltz_log.storage.segments.segment import segment_path

__all__ = ["describe", "describe_directory"]


def describe(disk: Disk) -> DirectoryFacts:
    """Raises `InvalidSetting` if it is no directory of ours, `CorruptData` if it is damaged."""
    found = read_directory(disk)
    if found.java is not None:
        raise InvalidSetting(name="directory", reason="was written by Java Waltz: run `waltz storage migrate` on it first", nearest=None)
    present = set(partition_directories(disk))
    facts = tuple(_partition(disk, found, partition, partition in present) for partition in range(found.header.partitions))
    return DirectoryFacts(found.key, facts, read_client_ids(disk))


def describe_directory(directory: Path) -> DirectoryFacts:
    """The same for a directory of this machine, opened read-only."""
    if not (directory / CONTROL_FILE).is_file():
        raise InvalidSetting(name="directory", reason=f"is not a storage directory: it holds no {CONTROL_FILE}: {directory}", nearest=None)
    return describe(ReadOnlyFileSystemDisk(directory))


def _partition(disk: Disk, found: StorageDirectory, partition: int, present: bool) -> PartitionFacts:
    mark = found.entries[partition].mark
    if mark is None:
        raise CorruptData(where="control file", offset=0, transaction_id=-1, reason=f"both structs are invalid partition={partition}")
    last, generation, client_id = (-1, 0, 0) if not present else _records(disk, str(partition))
    committed = min(mark.low_water_mark, mark.local_low_water_mark)  # the replica may have been in the middle of a fill
    return PartitionFacts(mark.session, _fence(found, partition, mark), committed, last, present, generation, client_id)


def _fence(found: StorageDirectory, partition: int, mark: SessionMark) -> int:
    seen = None if found.fence is None else found.fence.sessions[partition]
    return max(mark.session, -1 if seen is None else seen)


def _records(disk: Disk, directory: str) -> tuple[int, int, int]:
    last, generation, client_id = -1, 0, 0
    for first in segment_firsts(disk, directory):
        last = max(last, first - 1)
        file = disk.open(segment_path(directory, first, DATA), "read")
        try:
            empty = file.size() <= FILE_HEADER_BYTES
        finally:
            file.close()
        for record in () if empty else dump_records(disk, directory, first, data=False):
            if record.damage is not None:
                raise CorruptData(where=directory, offset=record.offset, transaction_id=record.transaction_id, reason=record.damage)
            last, generation, client_id = record.transaction_id, max(generation, record.generation), max(client_id, record.client_id)
    return last, generation, client_id
