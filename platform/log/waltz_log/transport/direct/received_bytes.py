"""Bounds what the direct connections of one principal hold at a port: frames that are not complete, that wait, or that the handler has.

A connection reports what it holds before it reads more. While its principal is at the limit, it reads nothing and continues when half is returned. A
connection that ends returns everything. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakValueDictionary

from waltz_log.transport.methods import MAX_FRAME_BYTES

__all__ = ["LIMIT_MIN", "ReceivedBytes", "Share"]

LIMIT_MIN = 2 * MAX_FRAME_BYTES
"""A limit that one incomplete frame uses up would never be free again."""


class Share:
    """The share of one principal. `limit` 0: none."""

    def __init__(self, limit: int = 0) -> None:
        self.limit = limit
        self.held = 0
        self._paused: dict[Callable[[], None], None] = {}

    @property
    def is_full(self) -> bool:
        return 0 < self.limit < self.held

    def charge(self, size: int) -> None:
        self.held += size

    def release(self, size: int) -> None:
        self.held -= size
        assert self.held >= 0, "more was returned than was charged"
        if self._paused and 2 * self.held <= self.limit:
            paused, self._paused = self._paused, {}
            for resume in paused:
                resume()

    def pause(self, resume: Callable[[], None]) -> None:
        """`resume` is called once, when half of the limit is free."""
        self._paused[resume] = None

    def forget(self, resume: Callable[[], None]) -> None:
        self._paused.pop(resume, None)


class ReceivedBytes:
    """The received bytes of one port. A share lives as long as a connection uses it."""

    def __init__(self, limit: int) -> None:
        self._limit = max(limit, LIMIT_MIN) if limit else 0
        self._shares: WeakValueDictionary[str, Share] = WeakValueDictionary()

    def share(self, principal: str | None) -> Share:
        """None: of one that is not counted."""
        if principal is None or not self._limit:
            return Share()
        return self._shares.setdefault(principal, Share(self._limit))
