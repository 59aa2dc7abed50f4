"""Verification finds what is wrong, says where, calls nothing wrong that is not, and touches nothing."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Literal
from uuid import UUID

import pytest

from waltz_log.core.formats.block import Block
from waltz_log.core.formats.control_format import CONTROL_FILE, FENCE_FILE, SessionMark, counter_offset, mark_offset
from waltz_log.core.formats.records import encode_record
from waltz_log.core.ports import DiskFile
from waltz_log.errors import CorruptData, InvalidSetting
from waltz_log.filesystem import FileSystemDisk, ReadOnlyFileSystemDisk
from waltz_log.storage.control.control import ControlFiles
from waltz_log.storage.control.storage_directory import read_directory
from waltz_log.storage.integrity.verify import Finding
from waltz_log.storage.integrity.verify_directory import SegmentReport, verify_directory, verify_small_files
from waltz_log.storage.offline.dump import dump_index, dump_records, dump_times
from waltz_log.storage.offline.segment_statistics import segment_statistics
from waltz_log.storage.segments.segment_log import SegmentLog
from waltz_log.testing.disk import SimulatedDisk

KEY = UUID("00112233-4455-6677-8899-aabbccddeeff")


class FixedClock:
    def now_ms(self) -> int:
        return 1_600_000_000_000


def block(first: int, count: int, size: int, time_ms: int) -> Block:
    records = [encode_record(5 + n % 2, 1, 0, n, 7, bytes([n % 251]) * (size + n % 7), n) for n in range(first, first + count)]
    return Block(first, struct.pack(f">{count}i", *map(len, records)), b"".join(records), time_ms)


def write(disk: SimulatedDisk | FileSystemDisk, transactions: int = 300) -> SegmentLog:
    """Blocks of ten, some thirty to a segment. The log stays open, as a running node's."""
    ControlFiles.create(disk, FixedClock(), KEY, 2)
    control = ControlFiles.open(disk)
    control.set_mark(0, SessionMark(3, 99, 99))
    control.close()
    log = SegmentLog.open(disk, FixedClock(), KEY, 0, 8192, -1)
    for first in range(0, transactions, 10):
        log.append([block(first, 10, 60, 1000 + first)])
    return log


def inspect_directory(disk: SimulatedDisk | FileSystemDisk) -> tuple[list[Finding], list[str], list[SegmentReport]]:
    findings, notes = verify_small_files(disk, read_directory(disk))
    reports = list(verify_directory(disk))
    for report in reports:
        findings += report.findings
        notes += report.notes
    return findings, notes, reports


def flip(disk: SimulatedDisk, path: str, offset: int, bit: int = 0x10) -> None:
    content = bytearray(disk.content(path))
    content[offset] ^= bit
    disk.replace(path, bytes(content))


def flip_both(disk: SimulatedDisk, path: str, offset: Callable[[int], int]) -> None:
    for which in (0, 1):
        flip(disk, path, offset(which))


def names(disk: SimulatedDisk, kind: str) -> list[str]:
    return [f"0/{name}" for name in disk.list("0") if name.endswith(kind)]


def test_a_directory_that_is_well_has_no_findings_open_or_closed() -> None:
    disk = SimulatedDisk()
    log = write(disk)
    for _ in range(2):
        findings, notes, reports = inspect_directory(disk)
        assert (findings, notes) == ([], [])
        assert sum(report.records for report in reports) == 300
        assert reports[-1].last_transaction_id == 299
        assert len(reports) == log.segments > 3
        log.close()


@pytest.mark.parametrize("kind", ["seg", "idx", "tix"])
def test_every_bit_flipped_in_a_closed_segment_is_found_or_harmless(kind: str) -> None:
    disk = SimulatedDisk()
    write(disk).close()
    path = names(disk, kind)[1]
    whole = disk.content(path)
    rng = Random(7)
    places = [*range(128), *(rng.randrange(128, len(whole)) for _ in range(400))]
    for offset in places:
        bit = 1 << rng.randrange(8)
        flip(disk, path, offset, bit)
        findings, _, _ = inspect_directory(disk)
        if 40 <= offset < 128 or (kind == "idx" and 4 <= offset < 12):
            assert findings == [], "reserved, and a creation time that nobody reads"
        else:
            assert findings, f"offset {offset} bit {bit}"
            assert {found.file for found in findings} == {path}, "the file that is wrong is named, no other"
        disk.replace(path, whole)
    assert inspect_directory(disk)[0] == []


