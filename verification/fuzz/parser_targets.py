"""Fuzz targets: every parser of the storage, the core and the ports, each with what must hold for any bytes. A target gets bytes and returns, or
raises an error that is a finding: anything but the refusals in the parser's contract, or an `AssertionError` if the parsed value does not match the
bytes. The dumbest correct parser is what the clever ones are compared with.

`SEEDS` are valid inputs for each, to begin from. Inputs that once found something are in `tests/fuzz/<target>/` and are tried by every test run.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final
from uuid import UUID
from zlib import crc32

from verification.crashes.storage_model import KEY, FixedClock, silent_logs
from verification.fuzz.content_targets import CONTENT_SEEDS, CONTENT_TARGETS
from verification.fuzz.port_targets import PORT_SEEDS, PORT_TARGETS
from waltz_log.core.formats.backup_manifest import BackupManifest
from waltz_log.core.formats.block import Block
from waltz_log.core.formats.columns import assign_ids, lengths_array, offsets_array, slice_block, verify_records
from waltz_log.core.formats.control_format import ControlHeader, SessionMark, decode_counter, decode_mark, encode_counter, encode_mark, newest
from waltz_log.core.formats.java_control_format import JAVA_ENTRY_BYTES, JavaStruct, decode_java_entry, encode_java_entry
from waltz_log.core.formats.record_layout import RECORD_OVERHEAD_BYTES, SEALED_HEADER_BYTES
from waltz_log.core.formats.records import decode_record, encode_record, measure_records
from waltz_log.core.formats.sealed_headers import seal_headers, verify_sealed_headers
from waltz_log.core.formats.segment_format import SegmentHeader, decode_times, encode_time, file_name, first_id_of
from waltz_log.core.hand_over import parse_reach, parse_stranded
from waltz_log.core.locks.lock_columns import unpack_i8
from waltz_log.core.metadata import Assignment, ClusterParameters, PartitionMetadata, ReplicaAssignment, ReplicaState, ServerEntry, StorageNodeEntry
from waltz_log.core.retention import Retained
from waltz_log.core.topics.catalogue import Catalogue
from waltz_log.core.topics.subscribers import Subscriber
from waltz_log.errors import CorruptData, InvalidSetting, WaltzError, decode, encode
from waltz_log.storage.base.settings import StorageSettings
from waltz_log.storage.segments.segment_log import SegmentLog
from waltz_log.testing.disk import SimulatedDisk

__all__ = ["SEEDS", "TARGETS"]

Target = Callable[[bytes], None]


def control_header(data: bytes) -> None:
    try:
        header = ControlHeader.from_bytes(data, "fuzz")
    except CorruptData:
        return
    assert ControlHeader.from_bytes(header.to_bytes(), "fuzz") == header
    assert header.to_bytes()[:32] == data[:32]


def mark_and_counter(data: bytes) -> None:
    for raw in (data, data[:28], data[:12]):
        right = crc32(raw[:-4]).to_bytes(4, "big") == raw[-4:]
        mark, counter = decode_mark(raw), decode_counter(raw)
        assert (mark is not None) == (right and len(raw) == 28)
        assert (counter is not None) == (right and len(raw) == 12)
        assert mark is None or encode_mark(mark) == raw
        assert counter is None or encode_counter(counter) == raw
    pair = [decode_mark(data[:28]), decode_mark(data[28:56])]
    found_newest = newest(pair)
    assert (found_newest is None) == (pair == [None, None])
    assert found_newest is None or all(mark is None or mark <= found_newest[0] for mark in pair)


def java_entry(data: bytes) -> None:
    try:
        entry = decode_java_entry(data)
    except ValueError:
        assert len(data) != JAVA_ENTRY_BYTES
        return
    if None not in entry.structs:
        assert encode_java_entry(entry.partition, [each for each in entry.structs if each is not None]) == data
    assert entry.current is None or entry.current in entry.structs


def segment_header(data: bytes) -> None:
    try:
        header = SegmentHeader.from_bytes(data, "fuzz")
        assert header.to_bytes()[:40] == data[:40]
        header.expect(KEY, 0, 0, "fuzz")
    except WaltzError:
        return
    assert data[12:40] == KEY.bytes + bytes(12)


def segment_name(data: bytes) -> None:
    name = data.decode("utf-8", "replace")
    for kind in ("seg", "idx"):
        first = first_id_of(name, kind)
        assert first is None or file_name(first, kind) == name


def _plainly(buffer: bytes, offset: int) -> int | None:
    """The end of the record at the offset, by the rules of the document; None if the record is incomplete or damaged."""
    rest = buffer[offset:]
    if len(rest) < RECORD_OVERHEAD_BYTES:
        return None
    length = int.from_bytes(rest[28:32], "big", signed=True)
    if length < 0 or len(rest) < RECORD_OVERHEAD_BYTES + length:
        return None
    data, closing = rest[36 : 36 + length], rest[36 + length : 40 + length]
    if crc32(data).to_bytes(4, "big") != rest[32:36] or crc32(rest[: 36 + length]).to_bytes(4, "big") != closing:
        return None
    return offset + RECORD_OVERHEAD_BYTES + length


def record(data: bytes) -> None:
    offset = data[0] % 8 if data else 0
    end = _plainly(data, offset)
    try:
        found, after = decode_record(data, offset)
    except CorruptData:
        assert end is None
        return
    assert after == end
    again = encode_record(found.client_id, found.generation, found.partition, found.sequence, found.header, found.data, found.transaction_id)
    assert again == data[offset:after]


def measured(data: bytes) -> None:
    lengths, end = measure_records(data)
    assert end == sum(lengths) <= len(data)
    start = 0
    for length in lengths:
        assert length == RECORD_OVERHEAD_BYTES + struct.unpack_from(">i", data, start + 28)[0]
        start += length
    if len(data) - end >= RECORD_OVERHEAD_BYTES:
        (next_length,) = struct.unpack_from(">i", data, end + 28)
        assert next_length < 0 or end + RECORD_OVERHEAD_BYTES + next_length > len(data)


def block(data: bytes) -> None:
    """Lengths and records of a block as a peer sends them: the number of bytes of the lengths, then the lengths, then the records."""
    size, first = int.from_bytes(data[:2], "big"), int.from_bytes(data[2:3], "big")
    lengths, records = data[3 : 3 + size], data[3 + size :]
    try:
        verify_records(records, lengths, first_transaction_id=first or None, partition=3, where="fuzz")
    except CorruptData:
        return
    position = 0
    for place, (length,) in enumerate(struct.iter_unpack(">i", lengths)):
        assert _plainly(records, position) == position + length
        found, position = decode_record(records, position)
        assert (found.transaction_id, found.partition) == (first + place if first else 0, 3)
    assert position == len(records)
    if lengths:
        _cut_up(Block(first, lengths, records, 5))


def _cut_up(whole: Block) -> None:
    assert int(offsets_array(whole.lengths)[-1]) == len(whole.records) == int(lengths_array(whole.lengths).sum())
    sealed = seal_headers(whole.records, whole.lengths)
    assert len(sealed) == SEALED_HEADER_BYTES * whole.count
    verify_sealed_headers(sealed, first_transaction_id=whole.first_transaction_id, partition=3, where="fuzz")
    middle = (whole.first_transaction_id + whole.last_transaction_id) // 2
    parts = [slice_block(whole, whole.first_transaction_id, middle)]
    if middle < whole.last_transaction_id:
        parts.append(slice_block(whole, middle + 1, whole.last_transaction_id))
    assert b"".join(part.records for part in parts) == whole.records
    if whole.first_transaction_id == 0 and whole.count == 1:
        assigned = assign_ids(whole.records, whole.lengths, 77)
        assert decode_record(assigned)[0] == decode_record(whole.records)[0]._replace(transaction_id=77)


def times(data: bytes) -> None:
    firsts, when, end = decode_times(data)
    expected, highest = [], None
    for start in range(0, len(data) - 19, 20):
        entry = data[start : start + 20]
        first, time_ms = struct.unpack(">qq", entry[:16])
        if crc32(entry[:16]).to_bytes(4, "big") == entry[16:] and (highest is None or first > highest):
            expected.append((first, time_ms, start + 20))
            highest = first
    assert list(zip(firsts.tolist(), when.tolist(), strict=True)) == [(first, time_ms) for first, time_ms, _ in expected]
    assert end == (expected[-1][2] if expected else 0)


def column(data: bytes) -> None:
    try:
        found = unpack_i8(data)
    except ValueError:
        assert len(data) % 8
        return
    assert list(found) == [value for (value,) in struct.iter_unpack(">q", data)]


def error_detail(data: bytes) -> None:
    found = decode(data.decode("utf-8", "replace"))
    assert found is None or str(decode(encode(found))) == str(found)


def metadata(data: bytes) -> None:
    """The coordinator's values. They are written by this code alone: a foreign one is refused by whatever it lacks."""
    kinds = (ClusterParameters, ReplicaAssignment, StorageNodeEntry, ServerEntry, Assignment, PartitionMetadata, Catalogue, Subscriber, Retained)
    for parse in (*(kind.from_bytes for kind in kinds), parse_reach, parse_stranded):
        try:
            parse(data)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, WaltzError):
            continue


