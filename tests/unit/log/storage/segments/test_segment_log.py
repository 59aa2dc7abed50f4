"""Opening, rolling, truncating and reading a partition's files, without a node around them."""

from __future__ import annotations

import errno
import hashlib
import shutil
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID
from zlib import crc32

import pytest
from structlog.testing import capture_logs

from waltz_log.core.formats.block import Block
from waltz_log.core.formats.records import decode_record, encode_record
from waltz_log.core.formats.segment_format import FILE_HEADER_BYTES
from waltz_log.errors import ClusterKeyMismatch, CorruptData, OutOfRange, StorageFailed, StorageFull, TransactionTooLarge
from waltz_log.filesystem import FileSystemDisk
from waltz_log.storage.control.control import ControlFiles
from waltz_log.storage.segments.open_files import OpenFiles
from waltz_log.storage.segments.scan import RECORD_BYTES_MAX
from waltz_log.storage.segments.segment_log import SegmentLog
from waltz_log.testing.disk import Operation, SimulatedDisk

KEY = UUID("00112233-4455-6677-8899-aabbccddeeff")
SEG = "3/0000000000000000000.seg"
IDX = "3/0000000000000000000.idx"
TIX = "3/0000000000000000000.tix"


class FixedClock:
    def now_ms(self) -> int:
        return 1_600_000_000_000


def block(first: int, data: Sequence[bytes], time_ms: int = 1000) -> Block:
    records = [encode_record(5, 1, 3, first + n, 7, body, first + n) for n, body in enumerate(data)]
    return Block(first, struct.pack(f">{len(records)}i", *map(len, records)), b"".join(records), time_ms)


def open_log(disk: SimulatedDisk | FileSystemDisk, known_good: int = -1, segment_bytes: int = 1 << 20, **settings: Any) -> SegmentLog:
    return SegmentLog.open(disk, FixedClock(), KEY, 3, segment_bytes, known_good, **settings)


def read_all(log: SegmentLog) -> bytes:
    found = b""
    position = log.first_id
    while position <= log.tail.last_id:
        reader = log.reader(position)
        while blocks := log.read(reader, position, log.tail.last_id, 1 << 20):
            for got in blocks:
                assert got.first_transaction_id == position
                found += got.records
                position = got.last_transaction_id + 1
    return found


def test_files_have_the_documented_bytes() -> None:
    disk = SimulatedDisk()
    log = open_log(disk)
    log.append([block(0, [b"hello", b""], time_ms=5), block(2, [b"x"], time_ms=6)])
    header = bytes.fromhex("0000000000000174876e800000112233445566778899aabbccddeeff000000030000000000000000") + bytes(88)
    records = encode_record(5, 1, 3, 0, 7, b"hello", 0) + encode_record(5, 1, 3, 1, 7, b"", 1) + encode_record(5, 1, 3, 2, 7, b"x", 2)
    assert disk.content(SEG) == header + records
    assert disk.content(IDX) == header + struct.pack(">3q", 128, 173, 213)
    assert disk.content(TIX)[:128] == header
    entries = bytes.fromhex("00000000000000000000000000000005") + bytes.fromhex("00000000000000020000000000000006")
    checksums = [struct.pack(">I", crc32(entries[:16])), struct.pack(">I", crc32(entries[16:]))]
    assert disk.content(TIX)[128:] == entries[:16] + checksums[0] + entries[16:] + checksums[1]


def test_a_log_comes_back_as_it_was() -> None:
    disk = SimulatedDisk()
    log = open_log(disk, segment_bytes=4096)
    blocks = [block(10 * n, [b"x" * n] * 10, n) for n in range(40)]
    for each in blocks:
        log.append([each])
    expected = b"".join(each.records for each in blocks)
    assert read_all(log) == expected
    log.close()
    again = open_log(disk, known_good=399, segment_bytes=4096)
    assert read_all(again) == expected
    assert again.segments == log.segments > 3
    assert again.tail == log.tail


# ---- torn tails and corruption -----------------------------------------------------------------------------------------------------------------


