"""Bugs to plant in what is decided by clocks (as in `planted.py`)."""

from __future__ import annotations

import asyncio
from typing import Any, Final
from weakref import WeakKeyDictionary

from verification.mutants.planting import bug, change
from waltz_log.server.partition.append_task import AppendTask
from waltz_log.server.replication.store_session import StoreSession

__all__: list[str] = []

LEASE_S: Final = 2.0


class _Confirmations:
    """When each store session was confirmed, by the clock of its owner."""

    def __init__(self) -> None:
        self._at_s: WeakKeyDictionary[StoreSession, tuple[int, float]] = WeakKeyDictionary()

    def get(self, store: StoreSession, session: int) -> float | None:
        found = self._at_s.get(store)
        return found[1] if found is not None and found[0] == session else None

    def set(self, store: StoreSession, session: int, now_s: float) -> None:
        self._at_s[store] = (session, now_s)


@bug
def append_times_follow_the_clock() -> None:
    """A transaction has the date of its owner's clock, also where that goes back."""

    def order(self: AppendTask, frames: Any) -> None:
        self._append_time_ms = 0
        original(self, frames)

    original: Any = change(AppendTask, "_order_block", order)


@bug
def confirmed_by_a_lease() -> None:
    """An owner that was confirmed less than two seconds ago by its own clock still believes that it is the owner."""

    async def confirm(self: StoreSession) -> None:
        now_s = asyncio.get_running_loop().time()
        confirmed_s = _confirmed_s.get(self, self.session)
        if confirmed_s is None or now_s - confirmed_s >= LEASE_S:
            await original(self)
            _confirmed_s.set(self, self.session, now_s)

    _confirmed_s = _Confirmations()
    original: Any = change(StoreSession, "confirm", confirm)
