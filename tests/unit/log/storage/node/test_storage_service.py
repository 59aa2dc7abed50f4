"""The storage node over the in-memory network and disk: what owners and readers see."""

from __future__ import annotations

import asyncio
import json
import struct
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from waltz_log.core.formats.block import Block
from waltz_log.core.formats.records import encode_record
from waltz_log.core.formats.sealed_headers import seal_headers
from waltz_log.core.formats.traces import pack_traces
from waltz_log.core.ports import Channel
from waltz_log.core.topics.access import CLUSTER_PRINCIPAL
from waltz_log.errors import (
    ClusterKeyMismatch,
    CorruptData,
    Fenced,
    InvalidRequest,
    OutOfRange,
    ProtocolViolation,
    SessionTooOld,
    StorageFailed,
    StorageFull,
    TransactionTooLarge,
    WaltzError,
)
from waltz_log.filesystem import FileSystemDisk, ThreadOffload
from waltz_log.storage import StorageNode, StorageSettings
from waltz_log.storage.replica.range_reads import RangeReads
from waltz_log.storage.segments.scan import RECORD_BYTES_MAX
from waltz_log.storage.segments.segment_log import SegmentLog
from waltz_log.testing.disk import Operation, SimulatedDisk
from waltz_log.testing.network import MemoryNetwork
from waltz_log.testing.offload import run_in_place
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.block_messages import replicated_message_of
from waltz_log.transport.methods import ReplicateStream

KEY = UUID("00112233-4455-6677-8899-aabbccddeeff")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0)


async def acknowledged(stream: ReplicateStream) -> int:
    answer = await stream.receive()
    assert answer is not None
    return int(answer.last_transaction_id)


async def drain(stream: ReplicateStream) -> None:
    """Receives until the stream ends or raises."""
    while await stream.receive() is not None:
        pass


class FixedClock:
    def now_ms(self) -> int:
        return 1_600_000_000_000


def block(first: int, data: Sequence[bytes], *, time_ms: int = 1000, partition: int = 0) -> Block:
    records = [encode_record(5, 1, partition, first + n, 7, body, first + n) for n, body in enumerate(data)]
    return Block(first, struct.pack(f">{len(records)}i", *map(len, records)), b"".join(records), time_ms)


class Bench:
    """One node, and what an owner or reader does to it."""

    def __init__(self, disk: SimulatedDisk, **settings: Any) -> None:
        self.disk = disk
        self.settings = StorageSettings(name="storage-0", directory=Path("unused"), coordinator="test", **settings)
        self.network = MemoryNetwork()
        self.node: StorageNode
        self.channel: Channel

    async def start(self) -> None:
        self.node = StorageNode(self.settings, self.disk, FixedClock(), run_in_place)
        await self.node.open(KEY)
        listener = await self.network.serve("storage:0", self.node.service())
        self.channel = self.network.connect(listener.address)

    async def restart(self, disk: SimulatedDisk | None = None) -> None:
        await self.node.close()
        self.disk = disk or self.disk
        await self.start()

    async def call(self, method: Any, request: Any) -> Any:
        return await self.channel.call(method, request, timeout_s=10)

    async def open(self, session: int, partition: int = 0, key: UUID = KEY) -> Any:
        return await self.call(methods.OPEN, pb.OpenRequest(cluster_key=key.bytes, partition=partition, session=session))

    async def clean(self, session: int, mark: int, partition: int = 0) -> None:
        request = pb.LowWaterMarkRequest(cluster_key=KEY.bytes, partition=partition, session=session, low_water_mark=mark)
        await self.call(methods.SET_LOW_WATER_MARK, request)

    async def truncate(self, session: int, last: int, partition: int = 0) -> int:
        request = pb.TruncateRequest(cluster_key=KEY.bytes, partition=partition, session=session, last_transaction_id=last)
        return int((await self.call(methods.TRUNCATE, request)).last_transaction_id)

    async def stream(self, session: int, partition: int = 0) -> ReplicateStream:
        stream = self.channel.open(methods.REPLICATE)
        await stream.send(pb.ReplicateRequest(open=pb.ReplicateOpen(cluster_key=KEY.bytes, partition=partition, session=session)))
        return stream

    async def append(self, session: int, *blocks: Block, partition: int = 0) -> int:
        """Sends blocks and waits until all are acknowledged."""
        stream = await self.stream(session, partition)
        try:
            for each in blocks:
                await stream.send(message(each))
            await stream.finish()
            last = -1
            while (answer := await stream.receive()) is not None:
                assert answer.last_transaction_id > last
                last = answer.last_transaction_id
            return last
        finally:
            await stream.cancel()

    async def read(
        self,
        session: int,
        first: int,
        last: int,
        *,
        fence: int = -1,
        max_bytes: int = 0,
        headers_only: bool = False,
        partition: int = 0,
        principal: str = CLUSTER_PRINCIPAL,
    ) -> list[Block]:
        request = pb.ReadRequest(
            cluster_key=KEY.bytes,
            partition=partition,
            session=session,
            fence=fence,
            first_transaction_id=first,
            last_transaction_id=last,
            max_bytes=max_bytes,
            headers_only=headers_only,
            principal=principal,
        )
        stream = self.channel.read(methods.READ, request)
        found = []
        while (answer := await stream.receive()) is not None:
            found += [Block(got.first_transaction_id, got.lengths, got.records, got.append_time_ms) for got in answer.blocks]
        return found


