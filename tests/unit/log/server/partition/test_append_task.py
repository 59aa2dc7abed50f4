"""The queue of a partition: what is reported when, and that nothing a client sends ends more than its own stream."""

from __future__ import annotations

import asyncio
import struct
from typing import Any, cast

import pytest

from waltz_log.core.formats.block import Block
from waltz_log.core.formats.records import encode_record
from waltz_log.core.locks.lock_columns import TURN_MARK
from waltz_log.core.quotas import Meter, Rates, Refusal
from waltz_log.errors import CorruptData, WaltzError
from waltz_log.server.base.pulse import Pulse
from waltz_log.server.base.settings import ServerSettings
from waltz_log.server.base.totals import Totals
from waltz_log.server.mounts.mount import Mount
from waltz_log.server.ordering import frame_pieces
from waltz_log.server.ordering.sequencer import Answers, ReceivedFrame, Sequencer
from waltz_log.server.partition.append_task import AppendTask
from waltz_log.transport import waltz_pb2 as pb


class _Store:
    """Commits when the test says so."""

    def __init__(self) -> None:
        self.committed = 9
        self.received = -1
        self.hurried = 0
        self.full = False
        self.partition = 0
        self.blocks: list[Block] = []
        self.advanced = Pulse()

    def append(self, block: Block) -> None:
        self.blocks.append(block)

    def hurry(self) -> None:
        self.hurried += 1

    async def wait_committed(self, transaction_id: int) -> None:
        await self.advanced.wait_for(lambda: self.committed >= transaction_id)

    def receive(self, transaction_id: int) -> None:
        self.received = transaction_id
        self.advanced.notify()

    def commit(self, transaction_id: int) -> None:
        self.committed = transaction_id
        self.advanced.notify()


class _Mount:
    client_id = 7
    on_disk = False
    meter: Meter | None = None
    quota_refusals = 0
    last_sequence = -1
    failed: WaltzError | None = None

    def __init__(self) -> None:
        self.answers: list[Answers] = []

    def answer(self, answers: Answers, append_time_ms: int) -> None:
        self.answers.append(answers)

    def refuse_over_quota(self, sequence: int, refusal: Refusal) -> None:
        raise AssertionError("no quota applies")

    def fail(self, error: WaltzError) -> None:
        self.failed = error


class _Clock:
    def now_ms(self) -> int:
        return 5


def _frame(sequence: int, *, mark: int = 9, lock: int = 1) -> pb.AppendFrame:
    record = encode_record(7, 1, 0, sequence, 0, b"x")
    return pb.AppendFrame(
        generation=1,
        lengths=struct.pack(">i", len(record)),
        marks=struct.pack(">q", mark),
        lock_counts=b"\1\0\0",
        locks=struct.pack(">q", lock),
        records=record,
    )


async def _settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture
async def bench(request: pytest.FixtureRequest) -> Any:
    """Its parameter: `overlap_bytes`, 0 if there is none."""
    store = _Store()
    sequencer = Sequencer(0, 1, 9, lock_entries_max=1000, record_bytes_max=1000)
    settings = ServerSettings(coordinator="x", overlap_bytes=getattr(request, "param", 0))
    task: Any = AppendTask(store, sequencer, _Clock(), settings, 0, Totals())  # type: ignore[arg-type]
    loops = [asyncio.ensure_future(task.order()), asyncio.ensure_future(task.settle(lambda: None)), asyncio.ensure_future(task.watch_space())]
    yield task, store
    assert not any(loop.done() for loop in loops), "a loop of the partition ended"
    for loop in loops:
        loop.cancel()
    await asyncio.gather(*loops, return_exceptions=True)


async def test_a_rejection_waits_for_the_fate_of_the_block_that_won(bench: Any) -> None:
    task, store = bench
    mount = _Mount()
    await task.submit(mount, _frame(0))
    await _settled()
    await task.submit(mount, _frame(1))
    await _settled()
    assert mount.answers == []
    store.commit(10)
    await _settled()
    assert [(answers.committed, answers.rejected) for answers in mount.answers] == [([(0, 1, 10)], [(1, 10)])]


async def test_a_rejection_by_a_committed_winner_is_answered_at_once(bench: Any) -> None:
    task, _ = bench
    mount = _Mount()
    await task.submit(mount, _frame(0, mark=8))
    await _settled()
    assert mount.answers[0].rejected == [(0, 9)]


async def test_asking_for_a_turn_costs_nothing_of_a_quota(bench: Any) -> None:
    task, store = bench
    mount, meter = _Mount(), Meter("a", "", Rates(transactions_per_s=0.001, burst_s=2000), 0.0)
    mount.meter = meter
    for sequence in range(3):
        await task.submit(mount, _frame(sequence, mark=TURN_MARK))
    await _settled()
    bucket = meter._transactions
    assert bucket is not None
    assert bucket.tokens(0.0) == 2
    await task.submit(mount, _frame(3, mark=9))
    await _settled()
    store.commit(10)
    await _settled()
    assert bucket.tokens(0.0) == 1, "what was appended is charged"


async def test_who_asks_for_a_turn_is_answered_in_the_order_of_the_queue_and_lost_no_conflict(bench: Any) -> None:
    task, store = bench
    mount = _Mount()
    await task.submit(mount, _frame(0))
    for sequence in (1, 2):
        await task.submit(mount, _frame(sequence, mark=TURN_MARK))
    await _settled()
    assert (mount.answers, task.waiting) == ([], 2)
    store.commit(10)
    await _settled()
    assert mount.answers[-1].rejected == [(1, 10)]
    await task.submit(mount, _frame(3, mark=10))  # the write of the one whose turn it is
    await _settled()
    store.commit(11)
    await _settled()
    assert mount.answers[-1].rejected == [(2, 11)]
    assert (task.rejected, task.waiting, task.appended_transactions, task.conflicts) == (0, 0, 2, ())
    await task.submit(mount, _frame(4, mark=9))
    await _settled()
    assert (task.rejected, [each.sequence for each in task.conflicts]) == (1, [4])