def test_corruption_is_reported_with_segment_offset_and_ids_and_what_follows_is_still_verified() -> None:
    disk = SimulatedDisk()
    write(disk).close()
    segment = names(disk, "seg")[1]
    first = int(segment[2:21])
    index = struct.unpack(">70q", disk.content(segment.replace("seg", "idx"))[128 : 128 + 8 * 70])
    flip(disk, segment, index[5] + 50)
    content = bytearray(disk.content(segment))
    content[index[20] + 7 : index[24] + 9] = bytes(index[24] + 9 - index[20] - 7)
    disk.replace(segment, bytes(content))
    findings, _, reports = inspect_directory(disk)
    assert [(found.part, found.file, found.offset, found.transaction_id, found.last_transaction_id) for found in findings] == [
        ("data", segment, index[5], first + 5, first + 5),
        ("data", segment, index[20], first + 20, first + 24),
    ]
    assert sum(report.records for report in reports) == 300 - 6
    assert findings[0].reason == "record checksum does not match"


def test_corruption_below_what_was_acknowledged_in_the_last_segment_is_found_and_a_torn_tail_is_none() -> None:
    disk = SimulatedDisk()
    log = write(disk)
    segment = names(disk, "seg")[-1]
    whole = disk.content(segment)
    following = block(300, 1, 60, 1).records
    for kept in (1, 39, 50, len(following) - 1):
        disk.replace(segment, whole + following[:kept])
        findings, notes, _ = inspect_directory(disk)
        assert findings == []
        assert notes == [f"0: {kept} bytes behind the last acknowledged transaction, being written or torn by a crash"]
    disk.replace(segment, whole + bytes(4096))  # preallocated space
    assert inspect_directory(disk)[0] == []
    disk.replace(segment, whole[:-1])
    findings, _, _ = inspect_directory(disk)
    assert [(found.part, found.transaction_id) for found in findings] == [("data", 299)]
    log.close()


def test_missing_data_is_found() -> None:
    disk = SimulatedDisk()
    write(disk).close()
    first, second = names(disk, "seg")[1:3]
    following = int(second[2:21])
    disk.remove(first)
    findings, notes, _ = inspect_directory(disk)
    lost = [found for found in findings if found.part == "data"]
    assert [(found.file, found.transaction_id, found.last_transaction_id) for found in lost] == [
        ("0/0000000000000000000.seg", int(first[2:21]), following - 1)
    ]
    assert len(notes) == 2, "its index and its times are there still"
    for kind in ("seg", "idx", "tix"):
        for path in names(disk, kind):
            disk.remove(path)
    findings, _, _ = inspect_directory(disk)
    assert [(found.transaction_id, found.last_transaction_id) for found in findings] == [(0, 99)], "as the low-water mark tells"


def test_a_segment_in_another_place_or_of_another_cluster_is_found() -> None:
    disk = SimulatedDisk()
    write(disk).close()
    one, other = names(disk, "seg")[1:3]
    disk.replace(one, disk.content(other))
    assert {found.file for found in inspect_directory(disk)[0]} == {one}
    disk = SimulatedDisk()
    write(disk).close()
    content = bytearray(disk.content(one))
    content[12:28] = bytes(16)
    disk.replace(one, bytes(content))
    (found,) = inspect_directory(disk)[0]
    assert found.reason.startswith("cluster key mismatch")


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        (lambda disk: flip_both(disk, CONTROL_FILE, lambda which: mark_offset(1, which)), "both structs are invalid partition=1"),
        (lambda disk: flip(disk, CONTROL_FILE, mark_offset(1, 0) - 1), "entry 1 names partition 17"),
        (lambda disk: flip_both(disk, FENCE_FILE, lambda which: counter_offset(0, which)), "start count is unreadable"),
        (lambda disk: flip_both(disk, FENCE_FILE, lambda which: counter_offset(2, which)), "both fences are unreadable partition=1"),
        (lambda disk: flip(disk, FENCE_FILE, 20), "another cluster"),
        (lambda disk: disk.remove(FENCE_FILE), "is not there"),
    ],
    ids=range(6),
)
def test_errors_in_the_small_files_are_found(change: Callable[[SimulatedDisk], None], reported: str) -> None:
    disk = SimulatedDisk()
    write(disk).close()
    change(disk)
    findings, _, _ = inspect_directory(disk)
    assert len(findings) == 1
    assert reported in findings[0].reason


