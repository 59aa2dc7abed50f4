"""How many lines the denials of one principal, and of all principals together, may fill: the bounds that keep a flood of denied calls from pushing
earlier lines out of the files of the audit log.

Two bounds apply. Within a window of seconds, a principal has a number of lines, and all principals together have one. Over days, a budget of bytes
applies, of which one principal gets a part: whatever strangers do, the files that rotate keep a line for weeks.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

__all__ = ["DENIALS_MAX", "PRINCIPALS_MAX", "WINDOW_S", "Budget", "DenialLimit"]

WINDOW_S: Final = 10.0
DENIALS_MAX: Final = 20
"""Lines of one principal within a window: enough to see what it tries, and a bound for one that tries without pause."""
TOGETHER_MAX: Final = 16 * DENIALS_MAX
"""Lines of all principals within a window: a stranger may have certificates with many names."""
PRINCIPALS_MAX: Final = 1024
"""Principals whose denials are counted. The one that was denied longest ago is forgotten first."""

DAY_S: Final = 24 * 3600.0
BURST_SHARE: Final = 4
"""Denials fill this part of the files at once, and then as much as the files hold in `REFILL_DAYS`: a line stays for three quarters of these days."""
REFILL_DAYS: Final = 30
PRINCIPALS_SHARE: Final = 16
"""One principal's denials get this part of the budget of all."""


class Budget:
    """Bytes that may be written: `burst` at once, and `per_s` from then on. `left` may fall below zero by what one line is longer than that."""

    def __init__(self, burst: float, per_s: float, now_s: float, left: float | None = None) -> None:
        self._burst, self._per_s, self._at_s = burst, per_s, now_s
        self._left = burst if left is None else min(left, burst)

    def left(self, now_s: float) -> float:
        self._left = min(self._burst, self._left + max(0.0, now_s - self._at_s) * self._per_s)
        self._at_s = now_s
        return self._left

    def spend(self, count: int) -> None:
        self._left -= count


class _Principal:
    __slots__ = ("began_s", "budget", "left_out", "lines")

    def __init__(self, now_s: float, budget: Budget | None) -> None:
        self.began_s, self.lines, self.left_out, self.budget = now_s, 0, 0, budget


class DenialLimit:
    """Which denials are written as lines. `now_s`: seconds that only rise. `files_bytes`: of the files that rotate, all together; 0: lines go to no
    file, and only the window limits them. `left`: what an earlier process left of the budget of all, `since_s` seconds ago."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic, files_bytes: int = 0, left: float | None = None, since_s: float = 0.0) -> None:
        self._now_s = now_s
        self._files_bytes = files_bytes
        self._principals: OrderedDict[str | None, _Principal] = OrderedDict()
        self._together = _Principal(now_s(), self._budget(1, left, since_s) if files_bytes else None)

    def _budget(self, share: int, left: float | None = None, since_s: float = 0.0) -> Budget:
        burst, per_s = self._files_bytes / BURST_SHARE / share, self._files_bytes / (REFILL_DAYS * DAY_S) / share
        return Budget(burst, per_s, self._now_s() - since_s, left)

    def count(self, principal: str | None) -> int | None:
        """How many denials of the principal were left out before this one, which is written; None: leave this one out too."""
        now_s = self._now_s()
        own = self._principals.get(principal)
        if own is None:
            own = self._principals[principal] = _Principal(now_s, self._budget(PRINCIPALS_SHARE) if self._files_bytes else None)
            if len(self._principals) > PRINCIPALS_MAX:
                self._principals.popitem(last=False)
        self._principals.move_to_end(principal)
        if not (_has_room(own, DENIALS_MAX, now_s) and _has_room(self._together, TOGETHER_MAX, now_s)):
            own.left_out += 1
            return None
        own.lines += 1
        self._together.lines += 1
        left_out, own.left_out = own.left_out, 0
        return left_out

    def written(self, principal: str | None, count: int) -> None:
        """The line of a denial that was counted had this many bytes."""
        for each in (self._principals.get(principal), self._together):
            if each is not None and each.budget is not None:
                each.budget.spend(count)

    def left(self) -> float | None:
        """Bytes of the budget of all."""
        return None if self._together.budget is None else self._together.budget.left(self._now_s())


def _has_room(counted: _Principal, lines_max: int, now_s: float) -> bool:
    if now_s - counted.began_s >= WINDOW_S:
        counted.began_s, counted.lines = now_s, 0
    return counted.lines < lines_max and (counted.budget is None or counted.budget.left(now_s) > 0)