async def test_a_barrier_reports_when_everything_before_it_is_decided(bench: Any) -> None:
    task, store = bench
    decided: list[int] = []
    task.barrier(decided.append)
    await _settled()
    assert decided == [9]
    await task.submit(_Mount(), _frame(0))
    task.barrier(decided.append)
    await _settled()
    assert decided == [9]
    store.commit(10)
    await _settled()
    assert decided == [9, 10]


async def test_blocks_in_flight_are_bounded_and_the_queue_builds_the_next(bench: Any) -> None:
    task, store = bench
    for sequence in range(6):
        await task.submit(_Mount(), _frame(sequence, lock=sequence))
        await _settled()
    assert [block.count for block in store.blocks] == [1, 1]
    store.commit(10)
    await _settled()
    assert [block.count for block in store.blocks] == [1, 1, 4]


@pytest.mark.parametrize("bench", [3 * ReceivedFrame(cast(Mount, _Mount()), _frame(0)).size], indirect=True)
async def test_a_small_block_waits_until_nothing_is_in_flight_and_a_large_one_does_not(bench: Any) -> None:
    task, store = bench
    for sequence, blocks in enumerate([[1], [1], [1], [1, 3], [1, 3], [1, 3], [1, 3]]):
        await task.submit(_Mount(), _frame(sequence, lock=sequence))
        await _settled()
        assert [block.count for block in store.blocks] == blocks
    store.commit(10)
    await _settled()
    assert [block.count for block in store.blocks] == [1, 3, 3]
    await task.submit(_Mount(), _frame(7, lock=7))
    store.commit(13)
    await _settled()
    assert [block.count for block in store.blocks] == [1, 3, 3]
    store.commit(16)
    await _settled()
    assert [block.count for block in store.blocks] == [1, 3, 3, 1]


def _long_frame(count: int) -> pb.AppendFrame:
    """A piece for each transaction, where a piece has one lock."""
    joined = pb.AppendFrame(generation=1)
    for sequence in range(count):
        frame = _frame(sequence, lock=sequence)
        for column in ("lengths", "marks", "lock_counts", "locks", "records"):
            setattr(joined, column, getattr(joined, column) + getattr(frame, column))
    return joined


async def test_another_client_waits_for_a_piece_of_a_long_frame_and_not_for_all(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_pieces, "PIECE_LOCKS", 1)
    task, store = bench
    long, other = _Mount(), _Mount()
    sending = asyncio.ensure_future(task.submit(long, _long_frame(8)))
    await _settled()
    await task.submit(other, _frame(100, lock=100))
    for transaction_id in range(10, 19):
        store.commit(transaction_id)
        await _settled()
    await sending
    rows = [row for answers in long.answers for row in answers.committed]
    assert [first + at for first, count, _ in rows for at in range(count)] == list(range(8)), "in the order in which they were sent"
    (((_, _, others_id),),) = [answers.committed for answers in other.answers]
    assert others_id <= 13, "two blocks may be in flight, and one piece in the queue"


async def test_of_a_long_frame_nothing_more_is_queued_once_its_mount_has_failed(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_pieces, "PIECE_LOCKS", 1)
    task, store = bench
    long = _Mount()
    sending = asyncio.ensure_future(task.submit(long, _long_frame(8)))
    await _settled()
    long.fail(CorruptData(where="here", offset=0, transaction_id=-1, reason="fenced"))
    task.mount_failed()
    with pytest.raises(CorruptData):
        await sending
    for transaction_id in range(10, 19):
        store.commit(transaction_id)
        await _settled()
    assert sum(block.count for block in store.blocks) <= 3


async def test_while_moving_appends_are_refused_with_an_answer_and_corruption_ends_its_stream_alone(bench: Any) -> None:
    task, store = bench
    task.moving = True
    mount, corrupted = _Mount(), _Mount()
    await task.submit(mount, _frame(4))
    junk = _frame(5)
    junk.records = b"junk"
    await task.submit(corrupted, junk)
    await _settled()
    assert mount.answers[0].refused == [(4, pb.REFUSAL_MOVING)]
    assert isinstance(corrupted.failed, CorruptData)
    assert store.blocks == []


async def test_appends_behind_blocks_in_flight_are_refused_if_replicas_are_full_and_ordered_otherwise(bench: Any) -> None:
    task, store = bench
    mounts = [_Mount() for _ in range(4)]
    for sequence, mount in enumerate(mounts[:3]):
        await task.submit(mount, _frame(sequence, lock=sequence))
        await _settled()
    assert len(store.blocks) == 2
    store.full = True
    store.advanced.notify()
    await _settled()
    assert mounts[2].answers[0].refused == [(2, pb.REFUSAL_STORAGE_FULL)]
    assert mounts[0].answers == mounts[1].answers == []  # some replica may have them: not for this owner to say
    store.full = False
    store.commit(11)
    await task.submit(mounts[3], _frame(3, lock=3))
    await _settled()
    store.commit(12)
    await _settled()
    assert [mount.answers[0].committed for mount in (mounts[0], mounts[1], mounts[3])] == [[(0, 1, 10)], [(1, 1, 11)], [(3, 1, 12)]]
