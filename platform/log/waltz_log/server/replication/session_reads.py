"""Reads what a store session committed, from whichever of its replicas holds it.

A read that fails at one replica continues at another. It ends when the replicas have failed twice each without progress in between.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol

from waltz_log.core.formats.block import Block
from waltz_log.errors import CorruptData, Fenced, Unavailable, WaltzError
from waltz_log.loggers import get_logger
from waltz_log.server.base.settings import ServerSettings
from waltz_log.server.replication.received_blocks import expect_unchanged
from waltz_log.server.replication.replica_reads import ReplicaReads

__all__ = ["ReadSession", "committed_runs"]

log = get_logger(__name__)


class ReadSession(Protocol):
    """A store session, as its readers see it."""

    partition: int
    settings: ServerSettings
    assigned: tuple[str, ...]
    committed: int
    failed: WaltzError | None

    def expect_retained(self, transaction_id: int) -> None: ...
    async def sources(self, transaction_id: int) -> list[ReplicaReads]: ...
    def fenced(self, error: Fenced) -> None: ...


async def committed_runs(session: ReadSession, first: int, last: int, *, headers_only: bool = False) -> AsyncGenerator[list[Block], None]:
    """Committed blocks from `first` to `last`, in runs, verified by the node that sends them. Sealed headers are verified here too; whole records are
    for a receiver that verifies them. Raises `OutOfRange` for what was trimmed, `Unavailable` if no replica can serve them, and the error that ended
    the session."""
    position = first
    last = min(last, session.committed)
    failed: Counter[str] = Counter()
    while position <= last:
        session.expect_retained(position)
        sources = await session.sources(position)
        source = min(sources, key=lambda replica: failed[replica.name])
        try:
            async with aclosing(source.runs(position, last, headers_only=headers_only)) as runs:
                async for run in runs:
                    if headers_only:
                        expect_unchanged(source.name, session.partition, run, headers_only=True)
                    yield run
                    position = run[-1].last_transaction_id + 1
                    failed.clear()
        except Fenced as error:
            session.fenced(error)
            if session.failed is not None:
                raise session.failed from error
        except WaltzError as error:
            log.warning("read failed", partition=session.partition, replica=source.name, transaction_id=position, error=str(error))
            if isinstance(error, CorruptData):
                source.corrupt_reads += 1
        if position <= last:
            failed[source.name] += 1
            if failed.total() > 2 * len(session.assigned):
                raise Unavailable(reason=f"no replica could serve partition={session.partition} transaction_id={position}")
            await asyncio.sleep(0 if failed.total() < len(sources) else session.settings.replica_retry_s)
