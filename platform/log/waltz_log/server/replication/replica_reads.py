"""Reads of one replica, separate from the stream of blocks. They outlive a store session, like the connection that they use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from waltz_log.background_tasks import end_tasks, start_task
from waltz_log.core.formats.block import Block
from waltz_log.errors import ConnectionLost, Unavailable, WaltzError
from waltz_log.server.replication.owner_session import OwnerSession
from waltz_log.server.replication.replica_calls import ReplicaCalls

__all__ = ["ReplicaReads", "is_answer"]


class ReplicaReads:
    """`current`: reads in progress. `corrupt_reads`: how often the replica sent damaged records."""

    def __init__(self, store: OwnerSession, calls: ReplicaCalls) -> None:
        self.name = calls.name
        self.current = 0
        self.corrupt_reads = 0
        self._store = store
        self._calls = calls
        self._asking: asyncio.Task[None] | None = None
        """Pings the node after a read without an answer."""

    async def read_run(self, first: int, last: int, *, headers_only: bool = False) -> list[Block]:
        """One run of about `feed_bytes_max` from the beginning of the range; empty if the replica has nothing of it."""
        async with aclosing(self.runs(first, last, headers_only=headers_only, runs_max=1)) as runs:
            async for run in runs:
                return run
        return []

    async def runs(
        self, first: int, last: int, *, headers_only: bool = False, recovering: bool = False, runs_max: int = 0
    ) -> AsyncGenerator[list[Block], None]:
        """Stored records of this replica. `recovering`: as the owner of a session that is not open yet, also above what is known to be clean."""
        self._calls.expect_connection()
        runs = self._calls.runs(first, last, headers_only=headers_only, recovering=recovering, runs_max=runs_max)
        self.current += 1
        try:
            async with aclosing(runs):
                async for run in runs:
                    yield run
        except ConnectionLost:
            self.check_reachable()
            raise
        finally:
            self.current -= 1

    def check_reachable(self) -> None:
        """A read was not answered. While nothing is appended, nothing else shows that the node cannot be reached: it is asked until it answers, or
        is no replica of this session any more."""
        if self._store.follows(self) and (self._asking is None or self._asking.done()):
            self._asking = start_task(self._ask_until_answered())

    async def _ask_until_answered(self) -> None:
        store = self._store
        while store.follows(self):
            try:
                await self._calls.open_session()
            except WaltzError as error:
                self._calls.reached = is_answer(error)
            else:
                self._calls.reached = True
            if self._calls.reached:
                return
            await asyncio.sleep(store.settings.replica_retry_s)

    async def close(self) -> None:
        if self._asking is not None:
            await end_tasks([self._asking])


def is_answer(error: WaltzError) -> bool:
    """Whether the node was reached: a refusal is an answer."""
    return not isinstance(error, ConnectionLost | Unavailable)
