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

from waltz_log.line_limit import KEYS_MAX, LineLimit

__all__ = ["DENIALS_MAX", "TOGETHER_MAX", "Budget", "DenialLimit"]

DENIALS_MAX: Final = 20
"""Lines of one principal within a window: enough to see what it tries, and a bound for one that tries without pause."""
TOGETHER_MAX: Final = 16 * DENIALS_MAX
"""Lines of all principals within a window: a stranger may have certificates with many names."""

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


class DenialLimit:
    """Which denials are written as lines. `now_s`: seconds that only rise. `files_bytes`: of the files that rotate, all together; 0: lines go to no
    file, and only the window limits them. `left`: what an earlier process left of the budget of all, `since_s` seconds ago."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic, files_bytes: int = 0, left: float | None = None, since_s: float = 0.0) -> None:
        self._now_s = now_s
        self._files_bytes = files_bytes
        self._lines = LineLimit(DENIALS_MAX, TOGETHER_MAX, now_s)
        self._together = self._budget(1, left, since_s) if files_bytes else None
        self._budgets: OrderedDict[str | None, Budget] = OrderedDict()

    def _budget(self, share: int, left: float | None = None, since_s: float = 0.0) -> Budget:
        burst, per_s = self._files_bytes / BURST_SHARE / share, self._files_bytes / (REFILL_DAYS * DAY_S) / share
        return Budget(burst, per_s, self._now_s() - since_s, left)

    def count(self, principal: str | None) -> int | None:
        """How many denials of the principal were left out before this one, which is written; None: leave this one out too."""
        now_s = self._now_s()
        if self._together is not None and min(self._together.left(now_s), self._own(principal).left(now_s)) <= 0:
            self._lines.leave_out(principal)
            return None
        return self._lines.count(principal)

    def written(self, principal: str | None, count: int) -> None:
        """The line of a denial that was counted had this many bytes."""
        if self._together is not None:
            self._together.spend(count)
            self._own(principal).spend(count)

    def left(self) -> float | None:
        """Bytes of the budget of all."""
        return None if self._together is None else self._together.left(self._now_s())

    def _own(self, principal: str | None) -> Budget:
        own = self._budgets.get(principal)
        if own is None:
            own = self._budgets[principal] = self._budget(PRINCIPALS_SHARE)
            if len(self._budgets) > KEYS_MAX:
                self._budgets.popitem(last=False)
        self._budgets.move_to_end(principal)
        return own