def message(sent: Block) -> Any:
    return pb.ReplicateRequest(block=replicated_message_of(sent))


def new_disk(partitions: int = 2) -> SimulatedDisk:
    disk = SimulatedDisk()
    StorageNode.create(disk, FixedClock(), KEY, partitions)
    return disk


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench(new_disk())
    await bench.start()
    yield bench
    await bench.node.close()


async def test_a_new_partition_reports_that_it_is_empty(bench: Bench) -> None:
    found = await bench.open(1)
    assert (found.session, found.low_water_mark, found.local_low_water_mark) == (-1, -1, -1)
    assert (found.last_transaction_id, found.first_transaction_id, found.start) == (-1, 0, 1)


async def test_blocks_are_appended_acknowledged_and_read_back_as_the_same_bytes(bench: Bench) -> None:
    await bench.open(1)
    await bench.clean(1, -1)
    blocks = [block(0, [b"a", b"bb"], time_ms=10), block(2, [b"ccc"] * 80, time_ms=20), block(82, [b""], time_ms=30)]
    assert await bench.append(1, *blocks) == 82
    assert await bench.read(1, 0, 82) == blocks
    assert await bench.read(1, 1, 1) == [Block(1, blocks[0].lengths[4:], blocks[0].records[41:], 10)]
    assert (await bench.open(1)).last_transaction_id == 82


async def test_traces_beside_a_block_leave_no_byte_on_the_disk() -> None:
    sent = block(0, [b"a", b"bb"])
    images = []
    for traces in (b"", pack_traces([(1, bytes(range(1, 25)) + b"\x01")])):
        bench = Bench(new_disk())
        await bench.start()
        await bench.open(1)
        await bench.clean(1, -1)
        await bench.append(1, replace(sent, traces=traces))
        assert [(found, found.traces) for found in await bench.read(1, 0, 1)] == [(sent, b"")]
        await bench.node.close()
        images.append(bench.disk.image())
    assert images[0] == images[1]


async def test_a_range_is_cut_by_size_and_holds_at_least_one_record(bench: Bench) -> None:
    await bench.open(1)
    await bench.clean(1, -1)
    sent = block(0, [b"x" * 60] * 10)
    await bench.append(1, sent)
    assert [len(found.records) for found in await bench.read(1, 0, 9, max_bytes=350)] == [300, 300, 300, 100]
    assert [found.count for found in await bench.read(1, 0, 9, max_bytes=1)] == [1] * 10
    assert b"".join(found.records for found in await bench.read(1, 0, 9, max_bytes=99)) == sent.records


async def test_headers_alone_are_served_with_the_whole_lengths(bench: Bench) -> None:
    await bench.open(1)
    await bench.clean(1, -1)
    sent = block(0, [b"x" * n for n in range(9)])
    await bench.append(1, sent)
    (found,) = await bench.read(1, 0, 8, headers_only=True)
    assert found == Block(0, sent.lengths, seal_headers(sent.records, sent.lengths), 1000)


async def test_a_read_beyond_the_log_ends_where_the_replica_ends(bench: Bench) -> None:
    await bench.open(1)
    await bench.clean(1, -1)
    await bench.append(1, block(0, [b"a"] * 3))
    assert [found.count for found in await bench.read(1, 1, 99)] == [2]
    assert await bench.read(1, 3, 99) == []
    with pytest.raises(OutOfRange):
        await bench.read(1, 2, 0)