def test_a_tail_torn_at_every_byte_is_dropped_with_a_logged_line() -> None:
    whole = [block(0, [b"abc"] * 3), block(3, [b"last record"])]
    for kept in range(len(whole[1].records) + 1):
        disk = SimulatedDisk()
        log = open_log(disk)
        log.append(whole[:1])
        content = disk.content(SEG)
        disk.replace(SEG, content + whole[1].records[:kept])  # written, but neither synced nor indexed
        with capture_logs() as logs:
            again = open_log(disk.crash())
        complete = kept == len(whole[1].records)
        assert again.tail.last_id == (3 if complete else 2)
        # The first bytes of an id are zeros, as unwritten space is.
        reported = [] if complete or kept < 8 else ["dropping a torn tail"]
        assert [entry["event"] for entry in logs if "torn" in entry["event"]] == reported
        following = block(again.tail.last_id + 1, [b"next"])
        again.append([following])
        assert read_all(again).endswith(following.records)


def test_records_found_in_the_page_cache_at_opening_are_synced_before_they_are_reported() -> None:
    disk = SimulatedDisk()
    open_log(disk).append([block(0, [b"abc"])])
    written = block(1, [b"never synced by the process that wrote it"])
    disk.open(SEG, "write").write(len(disk.content(SEG)), written.records)
    killed = disk.crash(keep=True)
    assert open_log(killed).tail.last_id == 1
    assert open_log(killed.crash()).tail.last_id == 1


def test_a_tail_of_garbage_is_dropped() -> None:
    for garbage in (bytes(500), b"\xff" * 500, encode_record(1, 1, 3, 1, 1, b"x", 9), encode_record(1, 1, 9, 1, 1, b"x", 3)):
        disk = SimulatedDisk()
        open_log(disk).append([block(0, [b"abc"] * 3)])
        disk.replace(SEG, disk.content(SEG) + garbage)
        assert open_log(disk).tail.last_id == 2


def test_every_acknowledged_byte_that_is_missing_or_wrong_is_corruption_and_nothing_is_cut() -> None:
    disk = SimulatedDisk()
    open_log(disk).append([block(0, [b"abc", b"", b"defg"])])
    content = disk.content(SEG)
    damaged = [content[:size] for size in range(FILE_HEADER_BYTES, len(content))]
    damaged += [content[:n] + bytes([content[n] ^ 16]) + content[n + 1 :] for n in range(FILE_HEADER_BYTES, len(content))]
    for bad in damaged:
        disk.replace(SEG, bad)
        with pytest.raises(CorruptData) as caught:
            open_log(disk)
        assert caught.value.where == SEG
        assert disk.content(SEG) == bad
    disk.replace(SEG, content)
    assert open_log(disk).tail.last_id == 2


def test_below_the_local_low_water_mark_a_missing_record_is_corruption_even_without_an_index() -> None:
    disk = SimulatedDisk()
    open_log(disk).append([block(0, [b"abc"] * 5)])
    disk.remove(IDX)
    disk.replace(SEG, disk.content(SEG)[:-1])
    with pytest.raises(CorruptData) as caught:
        open_log(disk, known_good=4)
    assert caught.value.transaction_id == 4
    disk.remove(IDX)  # the first try made it again, up to where it got
    assert open_log(disk, known_good=3).tail.last_id == 3


def test_a_log_that_is_gone_is_corruption_where_there_was_one() -> None:
    with pytest.raises(CorruptData, match="missing"):
        open_log(SimulatedDisk(), known_good=0)


def test_a_segment_of_another_cluster_is_refused() -> None:
    disk = SimulatedDisk()
    open_log(disk)
    with pytest.raises(ClusterKeyMismatch):
        SegmentLog.open(disk, FixedClock(), UUID(int=1), 3, 4096, -1)


# ---- index and times ---------------------------------------------------------------------------------------------------------------------------


