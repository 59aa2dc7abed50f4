"""Whatever bytes a sender chooses, every reader of records concludes what a loop over them with the codec of one record concludes."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_waltz import ranges
from pyspark_waltz.tasks import LogRange
from verification.crashes.storage_model import KEY, FixedClock
from verification.fuzz.canceling_checksums import canceling, frame_of, is_sound, shift_bytes, with_errors
from waltz_log.client.feed import decode_feed as feed_decoding
from waltz_log.console.reading import transaction_reader
from waltz_log.core.formats import block_checksum, columns
from waltz_log.core.formats.block import Block
from waltz_log.core.formats.columns import CLOSINGS_MIN, COPIED_BYTES, FEW_DIFFERENT, FEW_RECORDS, verify_records
from waltz_log.core.formats.control_format import SessionMark
from waltz_log.core.formats.crc import crc32
from waltz_log.core.formats.record_layout import HEADER_BYTES
from waltz_log.core.formats.segment_format import FILE_HEADER_BYTES
from waltz_log.errors import ConnectionLost, CorruptData, ProtocolViolation, Unavailable, WaltzError
from waltz_log.server.ordering import sequencer
from waltz_log.server.partition import append_task
from waltz_log.server.replication import received_blocks
from waltz_log.storage.control.control import ControlFiles
from waltz_log.storage.integrity import peers
from waltz_log.storage.integrity.verify_directory import verify_directory
from waltz_log.storage.offline.dump import dump_records
from waltz_log.storage.offline.segment_statistics import segment_statistics
from waltz_log.storage.segments import reader, replacement, scan
from waltz_log.storage.segments.replacement import Replacement
from waltz_log.storage.segments.segment_log import SegmentLog
from waltz_log.storage.views.view_log import read_log
from waltz_log.testing.disk import SimulatedDisk
from waltz_log.transport import waltz_pb2 as pb

FIRST, PARTITION = 1000, 3
REFUSALS = (CorruptData, ProtocolViolation, ConnectionLost, Unavailable)

Check = Callable[[bytes, bytes, int], None]
"""Records, lengths and first id; raises one of `REFUSALS`."""


# ---- readers in memory ---------------------------------------------------------------------------------------------------------------------------


def in_columns(records: bytes, lengths: bytes, first: int) -> None:
    verify_records(records, lengths, first_transaction_id=first, partition=PARTITION, where="test")


def feed(records: bytes, lengths: bytes, first: int) -> None:
    frame = pb.FeedFrame(blocks=[pb.Block(first_transaction_id=first, lengths=lengths, records=records)])
    feed_decoding.decode_feed(frame, PARTITION, first, data=True)


def fetched_by_id(records: bytes, lengths: bytes, first: int) -> None:
    feed_decoding.decode_block(pb.Block(first_transaction_id=first, lengths=lengths, records=records), PARTITION)


def replica_without_block_checksum(records: bytes, lengths: bytes, first: int) -> None:
    block_checksum.verify_block(Block(first, lengths, records, 1), PARTITION, "test")


def owner_reads_a_replica(records: bytes, lengths: bytes, first: int) -> None:
    received_blocks.expect_unchanged("storage-1", PARTITION, [Block(first, lengths, records, 1)], headers_only=False)


def console(records: bytes, lengths: bytes, first: int) -> None:
    block = pb.Block(first_transaction_id=first, lengths=lengths, records=records)
    transaction_reader._expect_whole("storage-1:1", PARTITION, block, headers_only=False)


def spark(records: bytes, lengths: bytes, first: int) -> None:
    task = LogRange(PARTITION, first, first + len(lengths) // 4 - 1, 1, bytes(16), (), 1000, True)
    chunk = ranges._Chunk(first)
    chunk.add(pb.Block(first_transaction_id=first, lengths=lengths, records=records, append_time_ms=1))
    ranges._checked_batch(task, "storage-1:1", chunk)


def repair_from_a_peer(records: bytes, lengths: bytes, first: int) -> None:
    """What a storage node reads from another one. A peer that sends a damaged block counts as one that does not have it."""
    answers = [pb.ReadResponse(blocks=[pb.Block(first_transaction_id=first, lengths=lengths, records=records)])]

    async def nothing() -> None: ...

    async def receive() -> pb.ReadResponse | None:
        return answers.pop() if answers else None

    async def find(partition: int) -> list[str]:
        return ["storage-1:1"]

    stream = SimpleNamespace(receive=receive, cancel=nothing)
    channel = SimpleNamespace(read=lambda method, request: stream, close=nothing)
    network: Any = SimpleNamespace(connect=lambda address: channel)

    async def read() -> None:
        last = first + len(lengths) // 4 - 1
        blocks = [block async for block in peers.PeerReplicas(network, find).read(UUID(int=1), PARTITION, 1, first, last)]
        assert [block.records for block in blocks] == [records]

    asyncio.run(read())


IN_MEMORY = [in_columns, feed, fetched_by_id, replica_without_block_checksum, owner_reads_a_replica, repair_from_a_peer, console, spark]


# ---- readers of a segment ------------------------------------------------------------------------------------------------------------------------


def stored(records: bytes, lengths: bytes, first: int) -> tuple[SimulatedDisk, SegmentLog]:
    """A partition whose only segment has these records, as a node that trusts its owner writes them."""
    disk = SimulatedDisk()
    ControlFiles.create(disk, FixedClock(), KEY, PARTITION + 1)
    control = ControlFiles.open(disk)
    last = first + len(lengths) // 4 - 1
    control.set_mark(PARTITION, SessionMark(3, last, last))
    control.close()
    log = SegmentLog.open(disk, FixedClock(), KEY, PARTITION, 1 << 30, -1)
    log.begin(first)
    log.append([Block(first, lengths, records, 1)])
    return disk, log


def storage_read(records: bytes, lengths: bytes, first: int) -> None:
    _, log = stored(records, lengths, first)
    last = first + len(lengths) // 4 - 1
    reading = log.reader(first)
    while first <= last:
        first = log.read(reading, first, last, 1 << 20)[-1].last_transaction_id + 1


def view(records: bytes, lengths: bytes, first: int) -> None:
    _, log = stored(records, lengths, first)
    for _ in read_log(log)(first, first + len(lengths) // 4):
        pass


def storage_verify(records: bytes, lengths: bytes, first: int) -> None:
    """`waltz storage verify`. The scrub, backups and restores run the same `SegmentCheck`."""
    disk, _ = stored(records, lengths, first)
    for report in verify_directory(disk):
        for finding in report.findings:
            raise CorruptData(where=finding.file, offset=finding.offset, transaction_id=finding.transaction_id, reason=finding.reason)


def dump(records: bytes, lengths: bytes, first: int) -> None:
    disk, _ = stored(records, lengths, first)
    for record in dump_records(disk, str(PARTITION), first):
        if record.damage is not None:
            raise CorruptData(where="dump", offset=record.offset, transaction_id=record.transaction_id, reason=record.damage)


def statistics(records: bytes, lengths: bytes, first: int) -> None:
    disk, _ = stored(records, lengths, first)
    if segment_statistics(disk, str(PARTITION), first).damaged:
        raise CorruptData(where="statistics", offset=0, transaction_id=-1, reason="damaged")


def repaired_segment(records: bytes, lengths: bytes, first: int) -> None:
    """Of a closed segment, by a block from a peer."""
    disk = SimulatedDisk()
    ControlFiles.create(disk, FixedClock(), KEY, PARTITION + 1)
    room = max(len(records), 4096)
    log = SegmentLog.open(disk, FixedClock(), KEY, PARTITION, FILE_HEADER_BYTES + room, -1)
    log.begin(first)
    sizes = sizes_of(lengths)
    for begins, bodies in ((first, [bytes(size - 40) for size in sizes]), (first + len(sizes), [bytes(room - 40)])):
        log.append([Block(begins, *frame_of(bodies, first=begins, partition=PARTITION), 1)])
    Replacement(log, first).add([Block(first, lengths, records, 1)])


IN_A_SEGMENT = [storage_read, view, storage_verify, dump, statistics, repaired_segment]


# ---- frames --------------------------------------------------------------------------------------------------------------------------------------


def accepts(check: Check, records: bytes, lengths: bytes, first: int = FIRST) -> bool:
    try:
        check(records, lengths, first)
    except REFUSALS:
        return False
    return True


def sizes_of(lengths: bytes) -> tuple[int, ...]:
    return struct.unpack(f">{len(lengths) // 4}i", lengths)


def canceled(sizes: Sequence[int], *, of_data: bool, first: int | None = FIRST) -> tuple[bytes, bytes]:
    """A frame with wrong checksums at a few places, whose errors cancel."""
    rng = Random(len(sizes))
    lengths, records = frame_of([rng.randbytes(size) for size in sizes], first=first, partition=PARTITION)
    *places, last = sorted(rng.sample(range(len(sizes)), 3))
    errors = canceling(sizes_of(lengths), {place: rng.getrandbits(32) | 1 for place in places}, last)
    return lengths, with_errors(records, sizes_of(lengths), errors, of_data=of_data)


COUNTS = (FEW_RECORDS - 1, FEW_DIFFERENT, CLOSINGS_MIN + 5)
SIZES: dict[str, Callable[[int], int]] = {
    "no data": lambda n: 0,
    "equal": lambda n: 20,
    "equal and long": lambda n: COPIED_BYTES + 9,
    "different": lambda n: 7 * n % 50,
}


@pytest.fixture(params=[f"{count} {name} {kind}" for count in COUNTS for name in SIZES for kind in ("closing", "data")])
def canceled_frame(request: pytest.FixtureRequest) -> tuple[bytes, bytes]:
    count, rest = request.param.split(" ", 1)
    name, kind = rest.rsplit(" ", 1)
    return canceled([SIZES[name](n) for n in range(int(count))], of_data=kind == "data")


@pytest.mark.parametrize("check", [*IN_MEMORY, *IN_A_SEGMENT], ids=lambda check: check.__name__)
def test_errors_that_cancel_are_found_by_every_reader(check: Check, canceled_frame: tuple[bytes, bytes]) -> None:
    lengths, records = canceled_frame
    assert not is_sound(records, lengths, FIRST, PARTITION)
    assert not accepts(check, records, lengths)


@pytest.mark.parametrize("check", [*IN_MEMORY, *IN_A_SEGMENT], ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("count", COUNTS)
def test_sound_frames_are_accepted_by_every_reader(check: Check, name: str, count: int) -> None:
    lengths, records = frame_of([bytes([n % 251]) * SIZES[name](n) for n in range(count)], first=FIRST, partition=PARTITION)
    assert is_sound(records, lengths, FIRST, PARTITION)
    check(records, lengths, FIRST)


def test_verify_finds_each_record_that_a_feed_cannot_read() -> None:
    lengths, records = canceled([20] * 300, of_data=False)
    sizes = sizes_of(lengths)
    unreadable = [FIRST + n for n in range(300) if not is_sound(records[60 * n : 60 * n + 60], struct.pack(">i", sizes[n]), FIRST + n, PARTITION)]
    assert len(unreadable) == 3
    disk, _ = stored(records, lengths, FIRST)
    (report,) = verify_directory(disk)
    assert [found.transaction_id for found in report.findings] == unreadable
    damaged = [record.transaction_id for record in dump_records(disk, str(PARTITION), FIRST) if record.damage is not None]
    assert damaged == unreadable


# ---- properties ----------------------------------------------------------------------------------------------------------------------------------


@st.composite
def chosen_frames(draw: st.DrawFn, first: int | None) -> tuple[bytes, bytes]:
    """Random errors in some closing or data checksums: any, all the same (as in two that are swapped), or such that they cancel."""
    count = draw(st.sampled_from([3, FEW_RECORDS, FEW_DIFFERENT + 9, CLOSINGS_MIN, CLOSINGS_MIN + 44]))
    rng = Random(draw(st.integers(0, 1000)))
    longest = draw(st.sampled_from([0, 1, 30, 700]))
    equal = draw(st.booleans())
    bodies = [rng.randbytes(longest if equal else rng.randint(0, longest)) for _ in range(count)]
    lengths, records = frame_of(bodies, first=first, partition=PARTITION)
    if not draw(st.booleans()):  # records of several clients
        again = frame_of(bodies, first=first, partition=PARTITION, client_id=6, first_sequence=70)[1]
        ends = np.cumsum(sizes_of(lengths)).tolist()
        cut = rng.choice(ends)
        records = records[:cut] + again[cut:]
    places = draw(st.lists(st.integers(0, count - 2), max_size=3, unique=True))
    error = draw(st.integers(1, 2**32 - 1))
    alike = draw(st.booleans())
    errors = {place: error if alike else rng.getrandbits(32) for place in places}
    cancels = draw(st.booleans())
    if errors and cancels:
        errors = canceling(sizes_of(lengths), errors, rng.randint(max(errors) + 1, count - 1))
    return lengths, with_errors(records, sizes_of(lengths), errors, of_data=draw(st.booleans()))


@given(chosen_frames(FIRST))
@settings(max_examples=100, deadline=None)
def test_every_reader_in_memory_concludes_what_a_loop_concludes(frame: tuple[bytes, bytes]) -> None:
    lengths, records = frame
    expected = is_sound(records, lengths, FIRST, PARTITION)
    assert {check.__name__: accepts(check, records, lengths) for check in IN_MEMORY} == {check.__name__: expected for check in IN_MEMORY}


@given(chosen_frames(FIRST))
@settings(max_examples=25, deadline=None)
def test_every_reader_of_a_segment_concludes_what_a_loop_concludes(frame: tuple[bytes, bytes]) -> None:
    lengths, records = frame
    expected = is_sound(records, lengths, FIRST, PARTITION)
    assert {check.__name__: accepts(check, records, lengths) for check in IN_A_SEGMENT} == {check.__name__: expected for check in IN_A_SEGMENT}


class _Appender:
    client_id, last_sequence, on_disk, meter, quota_refusals = 5, -1, False, None, 0

    def __init__(self) -> None:
        self.failed: WaltzError | None = None

    def fail(self, error: WaltzError) -> None:
        self.failed = error


def _received(lengths: bytes, records: bytes) -> tuple[Any, Any]:
    count = len(lengths) // 4
    message = pb.AppendFrame(generation=2, lengths=lengths, marks=struct.pack(f">{count}q", *[FIRST - 1] * count), records=records)
    appender: Any = _Appender()
    return appender, sequencer.ReceivedFrame(appender, message)


def owner_accepts(lengths: bytes, records: bytes) -> bool:
    """Whether an owner orders the frame. If it does, what it stores is sound."""
    _, frame = _received(lengths, records)
    result = sequencer.Sequencer(PARTITION, 2, FIRST - 1, lock_entries_max=1000, record_bytes_max=1 << 20).sequence([frame], 1234)
    if result.block is None:
        return False
    return is_sound(result.block.records, result.block.lengths, FIRST, PARTITION)


@given(chosen_frames(None))
@settings(max_examples=50, deadline=None)
def test_an_owner_orders_a_frame_only_if_each_record_is_sound(frame: tuple[bytes, bytes]) -> None:
    lengths, records = frame
    if is_sound(records, lengths, None, PARTITION):
        verify_records(records, lengths, first_transaction_id=None, partition=PARTITION, where="test")
    else:
        assert not owner_accepts(lengths, records)


@pytest.mark.parametrize("of_data", [False, True])
@pytest.mark.parametrize("name", SIZES)
def test_an_owner_refuses_a_frame_whose_errors_cancel(name: str, of_data: bool) -> None:
    sizes = [SIZES[name](n) for n in range(192)]
    lengths, records = canceled(sizes, of_data=of_data, first=None)
    assert not owner_accepts(lengths, records)
    assert owner_accepts(*frame_of([bytes(size) for size in sizes], first=None, partition=PARTITION))


def test_a_refused_frame_is_verified_before_its_records_are_believed() -> None:
    """A handover or a quota refuses a frame by its sequences, which must be those that its sender wrote."""
    lengths, records = canceled([20] * 128, of_data=False, first=None)
    for refuse in (append_task.AppendTask._refuse, append_task.AppendTask._refuse_over_quota):
        appender, frame = _received(lengths, records)
        refuse(object(), frame, 1)  # type: ignore[arg-type]  # the frame is damaged, so nothing else is used
        assert isinstance(appender.failed, CorruptData)


# ---- planted bugs --------------------------------------------------------------------------------------------------------------------------------


def _combined(records: memoryview, framing: columns._Framing, *_: object) -> bool:
    """The check that combined errors: whether the CRC-32 of a frame is that of a sound one, first with closing and then with data checksums."""
    ends = framing.size * np.arange(1, framing.count + 1) if framing.size else framing.ends
    for of_data in (False, True):
        error = 0
        start = 0
        for end in ends.tolist():
            at = start + HEADER_BYTES - 4 if of_data else end - 4
            checked = records[start + HEADER_BYTES : end - 4] if of_data else records[start : end - 4]
            error = shift_bytes(error, end - start) ^ crc32(checked) ^ struct.unpack_from(">I", records, at)[0]
            start = end
        if error:
            return False
    return True


def test_planted_a_check_that_combines_errors_accepts_them(monkeypatch: pytest.MonkeyPatch, canceled_frame: tuple[bytes, bytes]) -> None:
    lengths, records = canceled_frame
    monkeypatch.setattr(columns, "_checksums_match", _combined)
    assert accepts(in_columns, records, lengths) == (len(lengths) // 4 >= FEW_RECORDS)


PLANTS: list[tuple[Check, Any, str]] = [
    (replica_without_block_checksum, block_checksum, "verify_records"),
    (owner_reads_a_replica, received_blocks, "verify_records"),
    (repair_from_a_peer, peers, "verify_records"),
    (console, transaction_reader, "verify_records"),
    (spark, ranges, "verify_records"),
    (storage_read, reader, "verify_records"),
    (view, reader, "verify_records"),
    (storage_verify, scan, "verify_records"),
    (statistics, scan, "verify_records"),
    (repaired_segment, replacement, "verify_records"),
]


@pytest.mark.parametrize(("check", "module", "name"), PLANTS, ids=lambda value: getattr(value, "__name__", str(value)))
def test_planted_a_reader_that_does_not_verify_accepts_them(monkeypatch: pytest.MonkeyPatch, check: Check, module: Any, name: str) -> None:
    lengths, records = canceled([20] * 128, of_data=False)
    monkeypatch.setattr(module, name, lambda *_, **__: None)
    assert accepts(check, records, lengths)
