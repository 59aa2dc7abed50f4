"""Reads of a session that ends under them: callers that wait learn it, and nothing is read any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any, cast

import pytest

from verification.crashes.storage_model import block_of
from waltz_log.core.formats.block import Block
from waltz_log.core.formats.sealed_headers import seal_headers
from waltz_log.errors import NotOwner
from waltz_log.server.base.settings import ServerSettings
from waltz_log.server.mounts.fetcher import Fetcher
from waltz_log.server.replication.memory import Run
from waltz_log.server.replication.session_reads import ReadSession, committed_runs
from waltz_log.server.replication.store_session import StoreSession


class _StalledStore:
    """No replica ever has what is asked for."""

    partition = 3
    asked = 0

    def expect_retained(self, first: int) -> None:
        """Nothing was trimmed."""

    async def sources(self, first: int) -> list[Any]:
        self.asked += 1
        await asyncio.get_running_loop().create_future()
        raise AssertionError("it stalls")


def _fetcher(store: _StalledStore) -> Fetcher:
    return Fetcher(cast(StoreSession, store), ServerSettings(coordinator="memory/test"), lambda run, headers: None)


@pytest.mark.parametrize("headers_only", [False, True])
async def test_a_waiter_for_a_read_gets_an_error_when_the_session_ends(headers_only: bool) -> None:
    fetcher = _fetcher(_StalledStore())
    waiting = [asyncio.ensure_future(fetcher.fetch(7, headers_only=headers_only)) for _ in range(3)]
    await asyncio.sleep(0)
    await fetcher.close()
    for each in waiting:
        with pytest.raises(NotOwner, match="partition=3"):
            await each


async def test_a_session_that_ended_reads_nothing_more() -> None:
    store = _StalledStore()
    fetcher = _fetcher(store)
    await fetcher.close()
    with pytest.raises(NotOwner):
        await fetcher.fetch(7, headers_only=False)
    fetcher.ahead(8, headers_only=False)
    await asyncio.sleep(0.01)
    assert store.asked == 0


async def test_one_who_stops_waiting_does_not_end_the_read_of_the_others() -> None:
    fetcher = _fetcher(_StalledStore())
    first, second = (asyncio.ensure_future(fetcher.fetch(7, headers_only=False)) for _ in range(2))
    await asyncio.sleep(0.01)
    first.cancel()
    await asyncio.wait([first])
    assert first.cancelled()
    assert not second.done()
    assert (fetcher.reads, fetcher.joined) == (1, 1)
    await fetcher.close()
    with pytest.raises(NotOwner):
        await second


class _Replica:
    """Sends what it has, of which the network changes a bit the first time."""

    name = "storage-0"
    corrupt_reads = 0

    def __init__(self, block: Block) -> None:
        self.reads = 0
        self._block = block

    async def runs(self, first: int, last: int, *, headers_only: bool) -> AsyncGenerator[list[Block], None]:
        yield await self.read_run(first, last, headers_only=headers_only)

    async def read_run(self, first: int, last: int, *, headers_only: bool) -> list[Block]:
        self.reads += 1
        if self.reads > 1:
            return [self._block]
        records = bytearray(self._block.records)
        records[-5] ^= 1
        return [Block(self._block.first_transaction_id, self._block.lengths, bytes(records), self._block.append_time_ms)]


class _Store:
    partition = 0
    committed = 100
    failed = None
    settings = ServerSettings(coordinator="memory/test", replica_retry_s=0.001)
    assigned = ("storage-0", "storage-1", "storage-2")

    def __init__(self, replica: _Replica) -> None:
        self._replica = replica

    def expect_retained(self, first: int) -> None:
        """Nothing was trimmed."""

    async def sources(self, first: int) -> list[_Replica]:
        return [self._replica]


@pytest.mark.parametrize("headers_only", [False, True])
async def test_a_block_that_changed_on_its_way_is_not_remembered_and_is_read_again(headers_only: bool) -> None:
    block = block_of(0, 7, [30, 40], salt=1)
    if headers_only:
        block = replace(block, records=seal_headers(block.records, block.lengths))
    replica, remembered = _Replica(block), list[Run]()
    settings = ServerSettings(coordinator="memory/test", replica_retry_s=0.001)
    fetcher = Fetcher(cast(StoreSession, _Store(replica)), settings, lambda run, headers: remembered.append(run))
    run = await fetcher.fetch(7, headers_only=headers_only)
    assert (run.blocks, replica.reads, replica.corrupt_reads) == ((block,), 2, 0)
    assert [each.blocks for each in remembered] == [(block,)]
    await fetcher.close()


async def test_headers_that_changed_on_their_way_decide_nothing_and_are_read_again() -> None:
    """A search for sequences would otherwise report what is in the log as not there, or as the append of another client."""
    whole = block_of(0, 7, [30, 40], salt=1)
    block = replace(whole, records=seal_headers(whole.records, whole.lengths))
    replica = _Replica(block)
    session = cast(ReadSession, _Store(replica))
    assert [run async for run in committed_runs(session, 7, 8, headers_only=True)] == [[block]]
    assert replica.reads == 2