def test_the_index_is_rebuilt_from_the_data_after_any_entry() -> None:
    disk = SimulatedDisk()
    log = open_log(disk)
    for first in range(0, 2600, 100):
        log.append([block(first, [b"x"] * 100)])
    index = disk.content(IDX)
    expected = read_all(log)
    for size in (0, 5, 128, 136, 128 + 8 * 999, 128 + 8 * 1000, 128 + 8 * 1001, 128 + 8 * 1500 + 3, len(index)):
        disk.replace(IDX, index[:size])
        again = open_log(disk)
        assert again.tail.last_id == 2599
        assert disk.content(IDX)[128:] == index[128:]
        assert read_all(again) == expected
        again.close()
    disk.remove(IDX)
    assert read_all(open_log(disk)) == expected
    assert disk.content(IDX)[128:] == index[128:]


def test_opening_reads_from_the_last_checkpoint_only() -> None:
    disk = SimulatedDisk()
    log = open_log(disk)
    for first in range(0, 2600, 100):
        log.append([block(first, [b"x"] * 100)])
    log.close()
    content = bytearray(disk.content(SEG))
    content[128 + 41 * 1999] ^= 1
    disk.replace(SEG, bytes(content))
    assert open_log(disk).tail.last_id == 2599, "what lies before the checkpoint is left to reads and scrubbing"
    content[128 + 41 * 2000] ^= 1
    disk.replace(SEG, bytes(content))
    with pytest.raises(CorruptData):
        open_log(disk)


def test_a_checkpoint_that_points_astray_costs_a_scan_of_the_segment_and_no_data() -> None:
    disk = SimulatedDisk()
    log = open_log(disk)
    for first in range(0, 1100, 100):
        log.append([block(first, [b"x"] * 100)])
    expected = read_all(log)
    log.close()
    index = bytearray(disk.content(IDX))
    index[128 + 8 * 1000 + 7] ^= 1
    disk.replace(IDX, bytes(index))
    again = open_log(disk)
    assert read_all(again) == expected
    index[128 + 8 * 1000 + 7] ^= 1
    assert disk.content(IDX) == bytes(index)


def test_the_index_of_a_closed_segment_is_made_again_where_its_size_is_wrong() -> None:
    disk = SimulatedDisk()
    log = open_log(disk, segment_bytes=4096)
    for first in range(0, 300, 10):
        log.append([block(first, [b"x" * 50] * 10)])
    expected = read_all(log)
    log.close()
    index = disk.content(IDX)
    for size in (0, 128, 200, len(index) - 8):
        disk.replace(IDX, index[:size])
        assert read_all(open_log(disk, segment_bytes=4096)) == expected
        assert disk.content(IDX)[128:] == index[128:]
    disk.remove(IDX)
    assert read_all(open_log(disk, segment_bytes=4096)) == expected
    disk.remove(IDX)
    disk.replace(SEG, disk.content(SEG)[:-1])
    damaged = open_log(disk, segment_bytes=4096)
    assert damaged.suspects == [0]
    for _ in range(2):
        with pytest.raises(CorruptData) as caught:
            damaged.reader(0)
        assert (caught.value.where, caught.value.transaction_id) == (SEG, damaged.closed()[0][1])


def test_lost_and_torn_times_fall_back_to_the_time_before_then_to_the_creation_of_the_segment() -> None:
    disk = SimulatedDisk()
    log = open_log(disk)
    for n in range(3):
        log.append([block(n, [b"x"], time_ms=100 + n)])
    times = disk.content(TIX)

    def reported() -> list[int]:
        again = open_log(disk)
        found = []
        for n in range(3):
            reader = again.reader(n)
            (got,) = again.read(reader, n, n, 1000)
            found.append(got.append_time_ms)
        again.close()
        return found

    assert reported() == [100, 101, 102]
    created = 1_600_000_000_000
    for size, expected in ((187, [100, 101, 101]), (148, [100, 100, 100]), (147, [created] * 3), (60, [created] * 3), (0, [created] * 3)):
        disk.replace(TIX, times[:size])
        assert reported() == expected
    disk.remove(TIX)
    assert reported() == [created] * 3
    disk.replace(TIX, times[:150] + b"\xff" + times[151:])
    assert reported() == [100, 100, 102]