async def test_another_cluster_is_refused_by_every_procedure(bench: Bench) -> None:
    other = UUID(int=7)
    with pytest.raises(ClusterKeyMismatch):
        await bench.open(1, key=other)
    with pytest.raises(ClusterKeyMismatch):
        await bench.call(methods.TRUNCATE, pb.TruncateRequest(cluster_key=other.bytes, partition=0, session=1, last_transaction_id=-1))
    with pytest.raises(ClusterKeyMismatch):
        await bench.call(methods.SET_LOW_WATER_MARK, pb.LowWaterMarkRequest(cluster_key=b"", partition=0, session=1, low_water_mark=-1))
    stream = bench.channel.open(methods.REPLICATE)
    await stream.send(pb.ReplicateRequest(open=pb.ReplicateOpen(cluster_key=other.bytes, partition=0, session=1)))
    with pytest.raises(ClusterKeyMismatch):
        await stream.receive()
    reading = bench.channel.read(methods.READ, pb.ReadRequest(cluster_key=other.bytes, partition=0, session=1))
    with pytest.raises(ClusterKeyMismatch):
        await reading.receive()


async def test_a_partition_that_does_not_exist_is_refused(bench: Bench) -> None:
    for partition in (-1, 2):
        with pytest.raises(InvalidRequest):
            await bench.open(1, partition)


# ---- sessions ------------------------------------------------------------------------------------------------------------------------------------


async def test_an_older_session_is_refused_everything(bench: Bench) -> None:
    await bench.open(5)
    for work in (
        bench.open(4),
        bench.clean(4, -1),
        bench.truncate(4, -1),
        bench.append(4, block(0, [b"a"])),
        bench.read(-1, 0, 0, fence=4),
    ):
        with pytest.raises(Fenced) as caught:
            await work
        assert (caught.value.mine, caught.value.newer) == (4, 5)


async def test_the_fence_outlives_a_crash_of_the_machine(bench: Bench) -> None:
    await bench.open(5)
    await bench.restart(bench.disk.crash())
    with pytest.raises(Fenced):
        await bench.open(4)
    assert (await bench.open(5)).session == -1


async def test_every_procedure_of_a_newer_session_that_writes_raises_the_fence(bench: Bench) -> None:
    await bench.open(1)
    await bench.clean(2, -1)
    await bench.truncate(3, -1)
    await bench.append(4, block(0, [b"a"]))
    assert bench.node.statistics().partitions[0].fence == 4
    with pytest.raises(Fenced):
        await bench.open(3)


async def test_a_read_never_raises_the_fence_whatever_session_it_names(bench: Bench) -> None:
    await bench.append(4, block(0, [b"a"]))
    for fence in (5, 10**15):
        with pytest.raises(SessionTooOld) as caught:
            await bench.read(-1, 0, 0, fence=fence)
        assert (caught.value.asked, caught.value.session) == (fence, 4)
    assert bench.node.statistics().partitions[0].fence == 4
    assert await bench.append(4, block(1, [b"b"])) == 1


async def test_a_new_session_ends_the_stream_of_an_older_one_and_nothing_more_of_it_is_written(bench: Bench) -> None:
    await bench.open(1)
    old = await bench.stream(1)
    await old.send(message(block(0, [b"a"])))
    assert await acknowledged(old) == 0
    assert (await bench.open(2)).last_transaction_id == 0
    with pytest.raises(Fenced):
        await drain(old)
    assert (await bench.open(2)).last_transaction_id == 0


async def test_blocks_of_an_older_session_that_were_queued_are_not_written(bench: Bench) -> None:
    await bench.open(1)
    await bench.append(1, block(0, [b"a"]))
    store = await bench.node.partition(0)
    async with store._turn:
        old = await bench.stream(1)
        opening = asyncio.create_task(bench.open(2))
        await until(lambda: len(store._tasks) == 1)
        await old.send(message(block(1, [b"b"])))
        await until(lambda: len(store._rounds.pending) == 1)
    assert (await opening).last_transaction_id == 0
    await until(lambda: not store._tasks)
    assert bench.node.statistics().partitions[0].last_transaction_id == 0
    with pytest.raises(Fenced):
        await drain(old)


async def test_a_replica_of_an_older_session_refuses_readers(bench: Bench) -> None:
    await bench.open(3)
    await bench.append(3, block(0, [b"a"]))
    with pytest.raises(SessionTooOld) as caught:
        await bench.read(3, 0, 0)
    assert (caught.value.asked, caught.value.session) == (3, -1)
    await bench.clean(3, 0)
    assert len(await bench.read(3, 0, 0)) == 1
    assert len(await bench.read(2, 0, 0)) == 1
    with pytest.raises(SessionTooOld):
        await bench.read(4, 0, 0)


async def test_the_owner_in_recovery_reads_what_may_be_dirty(bench: Bench) -> None:
    await bench.append(3, block(0, [b"a"]))
    await bench.open(4)
    assert len(await bench.read(-1, 0, 0, fence=4)) == 1


