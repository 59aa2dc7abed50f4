"""When the blocks of a segment were appended: from which transaction id on which time holds. Kept small: equal times in a row are one entry."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable

__all__ = ["AppendTimes"]


class AppendTimes:
    """`fallback_ms` holds for transactions before the first entry. One thread adds; others may look meanwhile."""

    def __init__(self, fallback_ms: int, firsts: Iterable[int] = (), times: Iterable[int] = ()) -> None:
        self._fallback_ms = fallback_ms
        self._firsts = array("q")
        self._times = array("q")
        for first, time_ms in zip(firsts, times, strict=True):
            self.add(first, time_ms)

    def add(self, first_transaction_id: int, time_ms: int) -> None:
        """Ids rise from call to call."""
        if self._times and self._times[-1] == time_ms:
            return
        self._times.append(time_ms)  # before the id: who finds the id finds its time
        self._firsts.append(first_transaction_id)

    def cut(self, last_transaction_id: int) -> None:
        """Forgets what holds only above the id."""
        kept = bisect_right(self._firsts, last_transaction_id)
        del self._firsts[kept:]
        del self._times[kept:]

    def at(self, transaction_id: int) -> tuple[int, int | None]:
        """The time that holds at the id, and the first id after it with another time (None: none yet)."""
        place = bisect_right(self._firsts, transaction_id)
        following = self._firsts[place] if place < len(self._firsts) else None
        return (self._times[place - 1] if place else self._fallback_ms), following
