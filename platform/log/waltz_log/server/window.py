"""The newest blocks of a partition in memory: what replicas are still to receive, and what feeds ask for most.

Holds every block above the committed mark and as many older ones as fit the bound. Blocks are consecutive. Never touches a disk or a replica.
"""

from __future__ import annotations

from bisect import bisect_right

from waltz_log.core.block import Block

__all__ = ["Window"]


class Window:
    def __init__(self, last_transaction_id: int, bytes_max: int) -> None:
        self._blocks: list[Block] = []
        self._firsts: list[int] = []
        self._last = last_transaction_id
        self._bytes = 0
        self._bytes_max = bytes_max

    @property
    def first_transaction_id(self) -> int:
        """The oldest id held, or the next one to come."""
        return self._firsts[0] if self._firsts else self._last + 1

    @property
    def last_transaction_id(self) -> int:
        return self._last

    def append(self, block: Block) -> None:
        if block.first_transaction_id != self._last + 1:
            raise AssertionError(f"block out of order: first={block.first_transaction_id} expected={self._last + 1}")
        self._blocks.append(block)
        self._firsts.append(block.first_transaction_id)
        self._last = block.last_transaction_id
        self._bytes += len(block.records)

    def find(self, transaction_id: int) -> Block | None:
        """The block that holds the id, or None where it is older than the window or has not come yet."""
        if transaction_id < self.first_transaction_id or transaction_id > self._last:
            return None
        return self._blocks[bisect_right(self._firsts, transaction_id) - 1]

    def trim(self, committed: int) -> None:
        """Forgets the oldest committed blocks beyond the bound."""
        drop = 0
        size = self._bytes
        while drop < len(self._blocks) and size > self._bytes_max and self._blocks[drop].last_transaction_id <= committed:
            size -= len(self._blocks[drop].records)
            drop += 1
        # Lists are cut in runs, so that trimming costs a constant per block in the long run.
        if drop > 64 or (drop and self._bytes > 2 * self._bytes_max):
            del self._blocks[:drop], self._firsts[:drop]
            self._bytes = size