def manifest(data: bytes) -> None:
    try:
        found = BackupManifest.from_bytes(data)
    except CorruptData:
        return
    assert BackupManifest.from_bytes(found.to_bytes()) == found


_DIRECTORY = Path(tempfile.gettempdir())


def settings(data: bytes) -> None:
    with tempfile.NamedTemporaryFile(suffix=".yaml", dir=_DIRECTORY) as file:
        file.write(data)
        file.flush()
        try:
            found = StorageSettings.load(Path(file.name), prefix="NONE", environment={}, name="storage-0", directory="unused", coordinator="test")
        except InvalidSetting:
            return
    assert found.segment_bytes >= 4096


def directory(data: bytes) -> None:
    """A partition's files with any bytes after correct headers. The log opens, can be read and accepts an append, or reports why not."""
    disk = SimulatedDisk()
    header = SegmentHeader(5, KEY, 3, 0).to_bytes()
    cut, known_good = int.from_bytes(data[:2], "big"), int.from_bytes(data[2:3], "big", signed=True)
    disk.make_directory("3")
    for kind, content in (("seg", data[3 : 3 + cut]), ("idx", data[3 + cut :]), ("tix", data[3:])):
        file = disk.open(f"3/{file_name(0, kind)}", "create")
        file.write(0, header + content)
    with silent_logs():
        try:
            log = SegmentLog.open(disk, FixedClock(), KEY, 3, 4096, max(-1, known_good))
        except WaltzError:
            return
        assert log.tail.last_id >= max(-1, known_good)
        body = encode_record(5, 1, 3, 1, 7, b"next", log.tail.last_id + 1)
        log.append([Block(log.tail.last_id + 1, struct.pack(">i", len(body)), body, 9)])
        position, end = 0, 0
        while position <= log.tail.last_id:
            for found in log.read(log.reader(position), position, log.tail.last_id, 1 << 20):
                assert found.first_transaction_id == position
                for _ in range(found.count):
                    after = _plainly(disk.content(f"3/{file_name(0, 'seg')}")[128:], end)
                    assert after is not None
                    end = after
                position = found.last_transaction_id + 1
        log.close()


