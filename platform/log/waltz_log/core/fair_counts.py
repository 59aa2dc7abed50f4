"""What principals hold at the same time of something that is limited, of which one may have at most half. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["FairCounts", "of_one_max"]


def of_one_max(count_max: int, principal: str) -> int:
    """How many one may have. All of them without a name: the transport does not know its peers."""
    return max(1, count_max // 2) if principal else count_max


class FairCounts:
    """`count_max`: of all principals."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._open: Counter[str] = Counter()

    @property
    def count(self) -> int:
        return self._open.total()

    def fits(self, principal: str) -> bool:
        return self.count < self._count_max and self._open[principal] < of_one_max(self._count_max, principal)

    @contextmanager
    def one(self, principal: str) -> Iterator[None]:
        """Counts one more within the block."""
        self._open[principal] += 1
        try:
            yield
        finally:
            self._open[principal] -= 1
            if not self._open[principal]:
                del self._open[principal]
