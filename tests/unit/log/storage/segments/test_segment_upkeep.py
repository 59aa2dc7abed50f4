"""What happens to whole segments while a log goes on: trimming, replacing, linking, lazy opening, repair of an index."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from random import Random
from uuid import UUID

import pytest

from waltz_log.core.formats.block import Block
from waltz_log.core.formats.records import encode_record
from waltz_log.core.formats.segment_format import FILE_HEADER_BYTES, SegmentHeader
from waltz_log.errors import CorruptData, OutOfRange, ProtocolViolation, StorageFailed, StorageFull, WaltzError
from waltz_log.filesystem import FileSystemDisk
from waltz_log.storage.segments.holdings import Holdings
from waltz_log.storage.segments.replacement import Replacement
from waltz_log.storage.segments.segment_log import SegmentLog
from waltz_log.testing.disk import Operation, SimulatedDisk

KEY = UUID(int=7)


class FixedClock:
    def now_ms(self) -> int:
        return 1_600_000_000_000


def block(first: int, data: Sequence[bytes]) -> Block:
    records = [encode_record(5, 1, 3, first + n, 7, body, first + n) for n, body in enumerate(data)]
    return Block(first, struct.pack(f">{len(records)}i", *map(len, records)), b"".join(records), 1000 + first)


def open_log(disk: SimulatedDisk | FileSystemDisk, known_good: int = -1) -> SegmentLog:
    return SegmentLog.open(disk, FixedClock(), KEY, 3, 4096, known_good)


def filled(disk: SimulatedDisk | FileSystemDisk, segments: int = 5) -> tuple[SegmentLog, dict[int, bytes]]:
    """Ten records of 400 bytes a segment, and what they are."""
    log = open_log(disk)
    records = {}
    for n in range(10 * segments):
        each = block(n, [bytes([n % 251]) * 350])
        log.append([each])
        records[n] = each.records
    assert log.closed() == [(first, first + 9) for first in range(0, 10 * (segments - 1), 10)]
    return log, records


def read(log: SegmentLog, first: int, last: int) -> bytes:
    found = b""
    while first <= last:
        reader = log.reader(first)
        while blocks := log.read(reader, first, last, 1000):
            found += b"".join(got.records for got in blocks)
            first = blocks[-1].last_transaction_id + 1
    return found


def joined(records: dict[int, bytes], first: int, last: int) -> bytes:
    return b"".join(records[n] for n in range(first, last + 1))


# ---- trimming ----------------------------------------------------------------------------------------------------------------------------------


def test_trimming_removes_whole_segments_below_the_id_and_keeps_the_last() -> None:
    disk = SimulatedDisk()
    log, records = filled(disk)
    for first_id, kept in ((0, 0), (9, 0), (10, 10), (29, 20), (49, 40)):
        log.trim(first_id)
        assert log.first_id == kept
        assert [name for name in disk.list("3") if name.endswith("seg")] == [f"{first:019d}.seg" for first in range(kept, 50, 10)]
        assert read(log, kept, 49) == joined(records, kept, 49)
        if kept:
            with pytest.raises(OutOfRange) as caught:
                log.reader(kept - 1)
            assert (caught.value.first, caught.value.last) == (kept, 49)
    log.append([block(50, [b"next"])])
    again = open_log(disk.crash(), known_good=49)
    assert (again.first_id, again.tail.last_id) == (40, 50)


def test_where_nothing_is_kept_an_empty_segment_reports_where_ids_go_on() -> None:
    disk = SimulatedDisk()
    log, _ = filled(disk)
    log.trim(50)
    assert [name for name in disk.list("3") if name.endswith("seg")] == [f"{50:019d}.seg"]
    log.trim(1 << 40)
    again = open_log(disk.crash(), known_good=49)
    assert (again.first_id, again.tail.last_id, again.segments) == (50, 49, 1)
    again.append([block(50, [b"next"])])
    assert again.tail.last_id == 50


def test_a_log_begins_again_beyond_its_end_and_readers_learn_that_theirs_is_gone() -> None:
    disk = SimulatedDisk()
    log, _ = filled(disk)
    with pytest.raises(OutOfRange):
        log.begin(50)
    log.begin(90)
    assert (log.first_id, log.tail.last_id, log.segments) == (90, 89, 1)
    with pytest.raises(OutOfRange) as caught:
        log.reader(49)
    assert (caught.value.first, caught.value.last) == (90, 89)
    log.append([block(90, [b"next"])])
    again = open_log(disk.crash(), known_good=49)
    assert (again.first_id, again.tail.last_id) == (90, 90)


def test_a_replica_reports_its_data_by_segment() -> None:
    log, records = filled(SimulatedDisk())
    facts = Holdings(log).segments()
    assert [(each.first, each.last) for each in facts] == [(first, first + 9) for first in range(0, 50, 10)]
    assert [each.bytes for each in facts] == [sum(len(records[n]) for n in range(first, first + 10)) for first in range(0, 50, 10)]
    times = [log.newest_ms(each.first, each.last) for each in facts]
    assert [each.newest_ms for each in facts] == times == sorted(times)
    log.trim(20)
    assert [each.first for each in Holdings(log).segments()] == [20, 30, 40]
    log.trim(50)
    assert [(each.first, each.last, each.bytes) for each in Holdings(log).segments()] == [(50, 49, 0)]


def test_a_segment_that_lost_its_times_counts_as_young_as_the_one_that_follows() -> None:
    disk = SimulatedDisk()
    log, _ = filled(disk)
    known = Holdings(log).segments()
    log.close()
    disk.remove(f"3/{10:019d}.tix")
    again = Holdings(open_log(disk, known_good=49)).segments()
    assert again[0] == known[0]
    assert known[1].newest_ms < again[1].newest_ms <= known[2].newest_ms


def test_a_crash_at_any_step_of_trimming_leaves_the_newer_part_whole() -> None:
    for seed in range(40):
        random = Random(seed)
        disk = SimulatedDisk()
        log, records = filled(disk)
        stop = len(disk.operations) + random.randrange(1, 14)

        def before(operation: Operation, disk: SimulatedDisk = disk, stop: int = stop) -> None:
            if len(disk.operations) >= stop:
                raise OSError(5, "crash", operation.path)

        disk.before = before
        with pytest.raises(StorageFailed):
            log.trim(40)
        after = disk.crash(random)
        again = open_log(after, known_good=49)
        assert again.first_id in (0, 10, 20, 30, 40)
        assert read(again, again.first_id, 49) == joined(records, again.first_id, 49)
        again.trim(40)
        assert again.first_id == 40


def test_a_reader_goes_on_in_a_segment_that_is_trimmed_while_it_reads() -> None:
    log, records = filled(SimulatedDisk())
    reader = log.reader(0)
    (first,) = log.read(reader, 0, 0, 1000)
    log.trim(10)
    assert first.records == records[0]
    with pytest.raises(OSError):
        log.read(reader, 1, 1, 1000)
    assert log.first_id == 10


# ---- replacing ---------------------------------------------------------------------------------------------------------------------------------


def spoiled(disk: SimulatedDisk, name: str, place: int) -> None:
    content = bytearray(disk.content(name))
    content[place] ^= 1
    disk.replace(name, bytes(content))


def copied(log: SegmentLog, records: dict[int, bytes], first: int) -> Replacement:
    replacement = Replacement(log, first)
    for n in range(first, first + 10, 2):
        data = [records[n][36:-4], records[n + 1][36:-4]]
        replacement.add([block(n, data)])
    return replacement


def test_a_corrupt_segment_is_replaced_beside_readers_and_appends() -> None:
    disk = SimulatedDisk()
    log, records = filled(disk)
    reader = log.reader(10)
    log.read(reader, 10, 10, 1000)
    header = disk.content("3/0000000000000000010.seg")[:FILE_HEADER_BYTES]
    spoiled(disk, "3/0000000000000000010.seg", FILE_HEADER_BYTES + 2000)
    with pytest.raises(CorruptData):
        read(log, 10, 19)
    replacement = copied(log, records, 10)
    log.append([block(50, [b"meanwhile"])])
    replacement.seal()
    with pytest.raises(CorruptData):
        read(log, 10, 19)
    replacement.put_in_place()
    assert read(log, 0, 49) == joined(records, 0, 49)
    assert b"".join(got.records for got in log.read(reader, 11, 19, 1 << 20)) == joined(records, 11, 19)
    assert disk.content("3/0000000000000000010.seg") == header + joined(records, 10, 19)
    assert not [name for name in disk.list("3") if name.endswith("new")]
    again = open_log(disk.crash())
    assert again.suspects == []
    assert read(again, 0, 49) == joined(records, 0, 49)


def test_a_crash_at_any_step_of_replacing_leaves_the_old_segment_or_the_new() -> None:
    _, records = filled(SimulatedDisk())
    seen = set()
    for seed in range(80):
        random = Random(seed)
        disk = SimulatedDisk()
        log, _ = filled(disk)
        spoiled(disk, "3/0000000000000000010.seg", FILE_HEADER_BYTES + 2000)
        stop = len(disk.operations) + seed // 2

        def before(operation: Operation, disk: SimulatedDisk = disk, stop: int = stop) -> None:
            if len(disk.operations) >= stop:
                raise OSError(5, "crash", operation.path)

        disk.before = before
        with pytest.raises((StorageFailed, OSError)):
            replacement = copied(log, records, 10)
            replacement.seal()
            replacement.put_in_place()
            raise OSError("nothing left to crash at")
        again = open_log(disk.crash(random))
        assert read(again, 0, 9) + read(again, 20, 49) == joined(records, 0, 9) + joined(records, 20, 49)
        try:
            assert read(again, 10, 19) == joined(records, 10, 19)
            seen.add("new")
        except CorruptData:
            seen.add("old")
        again.append([block(50, [b"next"])])
        assert not [name for name in again.files.disk.list("3") if name.endswith("new")]
    assert seen == {"old", "new"}


def test_a_copy_that_is_wrong_or_not_whole_replaces_nothing() -> None:
    disk = SimulatedDisk()
    log, records = filled(disk)
    replacement = Replacement(log, 10)
    good = block(10, [records[10][36:-4]])
    corrupted = Block(10, good.lengths, good.records[:-1] + bytes([good.records[-1] ^ 1]), 0)
    for bad, error in ((corrupted, CorruptData), (block(11, [b"a"]), ProtocolViolation), (block(10, [b"a"] * 11), ProtocolViolation)):
        with pytest.raises(error):
            replacement.add([bad])
    replacement.add([good])
    with pytest.raises(ProtocolViolation, match="not complete"):
        replacement.seal()
    replacement.abandon()
    assert not [name for name in disk.list("3") if name.endswith("new")]
    assert read(log, 0, 49) == joined(records, 0, 49)
    for first in (40, 5):
        with pytest.raises(OutOfRange):
            Replacement(log, first)


def test_a_copy_comes_too_late_for_a_segment_that_is_gone() -> None:
    disk = SimulatedDisk()
    log, records = filled(disk)
    replacement = copied(log, records, 10)
    replacement.seal()
    log.truncate(14)
    with pytest.raises(OutOfRange):
        replacement.put_in_place()
    assert read(log, 0, 14) == joined(records, 0, 14)
    assert not [name for name in disk.list("3") if name.endswith("new")]


def test_a_full_or_failing_disk_ends_a_copy_and_not_the_log() -> None:
    for number, error in ((28, StorageFull), (5, StorageFailed)):
        disk = SimulatedDisk()
        log, records = filled(disk)
        replacement = copied(log, records, 10)

        def before(operation: Operation, number: int = number) -> None:
            if operation.path.endswith("new") and operation.kind == "sync":
                raise OSError(number, "no", operation.path)

        disk.before = before
        with pytest.raises(error):
            replacement.seal()
        disk.before = lambda operation: None
        assert log.failed is None
        log.append([block(50, [b"next"])])
        assert not [name for name in disk.list("3") if name.endswith("new")]


# ---- other names ------------------------------------------------------------------------------------------------------------------------------


def test_a_linked_backup_is_unchanged_when_truncation_reopens_a_closed_segment(tmp_path: Path) -> None:
    for disk in (SimulatedDisk(), FileSystemDisk(tmp_path)):
        log, records = filled(disk)
        disk.make_directory("kept")
        names = [name for name in disk.list("3") if not name.startswith("0000000000000000040")]
        for name in names:
            disk.link(f"3/{name}", f"kept/{name}")
        before = {name: disk.open(f"kept/{name}", "read").read(0, 1 << 20) for name in names}
        log.truncate(14)
        log.append([block(15, [b"another"])])
        log.close()
        assert {name: disk.open(f"kept/{name}", "read").read(0, 1 << 20) for name in names} == before
        again = open_log(disk)
        assert read(again, 0, 15) == joined(records, 0, 14) + block(15, [b"another"]).records
        again.close()


# ---- lazy opening ------------------------------------------------------------------------------------------------------------------------------


def test_opening_reads_nothing_of_closed_segments_and_reading_one_opens_it() -> None:
    disk = SimulatedDisk()
    log, records = filled(disk, segments=30)
    log.close()
    for first in range(0, 290, 10):
        for kind in ("seg", "idx", "tix"):
            name = f"3/{first:019d}.{kind}"
            disk.replace(name, bytes(len(disk.content(name))))
    again = open_log(disk)
    assert again.suspects == []
    assert read(again, 290, 299) == joined(records, 290, 299)
    with pytest.raises(WaltzError):
        again.reader(100)


def test_a_wrong_index_of_a_closed_segment_is_made_again_when_it_is_read() -> None:
    disk = SimulatedDisk()
    log, records = filled(disk)
    name = "3/0000000000000000010.idx"
    good = disk.content(name)
    for wrong in (good[:-3], good + b"more", b"", good[:150] + b"\x01" + good[151:], good[:128] + bytes(80), good[:136] + good[128:200] + good[208:]):
        log.close()
        disk.replace(name, wrong)
        log = open_log(disk)
        assert log.suspects == ([10] if len(wrong) != len(good) else [])
        assert read(log, 0, 49) == joined(records, 0, 49)
        assert log.suspects == []
        assert disk.content(name) == good
    disk.remove(name)
    log.close()
    assert read(open_log(disk), 10, 19) == joined(records, 10, 19)


def test_corruption_in_a_closed_segment_is_reported_by_its_place_and_the_rest_is_served() -> None:
    disk = SimulatedDisk()
    log, records = filled(disk)
    spoiled(disk, "3/0000000000000000010.seg", FILE_HEADER_BYTES + 390 * 4 + 100)
    for _ in range(2):
        with pytest.raises(CorruptData) as caught:
            read(log, 14, 14)
        assert (caught.value.where, caught.value.offset, caught.value.transaction_id) == (
            "3/0000000000000000010.seg",
            FILE_HEADER_BYTES + 390 * 4,
            14,
        )
        assert read(log, 10, 13) + read(log, 15, 49) == joined(records, 10, 13) + joined(records, 15, 49)


def test_opening_needs_no_memory_for_what_the_log_holds(tmp_path: Path) -> None:
    disk = FileSystemDisk(tmp_path)
    disk.make_directory("3")
    count = 200_000
    header = SegmentHeader(1, KEY, 3, 0).to_bytes()
    contents = {
        "seg": header + b"".join(encode_record(0, 0, 3, 0, 0, b"", n) for n in range(count)),
        "idx": header + b"".join((FILE_HEADER_BYTES + 40 * n).to_bytes(8, "big") for n in range(count)),
        "tix": header,
    }
    for kind, content in contents.items():
        disk.open(f"3/{0:019d}.{kind}", "create").write(0, content)
    SegmentLog.open(disk, FixedClock(), KEY, 3, 1 << 30, -1).close()  # makes the tables of the checksums, which are there once
    tracemalloc.start()
    try:
        log = SegmentLog.open(disk, FixedClock(), KEY, 3, 1 << 30, -1)
        opened, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert log.tail.last_id == count - 1
    assert opened < 200_000
    assert most < 8_000_000, "64 Ki entries of an index, a megabyte of data, and what verifies them"
