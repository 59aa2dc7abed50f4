"""The newest blocks of a partition in memory: what replicas have yet to receive, and what feeds request most. Holds every block above the committed
mark and older ones while the memory is not needed. Blocks are consecutive. Uses no disk and no replica. `memory` decides how much it may hold.
"""

from __future__ import annotations

import sys
from bisect import bisect_right

from waltz_log.core.formats.block import Block

__all__ = ["BlockWindow"]


class BlockWindow:
    def __init__(self, last_transaction_id: int) -> None:
        self._blocks: list[Block] = []
        self._firsts: list[int] = []
        self._given_up = 0
        """The number of the oldest blocks that are gone; the lists are cut in runs, so that giving one up costs a constant in the long run."""
        self._last = last_transaction_id
        self.held_bytes = 0

    @property
    def first_transaction_id(self) -> int:
        """The oldest id held, or the next one to come."""
        return self._firsts[self._given_up] if self._given_up < len(self._firsts) else self._last + 1

    @property
    def last_transaction_id(self) -> int:
        return self._last

    def append(self, block: Block) -> None:
        if block.first_transaction_id != self._last + 1:
            raise AssertionError(f"block out of order: first={block.first_transaction_id} expected={self._last + 1}")
        self._blocks.append(block)
        self._firsts.append(block.first_transaction_id)
        self._last = block.last_transaction_id
        self.held_bytes += size_of(block)

    def find(self, transaction_id: int) -> Block | None:
        """The block that holds the id, or None if it is older than the window or has not come yet."""
        if transaction_id < self.first_transaction_id or transaction_id > self._last:
            return None
        return self._blocks[bisect_right(self._firsts, transaction_id) - 1]

    def blocks_from(self, transaction_id: int, last: int, bytes_max: int, blocks_max: int = sys.maxsize) -> list[Block]:
        """Consecutive blocks from the one that holds the id up to that of `last`, of about `bytes_max` together, at least one; none where the id is
        not held."""
        if transaction_id < self.first_transaction_id or transaction_id > self._last:
            return []
        start = stop = bisect_right(self._firsts, transaction_id) - 1
        size, end = 0, min(len(self._blocks), start + blocks_max)
        while stop < end and self._firsts[stop] <= last and (stop == start or size + len(self._blocks[stop].records) <= bytes_max):
            size += len(self._blocks[stop].records)
            stop += 1
        return self._blocks[start:stop]

    def evict(self, committed: int) -> int:
        """Gives up the oldest block if it is committed; the bytes that freed."""
        if self._given_up == len(self._blocks) or self._blocks[self._given_up].last_transaction_id > committed:
            return 0
        freed = size_of(self._blocks[self._given_up])
        self._blocks[self._given_up] = _GONE
        self._given_up += 1
        self.held_bytes -= freed
        if self._given_up > 64:
            del self._blocks[: self._given_up], self._firsts[: self._given_up]
            self._given_up = 0
        return freed


_GONE = Block(0, b"", b"", 0)


def size_of(block: Block) -> int:
    return len(block.records) + len(block.lengths)
