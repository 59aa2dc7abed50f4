"""Feeds, followers and transactions against a scripted cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import pytest

from waltz_log.client import Lock, Receipt, Transaction, TransactionContext, WaltzClient
from waltz_log.core.formats.block import Block
from waltz_log.errors import CorruptData, InvalidRequest, LockConflict, NotAppended, OutcomeUnknown, OutOfRange, ProtocolViolation, WaltzError
from waltz_log.testing.network import MemoryNetwork
from waltz_log.testing.scripted_server import ScriptedCluster, ScriptedServer
from waltz_log.transport import waltz_pb2 as pb

Connect = Callable[..., Awaitable[WaltzClient]]


async def first_of(client: WaltzClient, count: int, after: int = -1, *, data: bool = True) -> list[Transaction]:
    found: list[Transaction] = []
    async with asyncio.timeout(5), aclosing(client.feed(0, after, data)) as feed:
        async for transaction in feed:
            found.append(transaction)
            if len(found) == count:
                break
    return found


async def append(client: WaltzClient, count: int) -> None:
    await asyncio.gather(*[await client.append_nowait(0, b"%d" % n, header=n) for n in range(count)])


# ---- the feed ------------------------------------------------------------------------------------------------------------------------------------


async def test_a_feed_gives_every_transaction_with_its_data(client: WaltzClient) -> None:
    await append(client, 100)
    found = await first_of(client, 100)
    assert [(each.transaction_id, each.data, each.header) for each in found] == [(n, b"%d" % n, n) for n in range(100)]
    assert {each.client_id for each in found} == {client.client_id}
    assert [each.sequence for each in found] == list(range(1, 101))
    assert all(each.timestamp_ms >= 1_600_000_000_000 for each in found)


async def test_a_feed_starts_after_any_position_and_waits_for_more(client: WaltzClient) -> None:
    await append(client, 10)
    waiting = asyncio.create_task(first_of(client, 5, after=7))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    await append(client, 3)
    assert [each.transaction_id for each in await waiting] == [8, 9, 10, 11, 12]


async def test_a_feed_without_data_gives_headers(client: WaltzClient) -> None:
    await append(client, 5)
    assert [(each.transaction_id, each.header, each.data) for each in await first_of(client, 5, data=False)] == [(n, n, b"") for n in range(5)]


@pytest.mark.parametrize("announce", [True, False])
async def test_a_feed_goes_on_over_changes_of_owner_without_gap_or_repeat(
    client: WaltzClient, cluster: ScriptedCluster, network: MemoryNetwork, announce: bool
) -> None:
    reading = asyncio.create_task(first_of(client, 500))
    for n in range(5):
        await append(client, 100)
        if n % 2:
            network.cut(cluster.servers[n % 2].address)
            network.heal(cluster.servers[n % 2].address)
        await cluster.move(0, 1 + (n + 1) % 2, notify=announce)
    assert [each.transaction_id for each in await reading] == list(range(500))
    assert cluster.servers[1].mounts > 1


async def test_a_feed_reads_ahead_no_more_than_flow_control_allows(client: WaltzClient, cluster: ScriptedCluster) -> None:
    for _ in range(50):
        await client.append(0, b"")
    sent = 0
    original = ScriptedServer.feed_frame

    def counted(block: Block, feed: pb.FeedMode.ValueType) -> pb.FeedFrame:
        nonlocal sent
        sent += 1
        return original(cluster.servers[0], block, feed)

    cluster.servers[0].feed_frame = counted  # type: ignore[method-assign]
    async with aclosing(client.feed_batches(0)) as batches:
        await anext(batches)
        await asyncio.sleep(0.02)
        assert sent < 20


Spoil = Callable[[pb.FeedFrame], None]


def _drop_one(frame: pb.FeedFrame) -> None:
    first = int.from_bytes(frame.blocks[0].lengths[:4], "big")
    frame.blocks[0].lengths, frame.blocks[0].records = frame.blocks[0].lengths[4:], frame.blocks[0].records[first:]


def _repeat(frame: pb.FeedFrame) -> None:
    frame.blocks[0].lengths, frame.blocks[0].records = frame.blocks[0].lengths * 2, frame.blocks[0].records * 2


def _cut(frame: pb.FeedFrame) -> None:
    frame.blocks[0].records = frame.blocks[0].records[:-1]


def _cut_lengths(frame: pb.FeedFrame) -> None:
    frame.blocks[0].lengths = frame.blocks[0].lengths[:-1]


def _garbage(frame: pb.FeedFrame) -> None:
    frame.blocks[0].lengths = b"\xff" * 8


def _trailing(frame: pb.FeedFrame) -> None:
    frame.blocks[0].records += b"more"


def _empty(frame: pb.FeedFrame) -> None:
    frame.ClearField("blocks")


def _corrupt(frame: pb.FeedFrame) -> None:
    spoiled = bytearray(frame.blocks[0].records)
    spoiled[37] ^= 1
    frame.blocks[0].records = bytes(spoiled)


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (_drop_one, ProtocolViolation),
        (_repeat, ProtocolViolation),
        (_cut, ProtocolViolation),
        (_cut_lengths, ProtocolViolation),
        (_garbage, ProtocolViolation),
        (_trailing, ProtocolViolation),
        (_empty, ProtocolViolation),
        (_corrupt, CorruptData),
    ],
)
async def test_a_feed_that_is_not_what_the_log_holds_ends_with_an_error(
    client: WaltzClient, cluster: ScriptedCluster, spoil: Spoil, error: type[WaltzError]
) -> None:
    await append(client, 10)
    original = ScriptedServer.feed_frame

    def spoiled(block: Block, feed: pb.FeedMode.ValueType) -> pb.FeedFrame:
        frame = original(cluster.servers[0], block, feed)
        spoil(frame)
        return frame

    cluster.servers[0].feed_frame = spoiled  # type: ignore[method-assign]
    with pytest.raises(error):
        await first_of(client, 1)


async def test_a_frame_that_changed_on_its_way_is_asked_for_again(
    client: WaltzClient, cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await append(client, 10)
    original, frames = cluster.servers[0].feed_frame, 0

    def spoiled(block: Block, feed: pb.FeedMode.ValueType) -> pb.FeedFrame:
        nonlocal frames
        frames += 1
        frame = original(block, feed)
        if frames <= 2:
            _corrupt(frame)
        return frame

    monkeypatch.setattr(cluster.servers[0], "feed_frame", spoiled)
    assert [each.transaction_id for each in await first_of(client, 10)] == list(range(10))
    assert frames >= 3


@pytest.mark.parametrize("cut", [1, 35])
async def test_headers_that_are_cut_off_end_the_feed(client: WaltzClient, cluster: ScriptedCluster, cut: int) -> None:
    await append(client, 10)
    original = ScriptedServer.feed_frame

    def spoiled(block: Block, feed: pb.FeedMode.ValueType) -> pb.FeedFrame:
        frame = original(cluster.servers[0], block, feed)
        frame.blocks[0].records = frame.blocks[0].records[cut:]
        return frame

    cluster.servers[0].feed_frame = spoiled  # type: ignore[method-assign]
    with pytest.raises(ProtocolViolation):
        await first_of(client, 1, data=False)


async def test_positions_outside_the_log_are_reported(client: WaltzClient, cluster: ScriptedCluster) -> None:
    for _ in range(3):
        await append(client, 2)
    cluster.logs[0].trim(2)
    with pytest.raises(OutOfRange):
        await first_of(client, 1)
    with pytest.raises(OutOfRange):
        await first_of(client, 1, after=6)
    with pytest.raises(InvalidRequest):
        await first_of(client, 1, after=-2)
    assert (await first_of(client, 1, after=1))[0].transaction_id == 2


async def test_closing_the_client_ends_its_feeds(connect: Connect) -> None:
    client = await connect()
    reading = asyncio.create_task(first_of(client, 1))
    await asyncio.sleep(0.01)
    await client.close()
    with pytest.raises(InvalidRequest, match="closed"):
        await reading


# ---- followers -----------------------------------------------------------------------------------------------------------------------------------


async def test_a_follower_applies_in_order_and_reports_its_mark(client: WaltzClient) -> None:
    applied: list[int] = []

    async def apply(batch: list[Transaction]) -> None:
        await asyncio.sleep(0)
        applied.extend(each.transaction_id for each in batch)

    follower = await client.follow(0, apply)
    assert follower.applied == -1
    await append(client, 20)
    await follower.wait(19)
    assert applied == list(range(20))
    assert follower.applied == 19
    await follower.close()
    with pytest.raises(InvalidRequest, match="closed"):
        await follower.wait(20)


async def test_all_callers_that_wait_for_a_failed_follower_get_its_error(client: WaltzClient) -> None:
    def apply(batch: list[Transaction]) -> None:
        raise ValueError("cannot apply")

    follower = await client.follow(0, apply)
    waiting = asyncio.create_task(follower.wait(0))
    await append(client, 1)
    with pytest.raises(ValueError, match="cannot apply"):
        await waiting
    assert follower.applied == -1
    assert isinstance(follower.error, ValueError)


async def test_the_followers_mark_is_the_mark_of_appends_with_locks(client: WaltzClient, connect: Connect) -> None:
    other = await connect()
    held = asyncio.Event()
    seen: list[Transaction] = []

    async def apply(batch: list[Transaction]) -> None:
        await held.wait()
        seen.extend(batch)

    follower = await client.follow(0, apply)
    await other.append(0, b"other", write_locks=[Lock("x", 1)])
    with pytest.raises(LockConflict):
        await client.append(0, b"mine", write_locks=[Lock("x", 1)])
    held.set()
    await follower.wait(0)
    assert (await client.append(0, b"mine", write_locks=[Lock("x", 1)])).transaction_id == 1


# ---- transactions --------------------------------------------------------------------------------------------------------------------------------


class Counter:
    """Dense numbers per key, which only the locks keep dense."""

    def __init__(self) -> None:
        self.last: dict[bytes, int] = {}

    def apply(self, batch: list[Transaction]) -> None:
        for each in batch:
            key, _, number = each.data.partition(b":")
            assert int(number) == self.last.get(key, 0) + 1
            self.last[key] = int(number)


async def test_concurrent_transactions_number_their_keys_densely(connect: Connect) -> None:
    async def one(worker: int) -> int:
        client = await connect()
        counter = Counter()
        follower = await client.follow(0, counter.apply)
        runs = 0

        @client.transactional(follower, attempts=100)
        async def count(tx: TransactionContext, key: bytes) -> None:
            nonlocal runs
            runs += 1
            tx.append(b"%s:%d" % (key, counter.last.get(key, 0) + 1), write_locks=[Lock("key", key.decode())])

        for n in range(30):
            receipt = await count([b"a", b"b"][n % 2])
            await follower.wait(receipt.transaction_id)
        return runs

    runs = await asyncio.gather(*(one(worker) for worker in range(3)))
    assert sum(runs) > 90  # they did conflict
    watcher = await connect()
    counter = Counter()
    follower = await watcher.follow(0, counter.apply)
    await follower.wait(89)
    assert counter.last == {b"a": 45, b"b": 45}


async def test_a_transaction_runs_again_only_after_it_has_seen_the_winner(connect: Connect) -> None:
    mine, other = await connect(), await connect()
    held = asyncio.Event()
    marks: list[int] = []

    async def apply(batch: list[Transaction]) -> None:
        await held.wait()

    follower = await mine.follow(0, apply)

    @mine.transactional(follower)
    async def body(tx: TransactionContext) -> None:
        marks.append(tx.high_water_mark)
        if tx.attempt == 1:
            await other.append(0, b"faster", write_locks=[Lock("x", 1)])
        tx.append(b"mine", write_locks=[Lock("x", 1)])

    running = asyncio.create_task(body())
    await asyncio.sleep(0.05)
    assert marks == [-1]
    held.set()
    assert isinstance(await running, Receipt)
    assert marks == [-1, 0]


async def test_a_function_that_appends_nothing_returns_nothing(client: WaltzClient, cluster: ScriptedCluster) -> None:
    follower = await client.follow(0, lambda batch: None)

    @client.transactional(follower)
    def nothing(tx: TransactionContext) -> None:
        return

    assert await nothing() is None
    assert cluster.logs[0].frames == 0


async def test_a_transaction_appends_once_and_errors_of_the_function_are_its_callers(client: WaltzClient, cluster: ScriptedCluster) -> None:
    follower = await client.follow(0, lambda batch: None)

    @client.transactional(follower)
    def twice(tx: TransactionContext) -> None:
        tx.append(b"1")
        tx.append(b"2")

    with pytest.raises(InvalidRequest, match="once"):
        await twice()
    assert cluster.logs[0].frames == 0


async def test_a_transaction_gives_up_after_its_attempts_and_in_its_time(connect: Connect) -> None:
    mine, other = await connect(), await connect()
    follower = await mine.follow(0, lambda batch: None)
    runs = 0

    async def body(tx: TransactionContext) -> None:
        nonlocal runs
        runs += 1
        await other.append(0, b"faster", write_locks=[Lock("x", 1)])
        tx.append(b"mine", write_locks=[Lock("x", 1)])

    with pytest.raises(LockConflict):
        await mine.transactional(follower, attempts=3)(body)()
    assert runs == 3
    with pytest.raises((LockConflict, NotAppended, OutcomeUnknown)):  # wherever the deadline finds it
        await mine.transactional(follower, attempts=10**9, timeout_s=0.1)(body)()
    with pytest.raises(InvalidRequest):
        mine.transactional(follower, attempts=0)


async def test_a_transaction_of_a_dead_follower_raises_what_ended_it(client: WaltzClient) -> None:
    follower = await client.follow(0, lambda batch: None)
    await follower.close()

    @client.transactional(follower)
    def body(tx: TransactionContext) -> None:
        tx.append(b"")

    with pytest.raises(InvalidRequest, match="closed"):
        await body()