TARGETS: Final[dict[str, Target]] = (
    {
        target.__name__: target
        for target in (
            control_header,
            mark_and_counter,
            java_entry,
            segment_header,
            segment_name,
            record,
            measured,
            block,
            times,
            column,
            error_detail,
            metadata,
            manifest,
            settings,
            directory,
        )
    }
    | CONTENT_TARGETS
    | PORT_TARGETS
)


def _block(count: int, first: int) -> bytes:
    records = [encode_record(5, 1, 3, place, 7, b"x" * (place % 5), first + place if first else 0) for place in range(count)]
    lengths = struct.pack(f">{count}i", *map(len, records))
    return len(lengths).to_bytes(2, "big") + bytes([first]) + lengths + b"".join(records)


def _directory(count: int) -> bytes:
    records = [encode_record(5, 1, 3, place, 7, b"y" * place, place) for place in range(count)]
    starts = [128 + sum(map(len, records[:place])) for place in range(count)]
    data = b"".join(records)
    return len(data).to_bytes(2, "big") + b"\xff" + data + struct.pack(f">{count}q", *starts)


_RECORD = encode_record(5, 2, 3, 9, 0x102, b"hello", 1000)
_ERROR = encode(CorruptData(where="a", offset=1, transaction_id=2, reason="b"))

SEEDS: Final[dict[str, list[bytes]]] = (
    {
        "control_header": [ControlHeader(1_600_000_000_000, KEY, 4).to_bytes()],
        "mark_and_counter": [encode_mark(SessionMark(7, 41, 40)) + encode_mark(SessionMark(6, 20, 20)), encode_counter(7)],
        "java_entry": [encode_java_entry(1, [JavaStruct(SessionMark(7, 41, 40), 5, 2), JavaStruct(SessionMark(6, 20, 20), 1, 1)])],
        "segment_header": [SegmentHeader(5, KEY, 0, 0).to_bytes()],
        "segment_name": [b"0000000000000001000.seg", b"0000000000000001000.idx", b"1.seg"],
        "record": [b"\0" + _RECORD, _RECORD],
        "measured": [_RECORD * 3, _RECORD + _RECORD[:50]],
        "block": [_block(3, 9), _block(1, 0), _block(70, 1)],
        "times": [encode_time(0, 5) + encode_time(7, 9) + encode_time(9, 9)],
        "column": [struct.pack(">3q", 1, -1, 1 << 40)],
        "error_detail": [_ERROR.encode()],
        "metadata": [
            PartitionMetadata(1, 2, {"storage-0": ReplicaState(3, 4)}).to_bytes(),
            ReplicaAssignment({0: ("a", "b")}).to_bytes(),
            ClusterParameters("c", UUID(int=1), 3).to_bytes(),
            b'{"topics": [["a/b", "log", [1], true, {}, {}, 5]], "retired": [], "epochs": 1}',
            b'{"name": "a", "marks": {"1": 2}, "told": {}, "created_ms": 1, "seen_ms": 2}',
            b'{"first": 1, "proposed": 2}',
            b'[3, {"1": ["storage-0"]}]',
        ],
        "manifest": [b'{"format": 1, "checksum": "00"}'],
        "settings": [b"segment_bytes: 8192\nlisten: 127.0.0.1:0\n", b"- a\n- b\n", b"pending_bytes_max: 1e9\n"],
        "directory": [_directory(3), _directory(0), _directory(20)],
    }
    | CONTENT_SEEDS
    | PORT_SEEDS
)