def test_times_of_what_was_cut_away_are_forgotten() -> None:
    disk = SimulatedDisk()
    log = open_log(disk)
    for n in range(3):
        log.append([block(n, [b"x"], time_ms=100 + n)])
    log.truncate(0)
    log.append([block(1, [b"y"], time_ms=200)])
    log.close()
    again = open_log(disk)
    reader = again.reader(1)
    (got,) = again.read(reader, 1, 1, 1000)
    assert got.append_time_ms == 200
    assert len(disk.content(TIX)) == 128 + 2 * 20


# ---- rolling -----------------------------------------------------------------------------------------------------------------------------------


def test_leftovers_of_a_roll_are_removed_and_do_not_stop_the_next() -> None:
    disk = SimulatedDisk()
    log = open_log(disk, segment_bytes=4096)
    log.append([block(0, [b"x" * 3900])])
    log.close()
    for name in ("0000000000000000001.idx", "0000000000000000001.tix", "0000000000000000001.seg.new", "0000000000000000007.idx.new"):
        disk.open(f"3/{name}", "create").write(0, b"left")
    again = open_log(disk, segment_bytes=4096)
    assert disk.list("3") == [f"0000000000000000000.{kind}" for kind in ("idx", "seg", "tix")]
    again.append([block(1, [b"y" * 3900])])
    assert again.segments == 2
    assert again.tail.last_id == 1


def test_a_block_larger_than_a_segment_is_divided_between_records() -> None:
    disk = SimulatedDisk()
    log = open_log(disk, segment_bytes=4096)
    sent = [block(0, [b"x" * 3000] * 3, 7), block(3, [b"y"] * 500, 8), block(503, [b"z"], 9)]
    log.append(sent)
    sizes = [len(disk.content(f"3/{first:019d}.seg")) for first, _ in log.closed()]
    assert len(sizes) > 7
    assert max(sizes) <= 4096
    assert read_all(log) == b"".join(each.records for each in sent)


def test_a_record_above_every_limit_is_refused_before_anything_is_written() -> None:
    disk = SimulatedDisk()
    log = open_log(disk, segment_bytes=4096)
    done = len(disk.operations)
    with pytest.raises(TransactionTooLarge) as caught:
        log.append([block(0, [b"a"]), block(1, [b"x" * (RECORD_BYTES_MAX - 39)])])
    assert (caught.value.size, caught.value.limit) == (RECORD_BYTES_MAX + 1, RECORD_BYTES_MAX)
    assert len(disk.operations) == done


@pytest.mark.parametrize("step", [0, 1000, 1 << 20])
@pytest.mark.parametrize("over", [-1, 0, 1, 100_000])
def test_a_record_that_is_larger_than_a_segment_has_one_of_its_own(over: int, step: int) -> None:
    """A replica that refused what the owner ordered would stop the partition for every client."""
    disk = SimulatedDisk()
    log = open_log(disk, segment_bytes=4096, preallocate_bytes=step)
    size = 4096 - FILE_HEADER_BYTES - 40 + over
    sent = [block(0, [b"a"]), block(1, [b"x" * size]), block(2, [b"b", b"y" * size, b"c", b"d"]), block(6, [b"e"])]
    log.append(sent)
    assert [first for first, _ in log.closed()] == [0, 1, 2, 3]
    assert log.tail.last_id == 6
    assert read_all(log) == b"".join(each.records for each in sent)
    again = open_log(disk.crash(), segment_bytes=4096, known_good=6, preallocate_bytes=step)
    assert read_all(again) == b"".join(each.records for each in sent)


def test_a_new_segment_has_its_name_on_the_medium_before_a_record_is_in_it() -> None:
    disk = SimulatedDisk()
    log = open_log(disk, segment_bytes=4096)
    log.append([block(0, [b"x" * 3900])])
    seen: list[Operation] = []
    disk.before = seen.append
    log.append([block(1, [b"y"])])
    order = [(operation.kind, operation.path) for operation in seen]
    renamed = order.index(("rename", "3/0000000000000000001.seg"))
    synced = order.index(("sync_directory", "3"))
    written = order.index(("write", "3/0000000000000000001.seg"))
    assert order.index(("sync", IDX)) < renamed < synced < written


