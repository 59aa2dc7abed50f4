"""Bounds what waits for callers that do not read: frames of feeds, and what was read for them from disk.

Room is acquired before a message is made, for as many bytes as it can have, and returned when the transport accepted the message or its stream ended.
A principal whose callers do not read waits for its own room, and no other principal notices. So that callers that read are not kept waiting by others
of the same principal that do not, the message that has waited longest ends its stream if it is older than `UNREAD_S` and its room is needed.

In a few passes of the event loop one message of a principal begins. A commit that wakes hundreds of its feeds would otherwise make hundreds of frames
in one pass, while the appends of all others wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Self

from waltz_log.core.costs import Cost, Costs
from waltz_log.errors import QuotaExceeded
from waltz_log.security.identity import Identity, counted_principal

__all__ = ["UNREAD_S", "Room", "Unread"]

UNREAD_S: Final = 10.0
"""How long a message may stay unread while others of its principal wait for room."""

PASSES: Final = 4
"""A message of 1 MiB needs 1 ms of the loop, and an append several passes. Where nobody else has work, a pass needs some microseconds."""


class _OfPrincipal:
    def __init__(self) -> None:
        self.rooms: dict[Room, None] = {}
        """The oldest first."""
        self.waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.has_begun = False
        """Whether a message began within the last `PASSES` of the event loop."""


class Room:
    """The room of one message. Use it as a context around its sending, which ends with `QuotaExceeded` if the room is needed and the peer does not
    read."""

    def __init__(self, unread: Unread, principal: str | None, size: int) -> None:
        self._unread = unread
        self.principal = principal
        self.size = size
        self.since_s = asyncio.get_running_loop().time()
        self._limit = asyncio.timeout(None)
        self._is_sending = False
        self._is_needed = False

    def need(self) -> None:
        """Another message waits for it."""
        if not self._is_needed:
            self._is_needed = True
            if self._is_sending:
                self._limit.reschedule(self.since_s + UNREAD_S)

    async def __aenter__(self) -> Self:
        await self._limit.__aenter__()
        self._is_sending = True
        if self._is_needed:
            self._limit.reschedule(self.since_s + UNREAD_S)
        return self

    async def __aexit__(self, *details: object) -> None:
        self._is_sending = False
        self.release()
        try:
            await self._limit.__aexit__(*details)  # type: ignore[arg-type]  # as Python calls it
        except TimeoutError:
            raise self._unread.exceeded(self.principal) from None

    def shrink(self, size: int) -> None:
        """The message turned out to be that small."""
        self._unread.shrink(self, size)

    def release(self) -> None:
        """Once or more often."""
        self._unread.release(self)


class Unread:
    """The unread bytes of one process. `bytes_max`: of each principal; 0: no limit. Nodes, and peers of a transport that does not know them, are not
    counted."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._costs = Costs({Cost.UNREAD_BYTES: bytes_max})
        self._principals: dict[str, _OfPrincipal] = {}

    def acquire_now(self, peer: Identity | None, size: int) -> Room | None:
        """None if it has to wait."""
        principal = counted_principal(peer) if self._bytes_max else None
        if principal is None:
            return Room(self, None, 0)
        of = self._principals.setdefault(principal, _OfPrincipal())
        size = min(size, self._bytes_max)
        if of.waiting or of.has_begun or not self._costs.fits(principal, Cost.UNREAD_BYTES, size):
            return None
        self._begin(principal, of)
        return self._grant(of, principal, size)

    def _begin(self, principal: str, of: _OfPrincipal) -> None:
        """A message begins: the next one does so after `PASSES`."""
        of.has_begun = True
        self._pass(principal, of, PASSES)

    def _pass(self, principal: str, of: _OfPrincipal, left: int) -> None:
        if left:
            asyncio.get_running_loop().call_soon(self._pass, principal, of, left - 1)
        else:
            of.has_begun = False
            self._continue(principal, of)

    async def acquire(self, peer: Identity | None, size: int) -> Room:
        room = self.acquire_now(peer, size)
        if room is not None:
            return room
        principal = counted_principal(peer)
        assert principal is not None, "a peer that is not counted never waits"
        size = min(size, self._bytes_max)
        of = self._principals[principal]
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        of.waiting.append((size, turn))
        self._need_oldest(principal, of)
        try:
            await turn
        except asyncio.CancelledError:
            of.waiting = deque(each for each in of.waiting if each[1] is not turn)
            if turn.done() and not turn.cancelled():  # its room was reserved already
                self._costs.release(principal, Cost.UNREAD_BYTES, size)
            self._continue(principal, of)
            raise
        self._costs.release(principal, Cost.UNREAD_BYTES, size)  # reserved for this task when its turn came
        return self._grant(of, principal, size)

    def _grant(self, of: _OfPrincipal, principal: str, size: int) -> Room:
        self._costs.charge(principal, Cost.UNREAD_BYTES, size)
        room = Room(self, principal, size)
        of.rooms[room] = None
        self._need_oldest(principal, of)
        return room

    def release(self, room: Room) -> None:
        if room.principal is None:
            return
        of = self._principals.get(room.principal)
        if of is None or room not in of.rooms:
            return
        del of.rooms[room]
        self._costs.release(room.principal, Cost.UNREAD_BYTES, room.size)
        self._continue(room.principal, of)

    def shrink(self, room: Room, size: int) -> None:
        if room.principal is None or size >= room.size:
            return
        self._costs.release(room.principal, Cost.UNREAD_BYTES, room.size - size)
        room.size = size
        self._continue(room.principal, self._principals[room.principal])

    def _continue(self, principal: str, of: _OfPrincipal) -> None:
        """Wakes the one whose turn it is. Its room is reserved until it runs."""
        while of.waiting and not of.has_begun and self._costs.fits(principal, Cost.UNREAD_BYTES, of.waiting[0][0]):
            size, turn = of.waiting.popleft()
            if not turn.done():
                self._begin(principal, of)
                self._costs.charge(principal, Cost.UNREAD_BYTES, size)
                turn.set_result(None)
        self._need_oldest(principal, of)
        if not of.waiting and not of.has_begun and not of.rooms and not self._costs.held(principal, Cost.UNREAD_BYTES):
            self._principals.pop(principal, None)

    def _need_oldest(self, principal: str, of: _OfPrincipal) -> None:
        """If another message waits for room."""
        if of.rooms and of.waiting and not self._costs.fits(principal, Cost.UNREAD_BYTES, of.waiting[0][0]):
            next(iter(of.rooms)).need()

    def exceeded(self, principal: str | None) -> QuotaExceeded:
        return self._costs.exceeded(principal, Cost.UNREAD_BYTES)

    def held(self, principal: str) -> int:
        return self._costs.held(principal, Cost.UNREAD_BYTES)

    @property
    def principals(self) -> int:
        """How many have something unread, or wait."""
        return len(self._principals)
