"""A budget of bytes that all partitions of a server share. It decides which partition releases memory when the budget is exceeded.

Fair by partition: the largest holder releases first. So a busy partition may use what the others leave, but never their equal share. Holders decide
what they release. Invariant: after every call the holders are within the bound, or none of them can release more.
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["Budget", "Holder"]


class Holder(Protocol):
    """One partition's share. Reports every change of `held_bytes` to its budget."""

    held_bytes: int

    def evict(self) -> int:
        """Gives up what it needs least; the bytes that freed, 0 if it can give nothing. The budget counts them, not the holder."""
        ...


class Budget:
    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.held_bytes = 0
        self.evicted = 0
        """Pieces given up so far."""
        self._holders: list[Holder] = []

    def join(self, holder: Holder) -> None:
        self._holders.append(holder)
        self.changed(holder.held_bytes)

    def leave(self, holder: Holder) -> None:
        self._holders.remove(holder)
        self.changed(-holder.held_bytes)

    def changed(self, difference: int) -> None:
        """A holder has this many bytes more, or less."""
        self.held_bytes += difference
        if self.held_bytes > self.bytes_max:
            self._fit()

    def _fit(self) -> None:
        able = list(self._holders)
        while able and self.held_bytes > self.bytes_max:
            largest = max(able, key=lambda holder: holder.held_bytes)
            freed = largest.evict()
            if freed:
                largest.held_bytes -= freed
                self.held_bytes -= freed
                self.evicted += 1
            else:
                able.remove(largest)

    @property
    def share(self) -> int:
        """What each partition has for certain."""
        return self.bytes_max // max(1, len(self._holders))
