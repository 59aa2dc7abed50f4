"""The clock port of real processes: the wall clock."""

from __future__ import annotations

import time

from waltz_log.core.ports import Clock

__all__ = ["WallClock"]


class WallClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


_clock: Clock = WallClock()  # mypy checks that the class implements the port
