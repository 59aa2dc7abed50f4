"""Transactions by id after a feed of headers: which, in what order, from where, and what goes wrong."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import numpy as np
import pytest

from waltz_log.client import ClientSettings, SyncWaltzClient, Transaction, WaltzClient
from waltz_log.client.feed import fetching
from waltz_log.client.feed.decode_feed import decode_block
from waltz_log.errors import CorruptData, InvalidRequest, NotAllowed, OutOfRange, ProtocolViolation, Unavailable
from waltz_log.server import LogServer
from waltz_log.server.mounts import by_id
from waltz_log.statistics import to_json
from waltz_log.testing import InMemoryCluster, SyncInMemoryCluster
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.testing.virtual_time import run_in_virtual_time
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb

SETTINGS = {"transaction_cache_bytes": 1 << 20, "feed_cache_bytes": 1 << 20, "feed_bytes_max": 4096}
STORAGE = {"segment_bytes": 4096, "scrub_bytes_per_s": 0, "disk_warn_free_bytes": 0, "disk_refuse_free_bytes": 0}
COUNT = 200


def _data(number: int) -> bytes:
    return b"%d|" % number + bytes(100)


def _server(cluster: MemoryCluster) -> LogServer:
    return next(server for server, _ in cluster.servers.values() if 0 in server._partitions)


def _reads(cluster: MemoryCluster) -> int:
    """Of replicas by the owner."""
    return int(to_json(_server(cluster)._partitions[0].statistics())["feed"]["reads"])


def _forget(cluster: MemoryCluster, bytes_max: int = 1) -> None:
    """The owner gives up what it may of its memory."""
    for server, _ in cluster.servers.values():
        server._caches.transactions.bytes_max = server._caches.frames.bytes_max = bytes_max
        server._caches.transactions.changed(0)


def _scenario(run: Callable[[MemoryCluster, WaltzClient], Awaitable[None]], servers: int = 1) -> None:
    """On a log of `COUNT` transactions."""

    async def main() -> None:
        cluster = MemoryCluster(servers=servers, settings=dict(SETTINGS), storage_settings=dict(STORAGE), delay_s=lambda: 0.001)
        await cluster.start()
        client = await cluster.connect()
        for first in range(0, COUNT, 4):
            await asyncio.gather(*(client.append(0, _data(number), header=number) for number in range(first, first + 4)))
        await run(cluster, client)
        await client.close()
        await cluster.stop()

    run_in_virtual_time(main())


def _check(found: list[Transaction], ids: Iterable[int]) -> None:
    assert [(each.transaction_id, each.data, each.header) for each in found] == [(number, _data(number), number) for number in ids]


def test_after_a_feed_of_headers_the_data_of_some_is_fetched_in_the_order_asked_for() -> None:
    async def run(cluster: MemoryCluster, client: WaltzClient) -> None:
        headers = []
        async for each in client.feed(0, data=False):
            headers.append(each)
            if len(headers) == COUNT:
                break
        assert {each.data for each in headers} == {b""}
        wanted = [each.transaction_id for each in headers if each.header % 3 == 0][::-1]
        found = await client.fetch(0, wanted)
        _check(found, wanted)
        assert [each._replace(data=b"") for each in found] == [headers[number] for number in wanted]
        _check(await client.fetch(0, [7, 3, 7, 199, 0, 3]), [7, 3, 7, 199, 0, 3])
        _check(await client.fetch(0, iter(np.array([5, 4]))), [5, 4])
        assert await client.fetch(0, []) == []

    _scenario(run)


@pytest.mark.parametrize("ids", [range(COUNT), range(0, COUNT, 2), [0, 99, 100, 101, 199]])
def test_only_blocks_that_the_owner_does_not_have_in_memory_are_read_from_a_replica(ids: Iterable[int]) -> None:
    async def run(cluster: MemoryCluster, client: WaltzClient) -> None:
        before = _reads(cluster)
        _check(await client.fetch(0, ids), ids)
        assert _reads(cluster) == before
        _forget(cluster)
        _check(await client.fetch(0, ids), ids)
        assert _reads(cluster) > before

    _scenario(run)


def test_many_ids_need_few_requests_and_each_answer_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[int] = []
    answer = LogServer._transactions

    async def counted(self: LogServer, request: pb.TransactionRequest) -> pb.TransactionResponse:
        found = await answer(self, request)
        answers.append(sum(len(block.records) for block in found.blocks))
        return found

    monkeypatch.setattr(LogServer, "_transactions", counted)

    async def run(cluster: MemoryCluster, client: WaltzClient) -> None:
        await client.fetch(0, [5, 6, 9])
        assert len(answers) == 1
        answers.clear()
        await client.fetch(0, range(COUNT))
        assert len(answers) <= COUNT * 150 / 4096 + 4
        assert max(answers) <= 4096
        answers.clear()
        _forget(cluster)
        before = _reads(cluster)
        await client.fetch(0, range(0, COUNT, 2))
        assert len(answers) <= COUNT / 2 / by_id.READS_MAX + 1
        assert _reads(cluster) - before <= COUNT / 2 + 2 * len(answers), "each is read alone, and hardly one twice"

    _scenario(run)


def test_an_id_that_is_not_in_the_log_is_named_with_what_is() -> None:
    async def run(cluster: MemoryCluster, client: WaltzClient) -> None:
        for ids in ([5, COUNT], [COUNT + 7, COUNT]):
            with pytest.raises(OutOfRange) as beyond:
                await client.fetch(0, ids)
            assert (beyond.value.asked, beyond.value.first, beyond.value.last) == (COUNT, 0, COUNT - 1)
        with pytest.raises(OutOfRange):
            await client.fetch(0, [2**63 - 1])
        _server(cluster)._partitions[0]._serving.store.first_transaction_id = 50  # type: ignore[union-attr]
        with pytest.raises(OutOfRange) as trimmed:
            await client.fetch(0, [60, 49, 199])
        assert (trimmed.value.asked, trimmed.value.first, trimmed.value.last) == (49, 50, COUNT - 1)
        _check(await client.fetch(0, [50]), [50])

    _scenario(run)


@pytest.mark.parametrize("ids", [[-1], [True], [1.0], ["1"], [None], [2**63]])
def test_an_invalid_id_is_refused_before_it_is_sent(ids: Any) -> None:
    async def run(cluster: MemoryCluster, client: WaltzClient) -> None:
        with pytest.raises(InvalidRequest, match="transaction id"):
            await client.fetch(0, ids)
        with pytest.raises(InvalidRequest, match="no such partition"):
            await client.fetch(7, [0])
        with pytest.raises(InvalidRequest, match="timeout"):
            await client.fetch(0, [0], timeout_s=-1)
        with pytest.raises(Unavailable, match="within 0 s"):
            await client.fetch(0, [0], timeout_s=0)

    _scenario(run)


def test_one_call_is_bounded_in_ids_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "IDS_MAX", 100)
    monkeypatch.setattr(fetching, "BYTES_MAX", 50 * len(_data(100)))

    async def run(cluster: MemoryCluster, client: WaltzClient) -> None:
        assert len(await client.fetch(0, range(100, 150))) == 50
        with pytest.raises(InvalidRequest, match="more than 5200 bytes"):
            await client.fetch(0, range(100, 151))
        with pytest.raises(InvalidRequest, match="more than 100 transactions"):
            await client.fetch(0, (number % 10 for number in range(10**9)))

    _scenario(run)


@pytest.mark.parametrize("packed", [bytes(7), struct.pack(">2q", 5, 5), struct.pack(">2q", 5, 4), struct.pack(">q", -1), bytes(8 * 65537)])
def test_ids_that_no_client_sends_are_refused(packed: bytes) -> None:
    async def run(cluster: MemoryCluster, client: WaltzClient) -> None:
        channel = cluster.network.connect(_server(cluster).address)
        request = pb.TransactionRequest(partition=0, cluster_key=cluster.key.bytes, transaction_ids=packed)
        with pytest.raises(InvalidRequest, match="transaction ids"):
            await channel.call(methods.TRANSACTIONS, request, timeout_s=5)

    _scenario(run)


def test_a_replica_that_is_corrupt_or_stalls_is_passed_over() -> None:
    async def run(cluster: MemoryCluster, client: WaltzClient) -> None:
        for name in ("storage-0", "storage-1"):
            disk = cluster.disks[name]
            for file in sorted(each for each in disk.list("0") if each.endswith(".seg"))[:-1]:
                content = bytearray(disk.content(f"0/{file}"))
                for at in range(600, len(content), 60):
                    content[at] ^= 1
                disk.replace(f"0/{file}", bytes(content))
        _forget(cluster)
        wanted = list(range(0, 150, 7))
        _check(await client.fetch(0, wanted), wanted)
        store = _server(cluster)._partitions[0]._serving.store  # type: ignore[union-attr]
        assert sum(store.source(name).corrupt_reads for name in ("storage-0", "storage-1")) > 0

    _scenario(run)


def test_a_change_of_owner_meanwhile_is_followed() -> None:
    async def run(cluster: MemoryCluster, client: WaltzClient) -> None:
        _forget(cluster)
        wanted = [3, 150, 9]
        owner = next(name for name, (server, _) in cluster.servers.items() if 0 in server._partitions)
        fetching_them = asyncio.ensure_future(client.fetch(0, wanted, timeout_s=60))
        await asyncio.sleep(0.0015)
        await cluster.kill_server(owner)
        _check(await fetching_them, wanted)

    _scenario(run, servers=2)


def test_a_deposed_owner_says_of_no_id_that_it_is_not_in_the_log() -> None:
    async def run(cluster: MemoryCluster, client: WaltzClient) -> None:
        old = _server(cluster)
        asked: list[int] = []
        store = old._partitions[0]._serving.store  # type: ignore[union-attr]
        confirm = store.confirm

        async def confirmed() -> None:
            asked.append(store.committed)
            if len(asked) == 1:
                store.committed = COUNT - 1  # it was behind only
            await confirm()

        store.confirm = confirmed  # type: ignore[method-assign]
        store.committed = COUNT - 5
        _check(await client.fetch(0, [COUNT - 1]), [COUNT - 1])
        assert asked == [COUNT - 5]

    _scenario(run)


def test_an_answer_that_is_not_what_was_asked_for_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(cluster: MemoryCluster, client: WaltzClient) -> None:
        gather = by_id.gather
        wrongs: list[Callable[[list[Any]], list[Any]]] = [lambda _: [], lambda blocks: blocks[1:] + blocks[:1]]
        for wrong in wrongs:

            async def other(*given: Any, wrong: Any = wrong) -> Any:
                return wrong(await gather(*given))

            monkeypatch.setattr("waltz_log.server.partition.open_partition.gather", other)
            with pytest.raises(ProtocolViolation, match="not the transactions asked for"):
                await client.fetch(0, [1, 3, 5])

    _scenario(run)


def test_an_answer_that_is_damaged_on_its_way_is_requested_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a feed: twice in a row for each request, and the third damaged answer is the error (docs/decisions, 32)."""
    asked: list[int] = []
    damaged: list[bool] = []
    decode = decode_block

    def arriving(block: pb.Block, partition: int) -> list[Transaction]:
        asked.append(block.first_transaction_id)
        if damaged and damaged.pop(0):
            raise CorruptData(where="feed of partition 0", offset=0, transaction_id=block.first_transaction_id, reason="planted")
        return decode(block, partition)

    async def run(cluster: MemoryCluster, client: WaltzClient) -> None:
        monkeypatch.setattr(fetching, "decode_block", arriving)
        monkeypatch.setattr(fetching, "IDS_A_REQUEST", 1)
        damaged.extend([True, True, False] * 2)
        _check(await client.fetch(0, [3, 5]), [3, 5])
        assert asked == [3, 3, 3, 5, 5, 5]
        damaged.extend([True] * 3 + [False])
        with pytest.raises(CorruptData, match="planted"):
            await client.fetch(0, [3])
        assert damaged == [False]

    _scenario(run)


