"""Feeds of one owner: over the hand-over between memory and replicas, shared by readers, and in bounded memory with any slow reader."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from waltz_log.client import ClientSettings, WaltzClient
from waltz_log.client.feed.decode_feed import decode_feed
from waltz_log.server import LogServer
from waltz_log.server.replication.block_stream import BlockStream
from waltz_log.server.replication.replica_session import ReplicaSession
from waltz_log.statistics import to_json
from waltz_log.storage.node.service import _Service
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.testing.virtual_time import run_in_virtual_time
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.methods import MountStream

FEEDS = [pb.FEED_RECORDS, pb.FEED_HEADERS]
FRAME_BYTES = 65536
SMALL = {"transaction_cache_bytes": 1 << 20, "feed_cache_bytes": 1 << 20, "feed_bytes_max": 4096}


def _server(cluster: MemoryCluster) -> LogServer:
    (server,) = (server for server, _ in cluster.servers.values())
    return server


def _statistics(cluster: MemoryCluster, partition: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = to_json(_server(cluster)._partitions[partition].statistics())
    return found


def _shrink(cluster: MemoryCluster, bytes_max: int) -> None:
    """Far less than an operator may choose."""
    caches = _server(cluster)._caches
    caches.transactions.bytes_max = caches.frames.bytes_max = bytes_max


@asynccontextmanager
async def _mounted(cluster: MemoryCluster, feed: pb.FeedMode.ValueType, *, after: int = -1, **given: Any) -> AsyncIterator[MountStream]:
    stream = cluster.network.connect(_server(cluster).address).open(methods.MOUNT)
    request = pb.MountRequest(
        protocol_version=methods.PROTOCOL_VERSION, cluster_key=cluster.key.bytes, client_high_water_mark=after, feed=feed, **given
    )
    try:
        await stream.send(pb.ClientMessage(mount=request))
        yield stream
    finally:
        await stream.cancel()


async def _read(stream: MountStream, feed: pb.FeedMode.ValueType, after: int, last: int, pause: random.Random | None = None) -> list[Any]:
    """The transactions up to `last`; `decode_feed` refuses a gap and a repeat."""
    seen: list[Any] = []
    kept: list[Any] = []
    while after < last:
        message = await stream.receive()
        assert message is not None
        if message.WhichOneof("kind") == "feed":
            seen += decode_feed(message.feed, 0, after + 1, data=feed == pb.FEED_RECORDS)
            after = seen[-1].transaction_id
            if pause is not None and pause.random() < len(seen) / 100:
                seen, kept = [], [*kept, *seen]
                await asyncio.sleep(pause.uniform(0.5, 1.5))
    return kept + seen


async def _filled(count: int, **settings: Any) -> tuple[MemoryCluster, WaltzClient]:
    cluster = MemoryCluster(servers=1, settings=settings or SMALL, delay_s=lambda: 0.001)
    await cluster.start()
    client = await cluster.connect()
    for first in range(0, count, 4):
        await asyncio.gather(*(client.append(0, str(number).encode()) for number in range(first, min(first + 4, count))))
    return cluster, client


async def _end(cluster: MemoryCluster, *clients: WaltzClient) -> None:
    for client in clients:
        await client.close()
    await cluster.stop()


@pytest.mark.parametrize("feed", FEEDS)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_reader_is_handed_over_between_replicas_and_memory_and_back_without_gap_or_repeat(feed: pb.FeedMode.ValueType, seed: int) -> None:
    async def scenario() -> None:
        cluster, client = await _filled(100)
        _shrink(cluster, 3000)
        chance = random.Random(seed)

        async def appending() -> None:
            for number in range(100, 600):
                await client.append(0, str(number).encode())
                await asyncio.sleep(chance.choice((0, 0, 0, 0.02)))

        states: set[int] = set()

        async def watching() -> None:
            while True:
                states.add(_statistics(cluster)["catching_up"])
                await asyncio.sleep(0.01)

        tasks = [asyncio.ensure_future(appending()), asyncio.ensure_future(watching())]
        async with _mounted(cluster, feed) as stream:
            seen = await _read(stream, feed, -1, 599, pause=chance)
        assert [each.transaction_id for each in seen] == list(range(600))
        if feed == pb.FEED_RECORDS:
            assert [each.data for each in seen] == [str(number).encode() for number in range(600)]
        assert states == {0, 1}, "it was near and behind in turn"
        assert _statistics(cluster)["feed"]["reads"] > 3
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await _end(cluster, client)

    run_in_virtual_time(scenario())


@pytest.mark.parametrize("feed", FEEDS)
def test_equal_readers_cost_the_replicas_and_the_encoder_once(feed: pb.FeedMode.ValueType, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        reads: list[int] = []
        honest = _Service.read

        async def counted(self: Any, request: Any, stream: Any) -> None:
            reads.append(request.first_transaction_id)
            await honest(self, request, stream)

        monkeypatch.setattr(_Service, "read", counted)
        cluster, client = await _filled(300)
        _shrink(cluster, 1)  # nothing stays in memory
        await client.append(0, b"300")
        _shrink(cluster, 100_000)
        reads.clear()
        made = _statistics(cluster)["feed"]["frames_made"]

        async def one() -> int:
            async with _mounted(cluster, feed) as stream:
                return len(await _read(stream, feed, -1, 300))

        assert await asyncio.gather(*(one() for _ in range(10))) == [301] * 10
        assert len(reads) == len(set(reads)), "something was read twice"
        reported = _statistics(cluster)["feed"]
        assert reported["frames_made"] - made <= len(reads) + 2
        assert reported["frames_shared"] >= 9 * len(reads)
        assert reported["joined"] > 0
        await _end(cluster, client)

    run_in_virtual_time(scenario())


def test_readers_at_different_places_meet_at_what_one_of_them_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        cluster, client = await _filled(300)
        _shrink(cluster, 1)
        await client.append(0, b"300")
        _shrink(cluster, 100_000)
        for after in (-1, 20, 137):
            async with _mounted(cluster, pb.FEED_RECORDS, after=after) as stream:
                await _read(stream, pb.FEED_RECORDS, after, 300)
        reads = _statistics(cluster)["feed"]["reads"]
        async with _mounted(cluster, pb.FEED_RECORDS, after=55) as stream:
            await _read(stream, pb.FEED_RECORDS, 55, 300)
        assert _statistics(cluster)["feed"]["reads"] == reads
        await _end(cluster, client)

    run_in_virtual_time(scenario())


@pytest.mark.parametrize("feed", FEEDS)
def test_a_frame_holds_several_append_times_up_to_the_cap_and_reports_each(feed: pb.FeedMode.ValueType) -> None:
    async def scenario() -> None:
        cluster, client = await _filled(0, **(SMALL | {"feed_bytes_max": 1 << 20}))
        times = []
        for _ in range(50):
            times.append((await client.append(0, bytes(200))).append_time_ms)
            await asyncio.sleep(0.003)
        assert len(set(times)) == 50
        async with _mounted(cluster, feed) as stream:
            message = await stream.receive()
        assert message is not None
        batch = decode_feed(message.feed, 0, 0, data=feed == pb.FEED_RECORDS)
        assert [each.timestamp_ms for each in batch] == times
        await _end(cluster, client)

    run_in_virtual_time(scenario())


def test_a_client_that_reads_nothing_is_not_served_on_and_delays_no_other() -> None:
    async def scenario() -> None:
        cluster, client = await _filled(10, **(SMALL | {"answers_max": 16}))
        _shrink(cluster, 10_000)
        sent = 0

        async def flooding(stream: MountStream) -> None:
            nonlocal sent
            while True:
                sent += 1
                await stream.send(pb.ClientMessage(flush=pb.FlushRequest(flush_id=sent)))

        async with _mounted(cluster, pb.FEED_RECORDS, client_id=99, mount_sequence=1) as stream:
            flood = asyncio.ensure_future(flooding(stream))
            reader = await cluster.connect()
            seen: list[int] = []
            follower = await reader.follow(0, lambda batch: seen.extend(each.transaction_id for each in batch))
            for number in range(400):
                await client.append(0, bytes(100), timeout_s=5)
                if number == 200:
                    before = sent
            await follower.wait(409)
            assert seen == list(range(410))
            assert sent == before, "it is still listened to"
            (mount,) = (mount for mount in _server(cluster)._partitions[0]._serving.mounts if mount.client_id == 99)  # type: ignore[union-attr]
            assert len(mount._outgoing) + mount._flushes <= 17
            caches = _server(cluster)._caches
            assert caches.transactions.held_bytes <= 10_000
            assert caches.frames.held_bytes <= 10_000
            flood.cancel()
            await asyncio.gather(flood, return_exceptions=True)
        await _end(cluster, client, reader)

    run_in_virtual_time(scenario())


def _hold(cluster: MemoryCluster, partition: int, *names: str) -> asyncio.Event:
    """The nodes write nothing of the partition until the event."""
    gate = asyncio.Event()
    for name in names:
        node, _ = cluster.storages[name]
        store = node._partitions[partition]
        honest = store.append

        async def held(appender: Any, block: Any, honest: Any = honest) -> None:
            await gate.wait()
            await honest(appender, block)

        store.append = held  # type: ignore[method-assign]
    return gate


def test_a_slow_replica_slows_no_other_and_holds_no_more_than_its_bound() -> None:
    async def scenario() -> None:
        in_flight_max = 65536
        cluster, client = await _filled(10, **(SMALL | {"replica_bytes_in_flight": in_flight_max}))
        _shrink(cluster, 200_000)
        gate = _hold(cluster, 0, "storage-2")
        held: list[int] = []
        loop = asyncio.get_running_loop()
        began = loop.time()
        for _ in range(100):
            await asyncio.gather(*(client.append(0, bytes(20_000)) for _ in range(4)))
            held.append(_server(cluster)._caches.transactions.held_bytes)
        assert loop.time() - began < 100 * 0.05
        assert max(held) <= 200_000
        store = _server(cluster)._partitions[0]._serving.store  # type: ignore[union-attr]
        sent = max(each.bytes_in_flight for each in _streams(store.replica("storage-2")))
        assert 0 < sent <= in_flight_max + 81_000, "a block more than the bound at most"
        gate.set()
        async with asyncio.timeout(60):
            while _statistics(cluster)["replicas"]["storage-2"]["acknowledged"] != 409:
                await asyncio.sleep(0.05)
        await _end(cluster, client)

    run_in_virtual_time(scenario())


def _streams(replica: ReplicaSession) -> list[Any]:
    """The block streams of the tasks that run."""
    return [each for each in gc.get_objects() if isinstance(each, BlockStream) and each._name == replica.name]


def test_a_full_queue_slows_its_own_partition_and_no_other_in_bounded_memory() -> None:
    async def scenario() -> None:
        cluster = MemoryCluster(partitions=2, servers=1, settings={"queue_bytes_max": 1 << 20, "block_bytes_max": 4096}, delay_s=lambda: 0.001)
        await cluster.start()
        clients = [await cluster.connect(ClientSettings(frame_bytes=FRAME_BYTES)) for _ in range(4)]
        for partition in (0, 1):
            await clients[0].append(partition, b"first")
        gate = _hold(cluster, 0, "storage-1", "storage-2")

        async def flooding(client: WaltzClient) -> None:
            await asyncio.gather(*(client.append(0, bytes(10_000), timeout_s=3600) for _ in range(300)))

        floods = [asyncio.ensure_future(flooding(client)) for client in clients[1:]]
        queued: list[int] = []
        loop = asyncio.get_running_loop()
        for number in range(100):
            began = loop.time()
            await clients[0].append(1, str(number).encode(), timeout_s=5)
            assert loop.time() - began < 0.1
            queued.append(_statistics(cluster)["queued_bytes"])
            await asyncio.sleep(0.01)
        assert (1 << 20) <= max(queued) < (1 << 20) + len(floods) * FRAME_BYTES, "a frame of each client more than the bound at most"
        assert _statistics(cluster)["last_transaction_id"] < 20, "only what may be in flight was ordered"
        gate.set()
        await asyncio.gather(*floods)
        await _end(cluster, *clients)

    run_in_virtual_time(scenario())


def test_answers_go_out_while_a_replica_that_stalls_is_read_and_the_read_goes_on_at_another(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        stalls, stalled = asyncio.Event(), asyncio.Event()
        honest = _Service.read

        async def stalling(self: Any, request: Any, stream: Any) -> None:
            if stalls.is_set() and not stalled.is_set():
                stalled.set()
                await asyncio.sleep(3600)
            await honest(self, request, stream)

        monkeypatch.setattr(_Service, "read", stalling)
        cluster, client = await _filled(50, **(SMALL | {"rpc_timeout_s": 2.0}))
        _shrink(cluster, 1)
        await client.append(0, b"50")
        stalls.set()
        loop = asyncio.get_running_loop()
        async with _mounted(cluster, pb.FEED_RECORDS, after=50, client_id=77, mount_sequence=1) as stream:
            mounted = await stream.receive()
            assert mounted is not None
            assert mounted.WhichOneof("kind") == "mounted"
            (mount,) = (mount for mount in _server(cluster)._partitions[0]._serving.mounts if mount.client_id == 77)  # type: ignore[union-attr]
            mount._fed = -1  # it fell behind
            await client.append(0, b"51")
            await stalled.wait()
            began = loop.time()
            await stream.send(pb.ClientMessage(flush=pb.FlushRequest(flush_id=1)))
            answer = await stream.receive()
            assert answer is not None
            assert answer.WhichOneof("kind") == "flushed"
            assert loop.time() - began < 0.1
            seen = await _read(stream, pb.FEED_RECORDS, -1, 51)
            assert 1.5 < loop.time() - began < 3.0
            assert len(seen) == 52
        await _end(cluster, client)

    run_in_virtual_time(scenario())


def test_transactions_by_id_are_read_from_a_replica_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        cluster, client = await _filled(50)
        _shrink(cluster, 1)
        await client.append(0, b"50")
        _shrink(cluster, 100_000)
        channel = cluster.network.connect(_server(cluster).address)
        request = pb.TransactionRequest(partition=0, first_transaction_id=7, count=3, cluster_key=cluster.key.bytes)
        answers = await asyncio.gather(*(channel.call(methods.TRANSACTIONS, request, timeout_s=5) for _ in range(10)))
        for answer in answers:
            found = [each for block in answer.blocks for each in decode_feed(pb.FeedFrame(blocks=[block]), 0, block.first_transaction_id, data=True)]
            assert [each.data for each in found] == [b"7", b"8", b"9"]
        assert _statistics(cluster)["feed"]["reads"] == 1
        await _end(cluster, client)

    run_in_virtual_time(scenario())