def test_reading_goes_on_while_the_segment_is_closed_under_it() -> None:
    disk = SimulatedDisk()
    log = open_log(disk, segment_bytes=4096)
    log.append([block(0, [b"x" * 1000])])
    reader = log.reader(0)
    log.append([block(1, [b"y" * 1000]), block(2, [b"z" * 3000])])
    assert log.segments == 2
    (got,) = log.read(reader, 0, 2, 1 << 20)
    assert got.last_transaction_id == 1
    assert log.read(reader, 2, 2, 1 << 20) == []
    with pytest.raises(OutOfRange):
        log.reader(3)


# ---- failures ----------------------------------------------------------------------------------------------------------------------------------


def test_after_any_failed_operation_of_a_roll_or_append_nothing_is_done_any_more() -> None:
    count = None
    position = 0
    while count is None or position < count:
        disk = SimulatedDisk()
        log = open_log(disk, segment_bytes=4096)
        log.append([block(0, [b"x" * 3900])])
        start = len(disk.operations)

        def before(operation: Operation, disk: SimulatedDisk = disk, fails: int = start + position) -> None:
            if len(disk.operations) == fails + 1:
                raise OSError(5, "Input/output error", operation.path)

        if count is None:
            log.append([block(1, [b"y"])])
            count = len(disk.operations) - start
            continue
        disk.before = before
        with pytest.raises(StorageFailed):
            log.append([block(1, [b"y"])])
        done = len(disk.operations)
        assert done == start + position + 1
        for work in (lambda log=log: log.append([block(1, [b"y"])]), lambda log=log: log.truncate(-1), log.checkpoint):
            with pytest.raises(StorageFailed):
                work()
        log.close()
        assert len(disk.operations) == done
        disk.before = lambda operation: None
        again = open_log(disk.crash(keep=True), segment_bytes=4096)
        assert again.tail.last_id in (0, 1)
        again.append([block(again.tail.last_id + 1, [b"z"])])
        position += 1
    assert count > 10


def test_bytes_of_a_failed_sync_are_never_synced_later() -> None:
    disk = SimulatedDisk()
    files = OpenFiles(disk, 4)
    log, other = (SegmentLog.open(disk, FixedClock(), KEY, partition, 4096, -1, files=files) for partition in (3, 4))
    log.append([block(0, [b"a"])])

    def before(operation: Operation) -> None:
        if operation.kind == "sync" and operation.path == SEG:
            raise OSError(5, "Input/output error", operation.path)

    disk.before = before
    with pytest.raises(StorageFailed):
        log.append([block(1, [b"b"])])
    disk.before = lambda operation: None
    done = len(disk.operations)
    # Others need the places of its files, readers go on, and it is closed.
    other.append([encoded(4, n) for n in range(3)])
    other.append([encoded(4, n) for n in range(3, 6)])
    for _ in range(3):
        other.read(other.reader(0), 0, 5, 1000)
        log.read(log.reader(0), 0, 0, 1000)
    log.close()
    assert not [operation for operation in disk.operations[done:] if operation.path.startswith("3/")]


def encoded(partition: int, transaction_id: int) -> Block:
    record = encode_record(1, 1, partition, 0, 0, b"x", transaction_id)
    return Block(transaction_id, struct.pack(">i", len(record)), record, 7)


