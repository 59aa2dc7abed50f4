"""The compacted view of a partition, and then the log: the latest value of each key, in the order of ids, without a gap (docs/guides/topics.md).

The result is complete even if replicas compact during the read, or different replicas answer: ids only rise, and each page is read above the last id
that was returned. If a newer view omits a value, a transaction with a higher id replaced it, which is still to come, in the view or in the log.
So after a view was read to its end, everything up to its end or up to the last returned id, whichever is higher, is complete, and the read continues
in the log. If retention has removed that part of the log, a newer view reaches further, and is read from there.

A replica whose view ends before the log begins is skipped. If there is no view but the log reaches back, only the log is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import NamedTuple

from waltz_log.client.base.retry import Backoff
from waltz_log.client.base.settings import ClientSettings
from waltz_log.client.owners.owners import Owners
from waltz_log.client.topics.topic_records import TopicFeed, TopicRecord
from waltz_log.core.formats.wal_records import WalRecord
from waltz_log.errors import NotAllowed, OutOfRange, ProtocolViolation, Unavailable, WaltzError
from waltz_log.loggers import get_logger
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.methods import READ_VIEW
from waltz_log.transport.view_pages import decode_view_page

__all__ = ["VerifiedPage", "ViewReader", "compacted_batches"]

log = get_logger(__name__)

PAGE_BYTES = 1024 * 1024
"""Keys and values asked for in one page; the size at which gRPC carries most."""

ROUNDS_MAX = 3
"""How often each replica is asked for its view before the log alone is read, where it reaches back."""


async def compacted_batches(
    reader: ViewReader, partition: int, after: int, follow: Callable[[int], TopicFeed], until: int | None = None
) -> TopicFeed:
    """Non-empty lists of records above `after`, ids rising, without end, or until all up to `until` is given. `partition` is what the records say;
    `follow` reads the log above a mark."""
    position = after
    while until is None or position < until:
        async with aclosing(reader.pages(position)) as pages:
            async for page in pages:
                if page.records:
                    position = page.records[-1].transaction_id
                    yield [TopicRecord(partition, *record) for record in page.records]
                if page.done:
                    position = max(position, page.bound - 1)
        if until is not None and position >= until:  # whether or not it has a record: the end of a key goes from the view
            return
        try:
            async with aclosing(follow(position)) as batches:
                async for batch in batches:
                    position = batch[-1].transaction_id
                    yield batch
            return  # `follow` ends by `until` alone
        except OutOfRange as error:
            if position >= error.first - 1:
                raise
            log.info("log trimmed before it was read, reading the compacted view", partition=error.partition, position=position, first=error.first)


class VerifiedPage(NamedTuple):
    records: list[WalRecord]
    bound: int
    done: bool


def decode_page(page: pb.ReadViewResponse, first: int) -> VerifiedPage:
    """The records of a page, whose ids begin at `first` or above and rise. Raises `ProtocolViolation`, `CorruptData`."""
    found = decode_view_page(page)
    for last, record in zip((first - 1, *(each.transaction_id for each in found)), found, strict=False):
        if record.transaction_id <= last:
            raise ProtocolViolation(reason=f"ids of a view's page do not rise: after={last} got={record.transaction_id}")
    return VerifiedPage(found, page.bound, page.done)


class ViewReader:
    """Reads the view of one partition of the log from whichever replica has it."""

    def __init__(self, partition: int, owners: Owners, settings: ClientSettings, backoff: Backoff) -> None:
        self._partition = partition
        self._owners = owners
        self._settings = settings
        self._backoff = backoff

    async def pages(self, position: int) -> AsyncGenerator[VerifiedPage, None]:
        """Pages of what is above `position`, to the end of a view that reaches as far back as the log does. None at all where no replica has one and
        the log reaches back to `position`. If a page is damaged, another replica is read. Raises `Unavailable` where neither is so in time,
        `NotAllowed`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.append_timeout_s
        rounds = 0
        while True:
            bound = await self._owners.bound(self._partition, max(0.001, deadline - loop.time()))
            said: dict[str, str] = {}
            for address in self._replicas():
                try:
                    async with aclosing(self._read(address, bound, position)) as pages:
                        async for received in pages:
                            page = decode_page(received, position + 1)
                            if page.records:
                                position = page.records[-1].transaction_id
                            yield page
                            if page.done:
                                return
                    said[address] = "its view ended early"
                except NotAllowed:
                    raise
                except WaltzError as error:
                    said[address] = str(error)
            rounds += 1
            if rounds >= ROUNDS_MAX and bound.first_transaction_id <= position + 1:
                log.info("no replica has the compacted view, reading the log alone", partition=self._partition, said=said)
                return
            if loop.time() >= deadline:
                told = "; ".join(f"{address}: {reason}" for address, reason in said.items()) or "no replica is registered"
                raise Unavailable(reason=f"no replica serves the compacted view: partition={self._partition} {told}")
            await asyncio.sleep(self._backoff.next_s())

    def _replicas(self) -> list[str]:
        """Addresses, each partition's in another order, so that readers spread over the nodes."""
        found = self._owners.replica_addresses(self._partition)
        start = self._partition % max(1, len(found))
        return found[start:] + found[:start]

    async def _read(self, address: str, bound: pb.Bound, position: int) -> AsyncGenerator[pb.ReadViewResponse, None]:
        request = pb.ReadViewRequest(
            cluster_key=self._owners.parameters.key.bytes,
            partition=self._partition,
            session=bound.session,
            first_transaction_id=position + 1,
            max_bytes=PAGE_BYTES,
            bound_min=bound.first_transaction_id,
            principal=self._settings.principal or "",
        )
        channel = self._owners.connect(address)
        try:
            stream = channel.read(READ_VIEW, request)
            try:
                while True:
                    async with asyncio.timeout(self._settings.request_timeout_s):
                        page: pb.ReadViewResponse | None = await stream.receive()
                    if page is None:
                        return
                    yield page
            except TimeoutError:
                raise Unavailable(reason=f"no page of the view in time: server={address}") from None
            finally:
                await stream.cancel()
        finally:
            await channel.close()
