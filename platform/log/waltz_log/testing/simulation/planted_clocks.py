"""Bugs to plant in what is decided by clocks (as in `planted.py`)."""

from __future__ import annotations

from typing import Any

from waltz_log.server.append import AppendTask
from waltz_log.testing.simulation.planting import bug, change

__all__: list[str] = []


@bug
def append_times_follow_the_clock() -> None:
    """A transaction has the date of its owner's clock, also where that goes back."""

    def order(self: AppendTask, frames: Any) -> None:
        self._append_time_ms = 0
        original(self, frames)

    original: Any = change(AppendTask, "_order_block", order)
