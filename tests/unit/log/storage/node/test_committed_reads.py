"""A reader gets from a storage node only what is committed, whatever it asks for. The owner of the session reads all, to recover."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from struct import pack
from typing import Any

import pytest

from waltz_log.core.topics.access import CLUSTER_PRINCIPAL
from waltz_log.errors import Fenced, ProtocolViolation
from waltz_log.storage.replica import committed_mark
from waltz_log.storage.replica.committed_mark import CommittedMark
from waltz_log.testing import InMemoryCluster
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb

COMMITTED = 5
"""Transactions before the other replicas stop."""

BEYOND = 1 << 60


class Half:
    """A partition with three replicas of which two have stopped: the last holds one transaction that is not committed."""

    def __init__(self, cluster: InMemoryCluster, name: str) -> None:
        self.cluster, self.name = cluster, name
        node, listener = cluster.storages[name]
        self.node, self.channel = node, cluster.network.connect(listener.address)

    @property
    def fence(self) -> int:
        return self.node.statistics().partitions[0].fence

    async def read(self, **given: Any) -> tuple[int, int]:
        """How many records it answers, and which id it calls its last."""
        about = {"cluster_key": self.cluster.key.bytes, "partition": 0, "session": 0, "last_transaction_id": BEYOND, "max_bytes": 1 << 20}
        stream = self.channel.read(methods.READ, pb.ReadRequest(**{**about, **given}))
        records, last = 0, -1
        while (answer := await stream.receive()) is not None:
            records += sum(len(block.lengths) // 4 for block in answer.blocks)
            last = answer.replica_last_transaction_id
        return records, last


@pytest.fixture
async def half() -> AsyncIterator[Half]:
    async with InMemoryCluster(partitions=1, storages=3, servers=1) as cluster:
        client = await cluster.client()
        for number in range(COMMITTED):
            await client.append(0, b"%d" % number)
        for name in ("storage-1", "storage-2"):
            await cluster.stop_storage(name)
        half = Half(cluster, "storage-0")
        waiting = asyncio.ensure_future(client.append(0, b"not committed"))
        async with asyncio.timeout(10):
            while half.node.statistics().partitions[0].last_transaction_id < COMMITTED:
                await asyncio.sleep(0.01)
        assert await half.read(last_transaction_id=COMMITTED - 1) == (COMMITTED, COMMITTED - 1)  # waits until the node knows that
        yield half
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


async def test_a_reader_gets_what_is_committed_and_learns_of_nothing_else(half: Half) -> None:
    assert await half.read() == (COMMITTED, COMMITTED - 1)
    assert await half.read(first_transaction_id=COMMITTED) == (0, -1)
    assert await half.read(headers_only=True) == (COMMITTED, COMMITTED - 1)
    assert await half.read(fence=half.fence, owner_token=b"guessed") == (COMMITTED, COMMITTED - 1)


async def test_what_is_committed_is_served_at_once(half: Half, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committed_mark, "WAIT_S", 60.0)
    async with asyncio.timeout(5):
        assert await half.read(last_transaction_id=COMMITTED - 1) == (COMMITTED, COMMITTED - 1)


@pytest.mark.parametrize("fence", ["newest", "older", "none"])
async def test_only_the_owner_reads_as_one_in_recovery(half: Half, fence: str) -> None:
    """The number of the session is public; the owner's token is not."""
    number = {"newest": half.fence, "older": half.fence - 1, "none": -1}[fence]
    for token in (b"", b"guessed"):
        with pytest.raises(Fenced if number == half.fence - 1 and number > 0 else ProtocolViolation):
            await half.read(session=-1, fence=number, owner_token=token)
    opened = half.node.access.of(0)
    assert opened is not None
    assert await half.read(session=-1, fence=half.fence, owner_token=opened.token) == (COMMITTED + 1, COMMITTED)


async def test_processes_of_the_cluster_read_all_for_repairs(half: Half) -> None:
    assert await half.read(principal=CLUSTER_PRINCIPAL) == (COMMITTED + 1, COMMITTED)


async def test_a_search_by_time_and_size_covers_what_is_committed(half: Half) -> None:
    request = pb.LocateRequest(
        cluster_key=half.cluster.key.bytes, partition=0, times_ms=pack(">q", BEYOND), last_transaction_id=BEYOND, max_bytes=BEYOND, bound=BEYOND
    )
    answer = await half.channel.call(methods.LOCATE, request, timeout_s=5)
    assert answer.transaction_ids == pack(">q", COMMITTED)
    assert (answer.last_within, answer.replica_last_transaction_id) == (COMMITTED - 1, COMMITTED - 1)
    assert answer.bytes == COMMITTED * 41


async def test_a_mark_never_falls_and_wakes_those_that_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    mark = CommittedMark()
    waiting = [asyncio.ensure_future(mark.wait(wanted)) for wanted in (3, 5)]
    await asyncio.sleep(0)
    mark.rise(4)
    mark.rise(2)
    await asyncio.sleep(0.01)
    assert ([each.done() for each in waiting], mark.mark) == ([True, False], 4)
    mark.rise(5)
    await asyncio.gather(*waiting)
    monkeypatch.setattr(committed_mark, "WAIT_S", 0.01)
    await mark.wait(9)
    assert mark.mark == 5
