"""A client's high-water mark above the log would pass every lock check: the owner refuses it, alone, with both numbers."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from waltz_log.client import Lock, WaltzClient
from waltz_log.core.formats.block import Block
from waltz_log.core.formats.records import encode_record
from waltz_log.core.quotas import Meter, Refusal
from waltz_log.errors import InvalidRequest, LockConflict, NotOwner, WaltzError
from waltz_log.server.base.pulse import Pulse
from waltz_log.server.base.settings import ServerSettings
from waltz_log.server.base.totals import Totals
from waltz_log.server.ordering.sequencer import Answers, ReceivedFrame, Sequencer
from waltz_log.server.partition.append_task import AppendTask
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.transport import waltz_pb2 as pb

HELD = Lock("seat", "12A")
ABOVE = 10**12


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


def _message(marks: Sequence[int], *, first: int = 0, data: bytes = b"x") -> pb.AppendFrame:
    records = [encode_record(7, 1, 0, sequence, 0, data) for sequence in range(first, first + len(marks))]
    return pb.AppendFrame(
        generation=1,
        lengths=struct.pack(f">{len(marks)}i", *map(len, records)),
        marks=struct.pack(f">{len(marks)}q", *marks),
        lock_counts=b"\1\0\0" * len(marks),
        locks=struct.pack(f">{len(marks)}q", *range(len(marks))),
        records=b"".join(records),
    )


@pytest.mark.parametrize("count", [2, 5, 64])
def test_only_the_transactions_with_a_mark_above_the_log_are_refused(count: int) -> None:
    sequencer = Sequencer(0, 1, 9, lock_entries_max=1000, record_bytes_max=1000)
    mount = _Mount()
    marks = [9] * count
    marks[0], marks[-1] = 10, 2**63 - 1
    result = sequencer.sequence([ReceivedFrame(mount, _message(marks))], 0, 9)
    assert result.above_log == [(mount, [(0, 9), (count - 1, 9)])]
    assert result.refused == []
    assert result.committed == ([(mount, [(1, count - 2, 10)])] if count > 2 else [])
    assert [sequencer.locks.last_writer(lock) for lock in (0, count - 1)] == [9, 9], "a refused transaction holds no lock"
    again = sequencer.sequence([ReceivedFrame(mount, _message([9], first=count))], 0, 9)
    assert again.committed[0][1] == [(count, 1, 10 + count - 2)], "the sequences of the refused ones are used"


def test_one_that_is_refused_for_another_reason_is_answered_once() -> None:
    sequencer = Sequencer(0, 1, 9, lock_entries_max=1000, record_bytes_max=10)
    mount = _Mount()
    result = sequencer.sequence([ReceivedFrame(mount, _message([99], data=b"x" * 11))], 0, 9)
    assert (result.refused, result.above_log) == ([(mount, [(0, pb.REFUSAL_TOO_LARGE)])], [])


class _Store:
    """An owner that may have been deposed."""

    def __init__(self) -> None:
        self.committed = 9
        self.received = -1
        self.full = False
        self.partition = 0
        self.blocks: list[Block] = []
        self.advanced = Pulse()
        self.confirmation: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def append(self, block: Block) -> None:
        self.blocks.append(block)

    def hurry(self) -> None:
        return

    async def confirm(self) -> None:
        await asyncio.shield(self.confirmation)


@pytest.fixture
async def bench() -> AsyncIterator[tuple[AppendTask, _Store, list[asyncio.Task[None]]]]:
    store: Any = _Store()
    clock: Any = type("_Clock", (), {"now_ms": lambda self: 5})()
    task = AppendTask(store, Sequencer(0, 1, 9, lock_entries_max=1000, record_bytes_max=1000), clock, ServerSettings(coordinator="x"), 0, Totals())
    loops = [asyncio.ensure_future(task.order()), asyncio.ensure_future(task.refuse_marks())]
    yield task, store, loops
    for loop in loops:
        loop.cancel()
    await asyncio.gather(*loops, return_exceptions=True)


async def _submitted(task: Any, mount: _Mount, message: pb.AppendFrame) -> None:
    await task.submit(mount, message)
    for _ in range(20):
        await asyncio.sleep(0)


async def test_the_refusal_waits_until_the_owner_is_confirmed_and_holds_nothing_else_up(bench: Any) -> None:
    task, store, _ = bench
    mount = _Mount()
    await _submitted(task, mount, _message([99, 9]))
    assert mount.answers == [], "a newer owner may have given the mark"
    assert [block.count for block in store.blocks] == [1]
    all_refused = asyncio.ensure_future(task.marks_refused())
    await asyncio.sleep(0)
    assert not all_refused.done()
    store.confirmation.set_result(None)
    await all_refused
    assert [answers.above_log for answers in mount.answers] == [[(0, 9)]]
    assert task.refused == 1


async def test_an_owner_that_was_deposed_refuses_no_mark(bench: Any) -> None:
    task, store, loops = bench
    mount = _Mount()
    await _submitted(task, mount, _message([99]))
    store.confirmation.set_exception(NotOwner(partition=0, reason="deposed"))
    with pytest.raises(NotOwner):
        await loops[1]
    assert mount.answers == []


async def _cluster() -> tuple[MemoryCluster, WaltzClient]:
    cluster = MemoryCluster(partitions=2)
    await cluster.start()
    return cluster, await cluster.connect()


async def test_a_held_lock_stays_held_and_the_error_has_both_numbers() -> None:
    cluster, client = await _cluster()
    rival = await cluster.connect(seed=1)
    held = await client.append(0, b"Ada", write_locks=[HELD], high_water_mark=-1)
    futures = [
        await rival.append_nowait(0, b"before"),
        await rival.append_nowait(0, b"Bob", write_locks=[HELD], high_water_mark=ABOVE),
        await rival.append_nowait(0, b"without locks", high_water_mark=ABOVE),
        await rival.append_nowait(0, b"after", write_locks=[Lock("seat", "12B")], high_water_mark=held.transaction_id),
    ]
    done = await asyncio.gather(*futures, return_exceptions=True)
    for refused in (done[1], done[2]):
        assert isinstance(refused, InvalidRequest)
        assert f"high_water_mark={ABOVE} newest=" in str(refused)
    assert [each.transaction_id for each in (done[0], done[3]) if not isinstance(each, BaseException)] == [1, 2]
    with pytest.raises(LockConflict) as conflict:
        await rival.append(0, b"Bob", write_locks=[HELD], high_water_mark=-1)
    assert conflict.value.winner == held.transaction_id
    for each in (client, rival):
        await each.close()
    await cluster.stop()


async def test_the_mark_of_another_partition_is_refused_where_it_is_above_the_log() -> None:
    cluster, client = await _cluster()
    far = [await client.append(1, b"%d" % number) for number in range(5)][-1]
    await client.append(0, b"Ada", write_locks=[HELD], high_water_mark=-1)
    with pytest.raises(InvalidRequest, match=f"partition=0 high_water_mark={far.transaction_id} newest=0"):
        await client.append(0, b"Bob", write_locks=[HELD], high_water_mark=far.transaction_id)
    await client.close()
    await cluster.stop()


async def test_marks_that_were_learned_stay_good_over_a_change_of_owner() -> None:
    cluster, client = await _cluster()
    receipt = await client.append(0, b"Ada", write_locks=[HELD], high_water_mark=-1)
    owner = next(name for name, (server, _) in cluster.servers.items() if 0 in server._partitions)
    await cluster.kill_server(owner)
    later = await client.append(0, b"Bob", write_locks=[HELD], high_water_mark=receipt.transaction_id, timeout_s=30)
    assert later.transaction_id > receipt.transaction_id
    await client.close()
    await cluster.stop()


@pytest.mark.parametrize("mark", [-2, 2**63, True, 1.0, "7", None.__class__])
async def test_an_invalid_mark_is_refused_before_it_is_sent(mark: Any) -> None:
    cluster, client = await _cluster()
    with pytest.raises(InvalidRequest, match="high-water mark"):
        await client.append_nowait(0, b"", high_water_mark=mark)
    assert client.unacknowledged() == []
    await client.close()
    await cluster.stop()
