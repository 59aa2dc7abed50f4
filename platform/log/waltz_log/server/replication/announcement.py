"""The committed mark as replicas learn it, so that they serve readers nothing that is not committed.

Replicas learn a mark a little after it rose, and not more often: a message for each block would cost as much as the block. Readers that hold a newer
mark wait for it at the replica.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

__all__ = ["ANNOUNCE_S", "Announcement"]

ANNOUNCE_S: Final = 0.02
"""A reader waits at most this long at a replica, beside the way of the message."""


class Announcement:
    """`committed`: returns the mark; `notify`: wakes the tasks that send it."""

    def __init__(self, committed: Callable[[], int], notify: Callable[[], None]) -> None:
        self.mark = -1
        self._committed = committed
        self._notify = notify
        self._timer: asyncio.TimerHandle | None = None

    def committed_rose(self) -> None:
        """Replicas learn it soon."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(ANNOUNCE_S, self._announce)

    def _announce(self) -> None:
        self._timer = None
        self.mark = self._committed()
        self._notify()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
