"""A number of places for work at the same time, which no principal can keep from the others.

One principal has at most half of the places. Principals that wait get a free place in turns, however many calls of one of them wait: a call waits for
one place of each other principal at most, not for the queue of one that sends much. A place with a time limit becomes free at the limit, whether the
work has ended or not: work that waits for a slow peer then continues without a place. What that costs must be bounded in another way.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from waltz_log.core.fair_counts import of_one_max

__all__ = ["FairPlaces"]


class FairPlaces:
    """`count_max`: in all; callers without a principal may have all of them. `limit_s`: how long work may hold its place. None: until it has
    ended."""

    def __init__(self, count_max: int, limit_s: float | None = None) -> None:
        self._count_max = count_max
        self._limit_s = limit_s
        self._held: Counter[str] = Counter()
        self._waiting: OrderedDict[str, OrderedDict[asyncio.Future[None], None]] = OrderedDict()
        """By principal, the one whose turn is next first."""

    @property
    def held(self) -> int:
        return self._held.total()

    @asynccontextmanager
    async def place(self, principal: str) -> AsyncIterator[None]:
        await self._acquire(principal)
        held = _Held(self, principal)
        expiry = None if self._limit_s is None else asyncio.get_running_loop().call_later(self._limit_s, held.release)
        try:
            yield
        finally:
            if expiry is not None:
                expiry.cancel()
            held.release()

    async def _acquire(self, principal: str) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(principal, OrderedDict())[turn] = None
        self._continue()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # the place was given before the caller ran
                self.release(principal)
            else:
                self._forget(principal, turn)
            raise

    def _forget(self, principal: str, turn: asyncio.Future[None]) -> None:
        turns = self._waiting.get(principal, OrderedDict())
        turns.pop(turn, None)
        if not turns:
            self._waiting.pop(principal, None)

    def release(self, principal: str) -> None:
        self._held[principal] -= 1
        if not self._held[principal]:
            del self._held[principal]
        self._continue()

    def _continue(self) -> None:
        """Gives the places that are free."""
        while self._held.total() < self._count_max:
            principal = next((each for each in self._waiting if self._held[each] < of_one_max(self._count_max, each)), None)
            if principal is None:
                return
            turns = self._waiting[principal]
            turn, _ = turns.popitem(last=False)
            if turns:
                self._waiting.move_to_end(principal)
            else:
                del self._waiting[principal]
            if not turn.done():  # its caller may have been cancelled, and not have run since
                self._held[principal] += 1
                turn.set_result(None)


class _Held:
    """One place."""

    def __init__(self, places: FairPlaces, principal: str) -> None:
        self._places = places
        self._principal = principal
        self._is_held = True

    def release(self) -> None:
        """Once or more often."""
        if self._is_held:
            self._is_held = False
            self._places.release(self._principal)