async def test_who_may_not_read_a_topic_fetches_nothing_and_who_may_gets_key_and_value() -> None:
    async with InMemoryCluster(storages=1, servers=1) as cluster:
        await cluster.create_topic("shop/secret", keyed=True, properties={"allow-read": "reader"})
        writer = await cluster.client(ClientSettings(principal="writer"))
        topic = await writer.topic("shop/secret")
        for number in range(3):
            await topic.append(b"%d" % number, key=b"k")
        with pytest.raises(NotAllowed):
            await topic.fetch(0, [0])
        with pytest.raises(NotAllowed):
            await writer.fetch(topic.log_partition(0), [0])
        reader = await (await cluster.client(ClientSettings(principal="reader"))).topic("shop/secret")
        found = await reader.fetch(0, [2, 0])
        assert [(each.transaction_id, each.key, each.value) for each in found] == [(2, b"k", b"2"), (0, b"k", b"0")]
        with pytest.raises(InvalidRequest, match="partition"):
            await reader.fetch(1, [0])


def test_the_blocking_client_fetches_the_same() -> None:
    with SyncInMemoryCluster(storages=1, servers=1) as cluster:
        cluster.create_topic("shop/orders")
        client: SyncWaltzClient = cluster.client()
        topic = client.topic("shop/orders")
        for number in range(5):
            topic.append(b"%d" % number)
        partition = topic.log_partitions[0]
        assert [each.data for each in client.fetch(partition, iter([4, 0, 4]))] == [b"4", b"0", b"4"]
        assert [each.value for each in topic.fetch(0, [1])] == [b"1"]
        with pytest.raises(OutOfRange):
            client.fetch(partition, [5])
        with pytest.raises(InvalidRequest):
            client.fetch(partition, [-1])
