"""Client ids: the counter in the coordinator, and the blocks of ids that a log server reserves from it. Pure.

The counter holds the last id that any server has reserved. A server reserves a block by compare-and-set and gives its ids from memory, so that new
clients need no coordinator. A server that ends loses the rest of its block. No id is given twice as long as the counter never goes back; what a
restored counter forgot is found on the storage nodes, which keep the end of every block (`server.identities.issuing`).
"""

from __future__ import annotations

from collections import deque
from typing import Final

__all__ = ["BLOCK_MAX", "BLOCK_MIN", "CLIENT_ID_MAX", "IdBlocks", "format_counter", "parse_counter"]

CLIENT_ID_MAX: Final = 2**31 - 1
"""The record header holds a client id in four bytes."""

BLOCK_MIN: Final = 1_000
"""Ids of a first block. A restart loses at most what is left of it, so the ids suffice for two million starts. The half that is there before the next
block is reserved lasts 60 s for eight new clients a second."""

BLOCK_MAX: Final = 100_000
"""Half of it lasts 60 s for 800 new clients a second, more than one process greets."""

BUSY_S: Final = 120.0
"""A server that used up a block in less time reserves twice as many the next time."""


def parse_counter(data: bytes) -> int | None:
    """The last id that was reserved; None: what is there is no counter."""
    if not 1 <= len(data) <= 10 or not data.isdigit():
        return None
    value = int(data)
    return value if value <= CLIENT_ID_MAX else None


def format_counter(last: int) -> bytes:
    return b"%d" % last


class IdBlocks:
    """The ids of one server that are reserved and not given yet. `add` what was reserved, then `give`."""

    def __init__(self, now_s: float) -> None:
        self._blocks: deque[range] = deque()
        self._size = BLOCK_MIN
        self._added_s = now_s
        self.last = 0
        """The end of the newest block of this server."""

    @property
    def left(self) -> int:
        return sum(map(len, self._blocks))

    def wanted(self, now_s: float) -> int:
        """How many ids to reserve now; 0: enough are left."""
        if self.left > self._size // 2:
            return 0
        busy = self.last > 0 and now_s - self._added_s < BUSY_S
        return min(BLOCK_MAX, 2 * self._size) if busy else BLOCK_MIN

    def add(self, first: int, last: int, now_s: float) -> bool:
        """Ids from `first` to `last` were reserved. False, and nothing is added: this server has reserved beyond them before, so the counter was set
        back."""
        if first <= self.last:
            return False
        self._blocks.append(range(first, last + 1))
        self._size, self._added_s, self.last = last - first + 1, now_s, last
        return True

    def give(self) -> int | None:
        """An id that is given once; None: none is left."""
        while self._blocks:
            block = self._blocks[0]
            if not block:
                self._blocks.popleft()
                continue
            self._blocks[0] = block[1:]
            return block[0]
        return None

    def discard(self) -> None:
        """Gives none of them. Those reserved later must be above them."""
        self._blocks.clear()
