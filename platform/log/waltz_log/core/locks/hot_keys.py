"""Which keys come most often, in bounded memory (the space-saving counter of Metwally, Agrawal and El Abbadi, evicting in batches).

A count is never too low, and too high by at most what the key was given when it came in: the highest count that was ever forgotten. So whatever came
more often than that is among the counted. Pure; adding costs a dictionary entry, and a sort once per `2 * kept` new keys.
"""

from __future__ import annotations

from collections import Counter
from heapq import nlargest
from typing import NamedTuple

__all__ = ["HotKey", "HotKeys"]


class HotKey(NamedTuple):
    """The key came `times` times, or up to `error` times less."""

    key: int
    times: int
    error: int


class HotKeys:
    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._counts: Counter[int] = Counter()
        self._errors: dict[int, int] = {}
        self._forgotten = 0

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, key: int) -> None:
        if key not in self._counts:
            if len(self._counts) >= 2 * self._kept:
                self._forget()
            if self._forgotten:
                self._counts[key] = self._errors[key] = self._forgotten
        self._counts[key] += 1

    def _forget(self) -> None:
        ranked = self._counts.most_common()
        self._forgotten = max(self._forgotten, ranked[self._kept][1])
        self._counts = Counter(dict(ranked[: self._kept]))
        self._errors = {key: error for key, error in self._errors.items() if key in self._counts}

    def hottest(self, count: int) -> list[HotKey]:
        """The keys with the highest counts, highest first; equal ones by key."""
        found = nlargest(count, self._counts.items(), key=lambda item: (item[1], -item[0]))
        return [HotKey(key, times, self._errors.get(key, 0)) for key, times in found]
