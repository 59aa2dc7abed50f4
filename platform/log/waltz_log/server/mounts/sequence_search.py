"""Searches the headers of the log for sequences of a client (docs/internals/protocol.md, After a break).

It reads runs from memory or from a replica, never above the given mark. If a run fails or ends at a deadline, the result so far is kept, because
committed transactions never change. It does not decide whether an answer is final.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import numpy as np
import numpy.typing as npt

from waltz_log.core.formats.block import Block
from waltz_log.core.formats.columns import headers_array
from waltz_log.core.formats.sealed_headers import sealed_headers_array
from waltz_log.errors import OutOfRange
from waltz_log.server.replication.store_session import StoreSession
from waltz_log.transport import waltz_pb2 as pb

__all__ = ["SequenceSearch"]

BLOCKS_A_TURN = 16
"""How many blocks are searched before other tasks run: about 2 ms of small blocks. Blocks in memory need no wait, so a search of thousands of them
would block the event loop and all other work of the server."""

ROWS_MAX = 32_768
"""Rows of one answer, 768 KiB. A search that finds more ends there, like one whose time is over."""


class SequenceSearch:
    """`searched_to`: all ids above the request's `since` up to here were searched. `trimmed`: the log begins after `since`."""

    def __init__(self, request: pb.ResolveRequest, first_transaction_id: int) -> None:
        self._request = request
        self._first = max(request.since + 1, first_transaction_id)
        self._found: list[tuple[int, int, int]] = []
        self.trimmed = self._first != request.since + 1
        self.searched_to = self._first - 1

    @property
    def advanced(self) -> bool:
        return self.searched_to >= self._first

    async def run(self, store: StoreSession, mark: int, until: float) -> None:
        """Up to the mark, or for one run at least where the time is over before that."""
        while True:
            try:
                return await self._run(store, mark, until)
            except OutOfRange:
                if self.searched_to + 1 >= store.first_transaction_id:
                    raise
                # It was trimmed while it was searched. What is gone may have held what is asked for.
                self.trimmed, self.searched_to = True, store.first_transaction_id - 1

    async def _run(self, store: StoreSession, mark: int, until: float) -> None:
        loop = asyncio.get_running_loop()
        looked = 0
        async with aclosing(_headers(store, self.searched_to + 1, mark)) as runs:
            async for first_id, headers in runs:
                self._add_headers(first_id, headers)
                if loop.time() >= until or len(self._found) >= ROWS_MAX:
                    break
                looked += 1
                if looked % BLOCKS_A_TURN == 0:
                    await asyncio.sleep(0)

    def _add_headers(self, first_id: int, headers: npt.NDArray[np.void]) -> None:
        asked, found = self._request, self._found
        sequences = headers["sequence"]
        mine = (headers["client_id"] == asked.client_id) & (sequences >= asked.first_sequence) & (sequences <= asked.last_sequence)
        for at in np.flatnonzero(mine).tolist():
            sequence, transaction_id = int(sequences[at]), first_id + at
            if found and found[-1][0] + found[-1][1] == sequence and found[-1][2] + found[-1][1] == transaction_id:
                found[-1] = (found[-1][0], found[-1][1] + 1, found[-1][2])
            else:
                found.append((sequence, 1, transaction_id))
        self.searched_to = first_id + len(headers) - 1

    def committed(self) -> bytes:
        """Rows of first sequence, count, first transaction id."""
        return np.array([value for row in self._found for value in row], dtype=">i8").tobytes()


async def _headers(store: StoreSession, first: int, last: int) -> AsyncGenerator[tuple[int, npt.NDArray[np.void]], None]:
    """Runs of record headers with the first id of each run, from memory if it holds them, otherwise from a replica."""
    position = first
    while position <= last:
        block: Block | None = store.window.find(position)
        if block is not None:
            # A block of memory may begin below what is asked for, and end above what is committed.
            start, stop = position - block.first_transaction_id, min(last, block.last_transaction_id) + 1 - block.first_transaction_id
            yield position, headers_array(block.records, block.lengths)[start:stop]
            position = block.first_transaction_id + stop
            continue
        end = min(last, store.window.first_transaction_id - 1)
        async with aclosing(store.read(position, end, headers_only=True)) as blocks:
            async for older in blocks:
                yield older.first_transaction_id, sealed_headers_array(older.records)
                position = older.last_transaction_id + 1
