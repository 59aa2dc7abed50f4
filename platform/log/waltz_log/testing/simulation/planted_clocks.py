"""Bugs to plant in what is decided by clocks (as in `planted.py`)."""

from __future__ import annotations

import asyncio
from typing import Any

from waltz_log.server.append import AppendTask
from waltz_log.server.store import StoreSession
from waltz_log.testing.simulation.planting import bug, change

__all__: list[str] = []

LEASE_S = 30.0


@bug
def append_times_follow_the_clock() -> None:
    """A transaction has the date of its owner's clock, also where that goes back."""

    def order(self: AppendTask, frames: Any) -> None:
        self._append_time_ms = 0
        original(self, frames)

    original: Any = change(AppendTask, "_order_block", order)


@bug
def confirmed_by_a_lease() -> None:
    """An owner that was confirmed a while ago, by its own clock, asks nobody whether it still is one."""

    async def confirm(self: StoreSession) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s > confirmed_s.get(self, -LEASE_S) + LEASE_S:
            await original(self)
            confirmed_s[self] = now_s

    confirmed_s: dict[StoreSession, float] = {}
    original: Any = change(StoreSession, "confirm", confirm)