def test_one_torn_struct_is_reported_and_nothing_wrong() -> None:
    disk = SimulatedDisk()
    write(disk).close()
    flip(disk, CONTROL_FILE, mark_offset(0, 0))
    assert inspect_directory(disk)[:2] == ([], ["waltz-storage.ctl: one struct of partition 0 is torn, the other holds"])


def test_a_directory_without_storage_files_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="not a storage directory"):
        read_directory(SimulatedDisk())
    disk = SimulatedDisk()
    write(disk).close()
    disk.replace(CONTROL_FILE, disk.content(CONTROL_FILE)[:100])
    with pytest.raises(CorruptData, match="cut off"):
        read_directory(disk)


class CutWhileRead:
    """A file that the node cuts at the moment its first record is read."""

    def __init__(self, file: DiskFile, cut: Callable[[], None]) -> None:
        self._file = file
        self._cut = cut

    def read(self, offset: int, length: int) -> bytes:
        if offset >= 128:
            self._cut()
        return self._file.read(offset, length)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def test_findings_that_a_second_check_does_not_confirm_are_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The node cuts the log back after reading the index and before reading the data."""
    disk = SimulatedDisk()
    log = write(disk)
    last = names(disk, "seg")[-1]
    opened: list[str] = []
    real = disk.open

    def opening(path: str, mode: Literal["read", "write", "create"]) -> Any:
        opened.append(path)
        file = real(path, mode)
        return CutWhileRead(file, lambda: log.truncate(295) if log.tail.last_id > 295 else None) if mode == "read" and path == last else file

    monkeypatch.setattr(disk, "open", opening)
    reports = list(verify_directory(disk))
    assert opened.count(last) == 2, "there was something to look at again"
    assert [report.findings for report in reports] == [()] * len(reports)
    assert reports[-1].last_transaction_id == 295


def test_verifying_leaves_bytes_and_times_of_all_files(tmp_path: Path) -> None:
    log = write(FileSystemDisk(tmp_path))

    def state() -> dict[str, tuple[bytes, int]]:
        return {str(path): (path.read_bytes() if path.is_file() else b"", path.stat().st_mtime_ns) for path in sorted(tmp_path.rglob("*"))}

    before = state()
    disk = ReadOnlyFileSystemDisk(tmp_path)
    assert inspect_directory(disk)[0] == []
    assert len(list(dump_records(disk, "0", 0))) == segment_statistics(disk, "0", 0).transactions
    assert state() == before
    log.close()


# ---- showing -----------------------------------------------------------------------------------------------------------------------------------


def test_a_range_is_shown_as_it_is_stored() -> None:
    disk = SimulatedDisk()
    write(disk).close()
    path = names(disk, "seg")[1]
    first = int(path[2:21])
    records = list(dump_records(disk, "0", first, from_id=first + 3, to_id=first + 5))
    assert [(record.transaction_id, record.client_id, record.data, record.damage) for record in records] == [
        (n, 5 + n % 2, bytes([n % 251]) * (60 + n % 7), None) for n in range(first + 3, first + 6)
    ]
    entries = list(dump_index(disk, "0", first, from_id=first + 3, to_id=first + 5))
    assert [(entry.transaction_id, entry.offset) for entry in entries] == [(record.transaction_id, record.offset) for record in records]
    times = list(dump_times(disk, "0", first))
    assert [(entry.first_transaction_id, entry.append_time_ms) for entry in times] == [
        (n, 1000 + n) for n in range(first, first + 10 * len(times), 10)
    ]


def test_a_damaged_record_is_shown_as_such_and_the_ones_behind_it_too() -> None:
    disk = SimulatedDisk()
    write(disk).close()
    path = names(disk, "seg")[0]
    offsets = [entry.offset for entry in dump_index(disk, "0", 0)]
    flip(disk, path, offsets[4] + 40)
    flip(disk, path, offsets[6] + 28)  # a length of some hundred megabytes
    flip(disk, path, offsets[8] + 31)  # a length of some bytes more
    found = list(dump_records(disk, "0", 0))
    assert [place for place, record in enumerate(found) if record.damage is not None][:2] == [4, 6]
    assert found[5].damage is found[7].damage is None
    counted = segment_statistics(disk, "0", 0)
    assert (counted.transactions, counted.damaged) == (len(offsets) - 3, 3)
