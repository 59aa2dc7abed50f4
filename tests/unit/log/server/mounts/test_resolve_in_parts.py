"""A search for a lost answer over more of the log than one call can read: it is answered in parts, and each part goes further."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from waltz_log.client import ClientSettings, OutcomeUnknown, WaltzClient
from waltz_log.core.formats.block import Block
from waltz_log.core.formats.records import encode_record
from waltz_log.errors import Unavailable
from waltz_log.server.mounts.sequence_search import SequenceSearch
from waltz_log.server.replication.block_window import BlockWindow
from waltz_log.server.replication.store_session import StoreSession
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.testing.virtual_time import run_in_virtual_time
from waltz_log.transport import waltz_pb2 as pb

COUNT = 60
READ_S = 0.1
"""For each block: all of them last far longer than `REQUEST_S`."""

REQUEST_S = 1.0


class _SlowReplicas:
    """`begun`: where each search began to read."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.begun: list[int] = []
        self.stalled_at = -1
        honest = StoreSession.read

        async def read(store: StoreSession, first: int, last: int, *, headers_only: bool = False) -> AsyncGenerator[Block, None]:
            if headers_only:
                self.begun.append(first)
            async for block in honest(store, first, last, headers_only=headers_only):
                stalls = block.first_transaction_id == self.stalled_at
                self.stalled_at = -1 if stalls else self.stalled_at
                await asyncio.sleep(3600 if stalls else READ_S if headers_only else 0)
                yield block

        patch.setattr(StoreSession, "read", read)


async def _log() -> tuple[MemoryCluster, WaltzClient, WaltzClient]:
    """A log that is no longer in its owner's memory, by the first client; and another client."""
    cluster = MemoryCluster(servers=1)
    await cluster.start()
    writer, asker = await cluster.connect(), await cluster.connect(ClientSettings(request_timeout_s=REQUEST_S))
    for number in range(COUNT):
        await writer.append(0, bytes([number]))
        if number == 0:
            server, _ = cluster.servers["server-0"]
            server._caches.transactions.bytes_max = 1
        await asyncio.sleep(0.01)  # a block each: one of another time is read by itself
    return cluster, writer, asker


async def _end(cluster: MemoryCluster, *clients: WaltzClient) -> None:
    for client in clients:
        await client.close()
    await cluster.stop()


def _unknown(writer: WaltzClient, sequence: int) -> OutcomeUnknown:
    return OutcomeUnknown(partition=0, client_id=writer.client_id, sequence=sequence, since=-1, reason="lost")


@pytest.mark.parametrize(("sequence", "there"), [(COUNT, COUNT - 1), (COUNT + 1, None)])
def test_a_search_that_takes_longer_than_a_call_is_answered(sequence: int, there: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        slow = _SlowReplicas(monkeypatch)
        cluster, writer, asker = await _log()
        began = asyncio.get_running_loop().time()
        found = await asker.resolve(_unknown(writer, sequence), timeout_s=60)
        assert (None if found is None else found.transaction_id) == there
        assert len(slow.begun) > 5
        assert slow.begun == sorted(set(slow.begun)), "something was searched twice"
        assert asyncio.get_running_loop().time() - began < 1.5 * COUNT * READ_S
        await _end(cluster, writer, asker)

    run_in_virtual_time(scenario())


def test_a_deadline_that_is_too_short_does_not_lose_what_was_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        _SlowReplicas(monkeypatch)
        cluster, writer, asker = await _log()
        unknown = _unknown(writer, COUNT + 1)
        since = [unknown.since]
        for _ in range(COUNT):
            try:
                assert await asker.resolve(unknown, timeout_s=2 * REQUEST_S) is None
                break
            except Unavailable:
                since.append(unknown.since)
        else:
            raise AssertionError(f"not resolved: {since}")
        assert len(since) > 2
        assert since == sorted(set(since))
        await _end(cluster, writer, asker)

    run_in_virtual_time(scenario())


def test_a_replica_that_stalls_does_not_keep_what_was_found_before(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        slow = _SlowReplicas(monkeypatch)
        cluster, writer, asker = await _log()
        slow.stalled_at = 2
        assert await asker.resolve(_unknown(writer, COUNT + 1), timeout_s=60) is None
        assert slow.begun[:2] == [0, 2]
        await _end(cluster, writer, asker)

    run_in_virtual_time(scenario())


def test_a_search_stays_above_since_and_below_the_mark_within_a_block() -> None:
    async def scenario() -> None:
        records = [encode_record(7, 1, 0, sequence, sequence, b"") for sequence in range(10)]

        class Store:
            window = BlockWindow(-1)

        Store.window.append(Block(0, struct.pack(">10i", *map(len, records)), b"".join(records), 0))
        search = SequenceSearch(pb.ResolveRequest(client_id=7, first_sequence=0, last_sequence=9, since=2), 0)
        store: Any = Store()
        await search.run(store, 5, 1e9)
        assert search.committed() == struct.pack(">3q", 3, 3, 3)
        assert search.searched_to == 5

    run_in_virtual_time(scenario())