def test_a_disk_that_is_full_at_any_operation_of_a_roll_or_append_costs_that_append_alone() -> None:
    # But for the sync of what is to last: what a failed one left on the medium is unknown, whatever its reason.
    outcomes: dict[str, set[str]] = {}
    position, count = 0, 1
    while position < count:
        disk = SimulatedDisk()
        log = open_log(disk, segment_bytes=4096)
        log.append([block(0, [b"x" * 3000])])
        start = len(disk.operations)

        def before(operation: Operation, disk: SimulatedDisk = disk, fails: int = start + position) -> None:
            if len(disk.operations) == fails + 1:
                raise OSError(errno.ENOSPC, "no space left on device", operation.path)

        disk.before = before
        sent = [block(1, [b"w"]), block(2, [b"y" * 2000])]
        try:
            log.append(sent)
            count = position  # nothing failed: all operations were tried
        except StorageFull:
            assert log.failed is None
            assert log.tail.last_id in (0, 1)
            outcomes.setdefault("full", set()).add(disk.operations[start + position].kind)
            again = sent[log.tail.last_id :]
            log.append(again)
            assert read_all(log) == block(0, [b"x" * 3000]).records + sent[0].records + sent[1].records
            assert open_log(disk.crash(), segment_bytes=4096).tail.last_id == 2
            count = position + 2
        except StorageFailed:
            outcomes.setdefault("failed", set()).add(disk.operations[start + position].kind)
            count = position + 2
        position += 1
    assert outcomes == {"full": {"create", "write", "sync", "rename"}, "failed": {"sync", "sync_directory"}}


def test_a_record_that_was_written_before_the_disk_was_full_does_not_come_back_behind_another() -> None:
    disk = SimulatedDisk()
    log = open_log(disk)
    log.append([block(0, [b"x"])])

    def before(operation: Operation) -> None:
        if operation == Operation("write", TIX):
            raise OSError(errno.ENOSPC, "no space left on device", operation.path)

    disk.before = before
    with pytest.raises(StorageFull):
        log.append([block(1, [b"refused", b"refused too"])])
    disk.before = lambda operation: None
    log.append([block(1, [b"another"])])
    assert open_log(disk.crash(keep=True)).tail.last_id == 1


@pytest.mark.parametrize("preallocate_bytes", [0, 700])
def test_whatever_part_of_an_append_found_room_is_cut_away_and_the_next_append_goes_on(preallocate_bytes: int) -> None:
    sent = [block(1, [b"w" * 20]), block(2, [b"y" * 1500])]
    full = 0
    for room in range(0, 2600, 13):
        disk = SimulatedDisk()
        log = open_log(disk, segment_bytes=4096, preallocate_bytes=preallocate_bytes)
        log.append([block(0, [b"x" * 2500])])
        disk.total -= disk.free_bytes() - room
        try:
            log.append(sent)
        except StorageFull:
            full += 1
            last = log.tail.last_id
            assert read_all(log) == b"".join(each.records for each in [block(0, [b"x" * 2500]), *sent][: last + 1])
            disk.total = 1 << 40
            log.append(sent[last:])
        assert open_log(disk.crash(), segment_bytes=4096).tail.last_id == 2
    assert 10 < full < 200


# ---- the original's files ----------------------------------------------------------------------------------------------------------------------

JAVA = Path(__file__).parent / "java_waltz"
"""The beginning of the last segment of a directory that Java Waltz 0.13.2 wrote, and its control file."""


def test_a_segment_of_java_waltz_is_served_as_it_is_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    for kind in ("seg", "idx"):
        shutil.copy(JAVA / f"0000000000000000999.{kind}", tmp_path / "0")
    disk = FileSystemDisk(tmp_path)
    log = SegmentLog.open(disk, FixedClock(), UUID("a183fca3-ed08-410a-ad31-ca0dd3380748"), 0, 1 << 20, 1028)
    assert (log.first_id, log.tail.last_id) == (999, 1028)
    records = read_all(log)
    offset, transaction_id = 0, 999
    while offset < len(records):
        record, offset = decode_record(records, offset)
        assert record.transaction_id == transaction_id
        assert record.data.startswith(f"p0-n{transaction_id}:".encode())
        transaction_id += 1
    assert transaction_id == 1029
    log.close()
    for kind in ("seg", "idx"):
        name = f"0000000000000000999.{kind}"
        assert hashlib.sha256((tmp_path / "0" / name).read_bytes()).digest() == hashlib.sha256((JAVA / name).read_bytes()).digest()


def test_a_directory_of_java_waltz_is_recognised_and_must_be_migrated(tmp_path: Path) -> None:
    shutil.copy(JAVA / "waltz-storage.ctl", tmp_path)
    with pytest.raises(CorruptData, match="migrated"):
        ControlFiles.open(FileSystemDisk(tmp_path))
