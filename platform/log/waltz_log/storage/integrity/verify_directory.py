"""Verifies a whole storage directory: control and fence file, then every segment of every partition, and how they fit together.

Read-only: works on any disk, and is meant for a read-only one. The directory may be that of a running node, which appends, adds and removes segments.
A finding therefore counts only if a second check confirms it; a segment that is gone by then was truncated or trimmed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from uuid import UUID

from waltz_log.core.formats.control_format import CONTROL_FILE, CONTROL_HEADER_BYTES, ENTRY_BYTES, FENCE_FILE
from waltz_log.core.formats.java_control_format import JAVA_ENTRY_BYTES
from waltz_log.core.formats.segment_format import INDEX, TIMES, first_id_of
from waltz_log.core.ports import Disk
from waltz_log.errors import StorageFailed
from waltz_log.storage.control.client_ids import CLIENT_IDS_FILE, read_client_ids
from waltz_log.storage.control.storage_directory import StorageDirectory, partition_directories, read_directory, segment_firsts
from waltz_log.storage.integrity.verify import Finding, SegmentCheck

__all__ = ["SegmentReport", "verify_directory", "verify_small_files"]


@dataclass(frozen=True, slots=True)
class SegmentReport:
    """`notes`: observations that are no damage."""

    partition: int
    segment: int
    last_transaction_id: int
    records: int
    data_bytes: int
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]


def _nothing(_bytes: int) -> None:
    pass


def verify_directory(disk: Disk, partitions: set[int] | None = None, on_bytes: Callable[[int], None] = _nothing) -> Iterator[SegmentReport]:
    """A report for each segment, only of `partitions` if they are given. `on_bytes` receives the bytes of each step. `verify_small_files` checks
    control and fence file. Raises if it is no storage directory or its control file cannot be used (`read_directory`)."""
    directory = read_directory(disk)
    for partition in partition_directories(disk):
        if partitions is None or partition in partitions:
            yield from _verify_partition(disk, directory, partition, on_bytes)


def verify_small_files(disk: Disk, directory: StorageDirectory) -> tuple[list[Finding], list[str]]:
    """The damage in the control and the fence file, and notes: one torn struct of a pair is what a crash leaves."""
    findings: list[Finding] = []
    notes: list[str] = []

    def wrong(file: str, offset: int, reason: str) -> None:
        findings.append(Finding("control", file, offset, -1, -1, reason))

    size = ENTRY_BYTES if directory.java is None else JAVA_ENTRY_BYTES
    for place, entry in enumerate(directory.entries):
        offset = CONTROL_HEADER_BYTES + place * size
        if entry.partition != place:
            wrong(CONTROL_FILE, offset, f"entry {place} names partition {entry.partition}")
        if entry.current is None:
            wrong(CONTROL_FILE, offset, f"both structs are invalid partition={place}")
        elif None in entry.structs:
            notes.append(f"{CONTROL_FILE}: one struct of partition {place} is torn, the other holds")
    if directory.java is not None:
        notes.append(f"{CONTROL_FILE}: written by Java Waltz, `waltz storage migrate` converts it")
        return findings, notes
    try:
        read_client_ids(disk)
    except StorageFailed:
        wrong(CLIENT_IDS_FILE, 0, "is damaged; stop the node, remove the file, and start it again: log servers write it again")
    fence = directory.fence
    if fence is None:
        wrong(FENCE_FILE, 0, "is not there")
    else:
        if (fence.header.cluster_key, fence.header.partitions) != (directory.key, directory.header.partitions):
            wrong(FENCE_FILE, 0, f"another cluster or size than {CONTROL_FILE}: {fence.header.cluster_key}, {fence.header.partitions} partitions")
        if fence.start is None:
            wrong(FENCE_FILE, CONTROL_HEADER_BYTES, "start count is unreadable")
        for partition, session in enumerate(fence.sessions):
            if session is None:
                wrong(FENCE_FILE, CONTROL_HEADER_BYTES, f"both fences are unreadable partition={partition}")
    return findings, notes


def _verify_partition(disk: Disk, directory: StorageDirectory, partition: int, on_bytes: Callable[[int], None]) -> Iterator[SegmentReport]:
    where = str(partition)
    firsts = segment_firsts(disk, where)
    notes = _stray_files(disk, where, set(firsts))
    if partition >= directory.header.partitions:
        notes.append(f"{where}: no partition of this cluster")
    known_good = directory.known_good(partition)
    if not firsts:
        if known_good >= 0:
            lost = Finding("data", where, 0, 0, known_good, "acknowledged transactions are missing")
            yield SegmentReport(partition, 0, -1, 0, 0, (lost,), tuple(notes))
        return
    for first, following in pairwise([*firsts, None]):
        assert first is not None
        try:
            check = _verify_segment(disk, directory.key, partition, first, following, known_good, on_bytes)
            again = _verify_again(disk, directory.key, partition, first, known_good, on_bytes) if check.findings else check
        except FileNotFoundError:
            continue  # truncated or trimmed meanwhile
        if again is None:
            continue  # the same
        findings = check.findings
        if findings:
            check = again
            kept = {(found.part, found.file, found.offset, found.transaction_id) for found in findings}
            findings = [found for found in again.findings if (found.part, found.file, found.offset, found.transaction_id) in kept]
        if check.tail_bytes:
            notes.append(f"{where}: {check.tail_bytes} bytes behind the last acknowledged transaction, being written or torn by a crash")
        yield SegmentReport(partition, first, check.last_id, check.records, check.data_bytes, tuple(findings), tuple(notes))
        notes = []


def _verify_segment(
    disk: Disk, key: UUID, partition: int, first: int, following: int | None, known_good: int, on_bytes: Callable[[int], None]
) -> SegmentCheck:
    check = SegmentCheck(disk, str(partition), key, partition, first, following=following, known_good=known_good)
    for step in check.run():
        on_bytes(step)
    return check


def _verify_again(disk: Disk, key: UUID, partition: int, first: int, known_good: int, on_bytes: Callable[[int], None]) -> SegmentCheck | None:
    """The node may have rolled, truncated or trimmed, so the segments are listed again. None if this one is gone."""
    firsts = segment_firsts(disk, str(partition))
    if first not in firsts:
        return None
    following = next((other for other in firsts if other > first), None)
    return _verify_segment(disk, key, partition, first, following, known_good, on_bytes)


def _stray_files(disk: Disk, where: str, firsts: set[int]) -> list[str]:
    names = disk.list(where)
    stray = [name for name in names if name.endswith(".new")]
    for kind in (INDEX, TIMES):
        stray += [name for name in names if (first := first_id_of(name, kind)) is not None and first not in firsts]
    return [f"{where}/{name}: what a crash left of a roll, or one that is under way" for name in stray]