async def test_low_water_marks_do_not_go_back_and_need_truncation_first(bench: Bench) -> None:
    await bench.append(1, block(0, [b"a"] * 5))
    with pytest.raises(OutOfRange):
        await bench.clean(1, 3)
    await bench.clean(1, 4)
    await bench.clean(1, 4)
    with pytest.raises(ProtocolViolation, match="low-water mark decreases"):
        await bench.clean(2, 3)
    await bench.clean(2, 8)
    found = await bench.open(3)
    assert (found.session, found.low_water_mark, found.local_low_water_mark) == (2, 8, 4)


async def test_marks_outlive_a_crash_of_the_machine(bench: Bench) -> None:
    await bench.append(1, block(0, [b"a"] * 5))
    await bench.clean(1, 4)
    await bench.clean(2, 6)
    await bench.restart(bench.disk.crash())
    found = await bench.open(3)
    assert (found.session, found.low_water_mark, found.local_low_water_mark, found.last_transaction_id, found.start) == (2, 6, 4, 4, 2)


# ---- appending -----------------------------------------------------------------------------------------------------------------------------------


async def test_acknowledged_records_survive_a_crash_of_the_machine(bench: Bench) -> None:
    sent = [block(0, [b"a"] * 2, time_ms=5), block(2, [b"b"] * 3, time_ms=5)]
    await bench.append(1, *sent)
    await bench.clean(1, 4)
    await bench.restart(bench.disk.crash())
    found = await bench.read(1, 0, 4)
    assert b"".join(part.records for part in found) == sent[0].records + sent[1].records


async def test_a_gap_is_refused(bench: Bench) -> None:
    await bench.append(1, block(0, [b"a"]))
    with pytest.raises(OutOfRange) as caught:
        await bench.append(1, block(2, [b"a"]))
    assert (caught.value.asked, caught.value.last) == (2, 0)


async def test_a_resend_is_acknowledged_and_written_once(bench: Bench) -> None:
    whole = block(0, [bytes([n]) for n in range(10)])
    first = block(0, [bytes([n]) for n in range(6)])
    await bench.append(1, first)
    written = bench.node.statistics().partitions[0].bytes_written
    assert await bench.append(1, first) == 5
    assert bench.node.statistics().partitions[0].bytes_written == written
    assert await bench.append(1, whole) == 9
    await bench.clean(1, 9)
    assert b"".join(part.records for part in await bench.read(1, 0, 9)) == whole.records


async def test_a_resend_while_the_first_is_still_queued_is_written_once(bench: Bench) -> None:
    sent = block(0, [b"a"] * 4)
    assert await bench.append(1, sent, sent, block(4, [b"b"])) == 4
    assert bench.node.statistics().partitions[0].transactions_written == 5


async def test_other_transactions_under_known_ids_are_refused(bench: Bench) -> None:
    await bench.append(1, block(0, [b"a", b"b"]))
    with pytest.raises(ProtocolViolation, match="other transactions"):
        await bench.append(1, block(0, [b"a", b"x", b"c"]))
    assert (await bench.open(1)).last_transaction_id == 1


async def test_damaged_or_foreign_blocks_are_refused_before_they_are_written(bench: Bench) -> None:
    good = block(0, [b"a", b"b"])
    for bad in (
        Block(0, good.lengths, good.records[:-1] + bytes([good.records[-1] ^ 1]), 0),
        Block(1, good.lengths, good.records, 0),
        Block(0, good.lengths[:-1], good.records, 0),
        block(0, [b"a"], partition=1),
    ):
        with pytest.raises(CorruptData):
            await bench.append(1, bad)
    for bad in (Block(0, b"", b"", 0), Block(-1, good.lengths, good.records, 0)):
        with pytest.raises(ProtocolViolation):
            await bench.append(1, bad)
    assert (await bench.open(1)).last_transaction_id == -1


async def test_a_record_that_is_larger_than_a_segment_is_stored_and_one_above_every_limit_refused() -> None:
    bench = Bench(new_disk(), segment_bytes=4096)
    await bench.start()
    with pytest.raises(TransactionTooLarge) as caught:
        await bench.append(1, block(0, [b"a"]), block(1, [b"x" * RECORD_BYTES_MAX]))
    assert (caught.value.size, caught.value.limit) == (RECORD_BYTES_MAX + 40, RECORD_BYTES_MAX)
    assert await bench.append(1, block(0, [b"a"]), block(1, [b"x" * 9_000, b"y", b"x" * 3000, b"z" * 5_000])) == 4
    await bench.node.close()


