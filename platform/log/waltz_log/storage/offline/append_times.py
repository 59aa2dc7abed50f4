"""Corrects append times that a wrong clock set too late, in a storage directory whose node is stopped (docs/guides/disaster_recovery.md).

Each time after a given one becomes that one, so that times never go back within a partition. Records, ids and checksums of records stay as they are:
they hold no time. An interrupted correction is repeated; at worst the block of one entry has the time of the block before it until then.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from waltz_log.core.formats.segment_format import FILE_HEADER_BYTES, TIME_ENTRY_BYTES, TIMES, decode_times, encode_time
from waltz_log.core.ports import Disk, DiskFile
from waltz_log.errors import InvalidSetting, StorageFailed
from waltz_log.storage.control.storage_directory import partition_directories, read_directory, segment_firsts
from waltz_log.storage.offline.locked import locked
from waltz_log.storage.segments.holes import skip_hole
from waltz_log.storage.segments.segment import segment_path

__all__ = ["correct_append_times"]

SLICE_BYTES: Final = 4096 * TIME_ENTRY_BYTES


def correct_append_times(disk: Disk, latest_ms: int, partitions: Collection[int] | None = None) -> dict[int, int]:
    """How many entries were corrected, by partition; those without any are left out. `latest_ms`: no time is later afterwards. `partitions`: None is
    all. Raises `InvalidSetting` if it is no directory of ours or its node runs, `StorageFailed`."""
    if read_directory(disk).java is not None:
        raise InvalidSetting(name="directory", reason="was written by Java Waltz: run `waltz storage migrate` on it first", nearest=None)
    with locked(disk):
        present = [each for each in partition_directories(disk) if partitions is None or each in partitions]
        found = {each: sum(_correct(disk, str(each), first, latest_ms) for first in segment_firsts(disk, str(each))) for each in present}
        return {partition: count for partition, count in found.items() if count}


def _correct(disk: Disk, directory: str, first: int, latest_ms: int) -> int:
    path = segment_path(directory, first, TIMES)
    if not disk.exists(path):
        return 0
    try:
        file = disk.open(path, "write")
        try:
            if count := sum(_correct_slice(file, place, latest_ms) for place in _places(file)):
                file.sync()
        finally:
            file.close()
    except OSError as error:
        raise StorageFailed(partition=int(directory), reason=f"cannot correct {path}: {error}") from None
    return count


def _places(file: DiskFile) -> list[int]:
    """Where the slices with data begin."""
    found, place, size = list[int](), FILE_HEADER_BYTES, file.size()
    while (place := skip_hole(file, place, TIME_ENTRY_BYTES)) < size:
        found.append(place)
        place += SLICE_BYTES
    return found


def _correct_slice(file: DiskFile, place: int, latest_ms: int) -> int:
    raw = file.read(place, SLICE_BYTES)
    firsts, times, _ = decode_times(raw)
    late = set(firsts[times > latest_ms].tolist())
    if not late:
        return 0
    data = bytearray(raw)
    for at in range(0, len(raw) - TIME_ENTRY_BYTES + 1, TIME_ENTRY_BYTES):
        own, _, _ = decode_times(raw[at : at + TIME_ENTRY_BYTES])
        if len(own) and int(own[0]) in late:
            data[at : at + TIME_ENTRY_BYTES] = encode_time(int(own[0]), latest_ms)
    file.write(place, bytes(data))
    return len(late)