async def test_a_stream_that_does_not_begin_with_open_is_refused(bench: Bench) -> None:
    stream = bench.channel.open(methods.REPLICATE)
    await stream.send(message(block(0, [b"a"])))
    with pytest.raises(ProtocolViolation):
        await stream.receive()
    stream = await bench.stream(1)
    await stream.send(pb.ReplicateRequest(open=pb.ReplicateOpen(cluster_key=KEY.bytes, partition=0, session=1)))
    with pytest.raises(ProtocolViolation):
        await stream.receive()


async def test_an_owner_that_reads_no_acknowledgment_delays_no_other(bench: Bench) -> None:
    silent = await bench.stream(1)
    for first in range(100):
        await silent.send(message(block(first, [b"a"])))
    assert await bench.append(1, block(0, [b"z"], partition=1), partition=1) == 0
    store = await bench.node.partition(0)
    await until(lambda: store.last_id == 99)
    await silent.cancel()


async def test_queued_blocks_of_one_round_share_one_sync(bench: Bench) -> None:
    await bench.append(1, block(0, [b"a"]))
    store = await bench.node.partition(0)
    seen: list[Operation] = []
    async with store._turn:
        stream = await bench.stream(1)
        for first in range(1, 6):
            await stream.send(message(block(first, [b"a"])))
        await until(lambda: len(store._rounds.pending) == 5)
        bench.disk.before = seen.append
    assert await acknowledged(stream) == 5
    data = "0/0000000000000000000.seg"
    assert [operation.kind for operation in seen if operation.path == data] == ["write", "sync"]
    await stream.cancel()


async def test_the_index_is_synced_before_the_record_after_each_thousandth(bench: Bench) -> None:
    seen: list[Operation] = []
    bench.disk.before = seen.append
    await bench.append(1, block(0, [b""] * 999))
    assert Operation("sync", "0/0000000000000000000.idx") not in seen[-4:]
    seen.clear()
    await bench.append(1, block(999, [b""]))
    await bench.append(1, block(1000, [b""]))
    order = [(operation.kind, operation.path[-3:]) for operation in seen]
    assert ("sync", "idx") in order[order.index(("sync", "seg")) : len(order) - 1 - order[::-1].index(("write", "seg"))]


# ---- truncation, segments ------------------------------------------------------------------------------------------------------------------------


async def rolled() -> tuple[Bench, list[Block]]:
    bench = Bench(new_disk(), segment_bytes=4096)
    await bench.start()
    blocks = [block(n * 7, [bytes([n]) * 100] * 7, time_ms=100 + n // 2) for n in range(30)]
    await bench.append(1, *blocks)
    return bench, blocks


async def test_full_segments_are_followed_by_new_ones_and_read_across() -> None:
    bench, blocks = await rolled()
    await bench.clean(1, 209)
    names = [name for name in bench.disk.list("0") if name.endswith(".seg")]
    assert len(names) > 5
    assert all(len(bench.disk.content(f"0/{name}")) <= 4096 for name in names)
    for _ in range(2):
        found = await bench.read(1, 0, 209)
        assert b"".join(part.records for part in found) == b"".join(part.records for part in blocks)
        times = {n: part.append_time_ms for part in found for n in range(part.first_transaction_id, part.last_transaction_id + 1)}
        assert times == {n: 100 + n // 14 for n in range(210)}
        await bench.restart(bench.disk.crash(keep=True))
    await bench.node.close()


async def test_truncation_to_every_id_across_segments_is_durable() -> None:
    for last in [*range(-1, 30), 150, 208, 209]:
        bench, blocks = await rolled()
        assert await bench.truncate(1, last) == last
        await bench.restart(bench.disk.crash())
        found = await bench.open(2)
        assert (found.first_transaction_id, found.last_transaction_id) == (0, last)
        await bench.append(2, block(last + 1, [b"new"], time_ms=999))
        await bench.clean(2, last + 1)
        got = b"".join(part.records for part in await bench.read(2, 0, last + 1))
        assert got == b"".join(part.records for part in blocks)[: 140 * (last + 1)] + block(last + 1, [b"new"]).records
        assert (await bench.read(2, last + 1, last + 1))[0].append_time_ms == 999
        await bench.node.close()


async def test_truncation_outside_the_log_or_below_what_is_clean_is_refused(bench: Bench) -> None:
    await bench.append(1, block(0, [b"a"] * 5))
    for last in (-2, 5):
        with pytest.raises(OutOfRange):
            await bench.truncate(1, last)
    await bench.clean(1, 4)
    await bench.append(1, block(5, [b"a"] * 5))
    assert await bench.truncate(2, 4) == 4
    with pytest.raises(OutOfRange):
        await bench.truncate(2, 3)


async def test_a_late_truncation_of_the_session_does_not_cut_what_was_acknowledged_since(bench: Bench) -> None:
    await bench.append(1, block(0, [b"a"] * 5))
    assert await bench.truncate(1, 3) == 3
    await bench.clean(1, 3)
    await bench.append(1, block(4, [b"b"] * 5))
    with pytest.raises(ProtocolViolation, match="clean replica is not truncated in its session"):
        await bench.truncate(1, 3)
    assert await bench.truncate(1, 8) == 8, "nothing to cut is no harm"
    assert [part.last_transaction_id for part in await bench.read(1, 4, 8)] == [8]


async def test_a_read_that_meets_a_cut_under_way_is_reported_what_is_gone_and_not_of_damage(bench: Bench) -> None:
    await bench.append(1, block(0, [b"a"] * 10))
    store = await bench.node.partition(0)
    segment, met = store.log._active, []  # where the cut is: between the files and what the log says of them
    cut = segment.cut

    def met_by_a_reader(last_id: int) -> None:
        cut(last_id)
        with capture_logs() as logs, pytest.raises(OutOfRange) as caught:
            step = RangeReads(store.log, run_in_place).runs(5, 9, 1 << 20).asend(None)
            while True:
                step.send(None)  # without the event loop, which waits for the cut
        met.append((caught.value.asked, [entry["event"] for entry in logs]))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(segment, "cut", met_by_a_reader)
        assert await bench.truncate(1, 4) == 4
    assert met == [(5, [])]
    await bench.clean(1, 4)
    assert [part.last_transaction_id for part in await bench.read(1, 0, 4)] == [4], "and read again when it is over"


async def test_a_stream_of_the_recovery_brings_nothing_once_the_replica_is_clean(bench: Bench) -> None:
    store = await bench.node.partition(0)
    late = await store.attach(1, 1 << 20)
    await store.append(late, block(0, [b"a"] * 5))
    await late.changed()
    await bench.clean(1, 4)
    with pytest.raises(ProtocolViolation, match="opened before the replica became clean"):
        await store.append(late, block(5, [b"copied in vain"]))
    ordered = block(5, [b"ordered"])
    await bench.append(1, ordered)
    assert [part.records for part in await bench.read(1, 5, 5)] == [ordered.records]


async def test_a_stream_of_the_recovery_that_arrives_after_the_replica_became_clean_is_refused(bench: Bench) -> None:
    store = await bench.node.partition(0)
    await store.open_session(1, stream_epoch=1)
    await store.attach(1, 1 << 20, stream_epoch=1)
    await store.set_low_water_mark(1, -1, stream_epoch=2)
    with pytest.raises(ProtocolViolation, match=r"the stream is late: .* stream_epoch=1 newest=2"):
        await store.attach(1, 1 << 20, stream_epoch=1)
    await store.attach(1, 1 << 20, stream_epoch=2)
    await store.open_session(1, stream_epoch=3)
    with pytest.raises(ProtocolViolation, match="late"):
        await store.attach(1, 1 << 20, stream_epoch=2)
    await store.open_session(2, stream_epoch=1)  # another owner counts from the start
    await store.attach(2, 1 << 20, stream_epoch=1)


async def test_segments_are_trimmed_up_to_what_is_known_to_be_committed() -> None:
    bench, blocks = await rolled()
    store = await bench.node.partition(0)
    with pytest.raises(OutOfRange):
        await store.trim(1)
    await bench.clean(1, 209)
    with pytest.raises(OutOfRange) as caught:
        await store.trim(211)
    assert caught.value.last == 210
    kept = await store.trim(100)
    assert 0 < kept <= 100
    await bench.restart(bench.disk.crash())
    assert (await bench.open(1)).first_transaction_id == kept
    found = await bench.read(1, kept, 209)
    assert b"".join(part.records for part in found) == b"".join(part.records for part in blocks)[140 * kept :]
    with pytest.raises(OutOfRange):
        await bench.read(1, kept - 1, 209)
    await bench.node.close()


async def test_a_wrong_index_of_a_closed_segment_is_made_again_in_the_background_and_a_damaged_segment_is_reported() -> None:
    bench, _ = await rolled()
    closed = (await bench.node.partition(0)).log.closed()
    wrong, damaged = (f"0/{first:019d}" for first, _ in closed[1:3])
    await bench.node.close()
    good = bench.disk.content(f"{wrong}.idx")
    bench.disk.replace(f"{wrong}.idx", good[:-9])
    bench.disk.replace(f"{damaged}.idx", b"")
    content = bench.disk.content(f"{damaged}.seg")
    bench.disk.replace(f"{damaged}.seg", content[:200] + bytes([content[200] ^ 4]) + content[201:])
    with capture_logs() as logs:
        await bench.start()
        store = await bench.node.partition(0)
        await until(lambda: not store._tasks)
    assert bench.disk.content(f"{wrong}.idx") == good
    assert [entry["segment"] for entry in logs if entry["event"] == "closed segment is damaged"] == [closed[2][0]]
    assert await bench.append(1, block(210, [b"next"])) == 210
    await bench.node.close()


async def test_a_replica_says_whether_it_grew_as_a_member_of_its_clean_session() -> None:
    bench = Bench(SimulatedDisk())
    StorageNode.create(bench.disk, FixedClock(), KEY, 1)
    await bench.start()
    assert not (await bench.open(3)).grew_as_member
    await bench.clean(3, -1)
    assert not (await bench.open(3)).grew_as_member
    await bench.append(3, block(0, [b"a", b"b"]))
    await bench.restart()
    assert (await bench.open(5)).grew_as_member, "also after a start"
    assert (await bench.open(6)).grew_as_member, "also where a session came between that did nothing"
    await bench.clean(6, 1)
    assert not (await bench.open(6)).grew_as_member
    await bench.open(7)
    await bench.append(7, block(2, [b"copied by a session that did not make it clean"]))
    assert not (await bench.open(8)).grew_as_member
    await bench.node.close()


async def test_readers_that_wait_for_the_disk_leave_a_thread_to_appends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FileSystemDisk(tmp_path)
    StorageNode.create(disk, FixedClock(), KEY, 1)
    settings = StorageSettings(
        name="storage-0", directory=tmp_path, coordinator="test", disk_threads=2, disk_warn_free_bytes=0, disk_refuse_free_bytes=0
    )
    offload = ThreadOffload(settings.disk_threads)
    node = StorageNode(settings, disk, FixedClock(), offload)
    await node.open(KEY)
    store = await node.partition(0)
    await store.open_session(1)
    appender = await store.attach(1, 1 << 20)

    async def append(first: int) -> None:
        await store.append(appender, block(first, [b"a"]))
        async with asyncio.timeout(10):
            while appender.acknowledged != first:
                await appender.changed()

    await append(0)
    cold, waiting = threading.Event(), threading.Semaphore(0)

    from_disk = SegmentLog.read

    def read(self: SegmentLog, *arguments: Any) -> list[Block]:
        waiting.release()
        cold.wait(20)
        return from_disk(self, *arguments)

    monkeypatch.setattr(SegmentLog, "read", read)

    async def drained() -> None:
        async for _ in store.read(-1, 1, 0, 0, 1 << 20):
            pass

    readers = [asyncio.create_task(drained()) for _ in range(6)]
    await asyncio.to_thread(waiting.acquire)
    for first in range(1, 4):
        await append(first)
    # A reader that goes away leaves its thread behind, and no other caller uses another in its place.
    readers[0].cancel()
    await append(4)
    assert not waiting.acquire(blocking=False)
    cold.set()
    await asyncio.gather(*readers, return_exceptions=True)
    await node.close()
    offload.close()


# ---- failures of the disk ------------------------------------------------------------------------------------------------------------------------


def failing(kind: str, suffix: str) -> Any:
    def before(operation: Operation) -> None:
        if operation.kind == kind and operation.path.endswith(suffix):
            raise OSError(5, "Input/output error", operation.path)

    return before


@pytest.mark.parametrize("kind", ["write", "sync"])
async def test_a_failed_write_or_sync_stops_the_partition_for_good_and_leaves_the_others_alone(bench: Bench, kind: str) -> None:
    await bench.append(1, block(0, [b"a"]))
    await bench.append(1, block(0, [b"a"], partition=1), partition=1)
    bench.disk.before = failing(kind, "0/0000000000000000000.seg")
    with pytest.raises(StorageFailed):
        await bench.append(1, block(1, [b"b"]))
    bench.disk.before = lambda operation: None
    done = len(bench.disk.operations)
    for work in (bench.append(1, block(1, [b"b"])), bench.open(2), bench.truncate(1, 0), bench.clean(1, 0), bench.read(-1, 0, 0, fence=1)):
        with pytest.raises(StorageFailed):
            await work
    assert bench.disk.operations[done:] == [], "nothing is written or synced after the failure"
    assert await bench.append(1, block(1, [b"b"], partition=1), partition=1) == 1
    await bench.node.close()
    assert not [operation for operation in bench.disk.operations[done:] if operation.path.startswith("0/")]


async def test_after_a_failed_sync_the_next_start_reports_what_the_medium_holds(bench: Bench) -> None:
    await bench.append(1, block(0, [b"a"]))
    bench.disk.before = failing("sync", ".seg")
    with pytest.raises(StorageFailed):
        await bench.append(1, block(1, [b"b"]))
    await bench.restart(bench.disk.crash())
    assert (await bench.open(2)).last_transaction_id == 0


async def test_a_disk_that_others_fill_costs_the_append_and_nothing_else(bench: Bench) -> None:
    bench.settings = StorageSettings(name="s", directory=Path("unused"), coordinator="test", disk_warn_free_bytes=0, disk_refuse_free_bytes=0)
    await bench.restart()
    await bench.append(1, block(0, [b"a"]))
    await bench.clean(1, 0)
    bench.disk.total -= bench.disk.free_bytes() - 30
    store = await bench.node.partition(0)
    store._rounds._space._refuse = -(1 << 40)  # as if others had filled the disk after the check
    for _ in range(2):
        with pytest.raises(StorageFull):
            await bench.append(1, block(1, [b"b"]), block(2, [b"c"]))
        assert len(await bench.read(1, 0, 0)) == 1
    assert (await bench.open(1)).last_transaction_id == 0
    bench.disk.total = 1 << 40
    assert await bench.append(1, block(1, [b"b"])) == 1
    await bench.restart(bench.disk.crash())
    assert (await bench.open(2)).last_transaction_id == 1


async def test_a_partition_that_finds_no_room_to_open_is_tried_again(bench: Bench) -> None:
    bench.disk.total -= bench.disk.free_bytes() - 100
    for _ in range(2):
        with pytest.raises(StorageFull):
            await bench.open(1, partition=1)
    bench.disk.total = 1 << 40
    assert (await bench.open(1, partition=1)).last_transaction_id == -1
    assert await bench.append(1, block(0, [b"a"], partition=1), partition=1) == 0


async def test_below_the_disk_mark_appends_are_refused_reads_go_on_and_space_heals_it(bench: Bench) -> None:
    await bench.append(1, block(0, [b"a"]))
    await bench.clean(1, 0)
    bench.disk.total -= bench.disk.free_bytes() - 1000
    with pytest.raises(StorageFull):
        await bench.append(1, block(1, [b"b"]), block(2, [b"c"]))
    assert bench.node.statistics().space == "refusing"
    assert len(await bench.read(1, 0, 0)) == 1
    bench.disk.total = 1 << 40
    assert await bench.append(1, block(1, [b"b"])) == 1
    assert bench.node.statistics().space == "ample"


async def test_a_session_whose_fence_does_not_reach_the_medium_is_not_answered(bench: Bench) -> None:
    bench.disk.before = failing("sync", ".fence")
    with pytest.raises(StorageFailed):
        await bench.open(9)
    bench.disk.before = lambda operation: None
    with pytest.raises(StorageFailed):
        await bench.open(9)
    await bench.restart(bench.disk.crash())
    assert (await bench.open(1)).session == -1


async def test_corruption_is_found_when_it_is_read_and_never_served(bench: Bench) -> None:
    await bench.append(1, block(0, [b"a" * 50] * 100))
    await bench.clean(1, 99)
    path = "0/0000000000000000000.seg"
    content = bytearray(bench.disk.content(path))
    content[128 + 90 * 50 + 60] ^= 1
    bench.disk.replace(path, bytes(content))
    with pytest.raises(CorruptData) as caught:
        await bench.read(1, 0, 99)
    assert (caught.value.transaction_id, caught.value.offset) == (50, 128 + 90 * 50)
    assert len(await bench.read(1, 51, 99)) == 1


async def test_the_status_is_reported_as_json(bench: Bench) -> None:
    await bench.append(1, block(0, [b"a"] * 3))
    reported = json.loads((await bench.call(methods.STORAGE_STATUS, pb.StorageStatusRequest())).json)
    assert (reported["name"], reported["cluster_key"], reported["start"]) == ("storage-0", str(KEY), 1)
    assert reported["partitions"][0]["last_transaction_id"] == 2


async def test_a_caller_that_goes_away_does_not_interrupt_what_it_began(bench: Bench) -> None:
    await bench.append(1, block(0, [b"a"] * 5))
    task = asyncio.create_task(bench.truncate(2, 1))
    store = await bench.node.partition(0)
    await until(lambda: bool(store._tasks))
    task.cancel()
    with pytest.raises((asyncio.CancelledError, WaltzError)):
        await task
    await until(lambda: not store._tasks)
    assert (await bench.open(2)).last_transaction_id == 1
