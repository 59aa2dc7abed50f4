"""Bounds what waits for callers that do not read: frames of feeds, and what was read for them from disk.

Room is acquired before a message is made, for as many bytes as it can have, and returned when the transport accepted the message or its stream ended.
A principal whose callers do not read waits for its own room, and no other principal notices. So that callers that read are not kept waiting by others
of the same principal that do not, the message that has waited longest ends its stream if it is older than `UNREAD_S` and its room is needed.

A principal begins at most one message in a pass of the event loop, and after a large one none for some passes. A commit that wakes hundreds of its
feeds would otherwise make hundreds of frames in one pass, while the appends of all others wait.
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

PASS_BYTES: Final = 256 * 1024
"""For each of these a message delays the next one by another pass. A message of 1 MiB needs 1 ms of the loop, and an append several passes. If no
other client has work, a pass needs some microseconds."""


class _OfPrincipal:
    def __init__(self, name: str) -> None:
        self.name = name
        self.rooms: dict[Room, None] = {}
        """The oldest first."""
        self.waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.pause = 0
        """Passes of the event loop until its next message may begin."""


class Room:
    """The room of one message. Use it as a context around its sending, which ends with `QuotaExceeded` if the room is needed and the peer does not
    read."""

    def __init__(self, unread: Unread, of: _OfPrincipal | None, size: int) -> None:
        """`of`: None: it is not counted."""
        self._unread = unread
        self._of = of
        self.size = size
        self.since_s = asyncio.get_running_loop().time()
        self._limit = asyncio.timeout(None)
        self.is_sending = False
        self._is_needed = False

    def need(self) -> None:
        """Another message waits for it."""
        if not self._is_needed:
            self._is_needed = True
            if self.is_sending:
                self._limit.reschedule(self.since_s + UNREAD_S)

    async def __aenter__(self) -> Self:
        await self._limit.__aenter__()
        self.is_sending = True
        if self._is_needed:
            self._limit.reschedule(self.since_s + UNREAD_S)
        return self

    async def __aexit__(self, *details: object) -> None:
        self.is_sending = False
        self.release()
        try:
            await self._limit.__aexit__(*details)  # type: ignore[arg-type]  # as Python calls it
        except TimeoutError:
            raise self._unread.exceeded(None if self._of is None else self._of.name) from None

    def shrink(self, size: int) -> None:
        """The message turned out to be that small."""
        if self._of is not None:
            self._unread.shrink(self, self._of, size)

    def release(self) -> None:
        """Once or more often."""
        if self._of is not None:
            self._unread.release(self, self._of)


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
        of = self._principals.get(principal)
        if of is None:
            of = self._principals[principal] = _OfPrincipal(principal)
        size = min(size, self._bytes_max)
        if of.waiting or of.pause or not self._fits(of, size):
            return None
        self._pause(of, 1)
        return self._grant(of, size)

    def _fits(self, of: _OfPrincipal, size: int) -> bool:
        return self._costs.fits(of.name, Cost.UNREAD_BYTES, size)

    def _pause(self, of: _OfPrincipal, passes: int) -> None:
        """Its next message begins that much later."""
        if not of.pause and passes:
            asyncio.get_running_loop().call_soon(self._count_down, of)
        of.pause += passes

    def _count_down(self, of: _OfPrincipal) -> None:
        of.pause -= 1
        if of.pause:
            asyncio.get_running_loop().call_soon(self._count_down, of)
        else:
            self._continue(of)

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
        self._need_oldest(of)
        try:
            await turn
        except asyncio.CancelledError:
            of.waiting = deque(each for each in of.waiting if each[1] is not turn)
            if turn.done() and not turn.cancelled():  # its room was reserved already
                self._costs.release(principal, Cost.UNREAD_BYTES, size)
            self._continue(of)
            raise
        self._costs.release(principal, Cost.UNREAD_BYTES, size)  # reserved for this task when its turn came
        return self._grant(of, size)

    def _grant(self, of: _OfPrincipal, size: int) -> Room:
        self._costs.charge(of.name, Cost.UNREAD_BYTES, size)
        room = Room(self, of, size)
        of.rooms[room] = None
        self._need_oldest(of)
        return room

    def release(self, room: Room, of: _OfPrincipal) -> None:
        if room in of.rooms:
            del of.rooms[room]
            self._costs.release(of.name, Cost.UNREAD_BYTES, room.size)
            self._continue(of)

    def shrink(self, room: Room, of: _OfPrincipal, size: int) -> None:
        self._pause(of, size // PASS_BYTES)
        if room in of.rooms and size < room.size:
            self._costs.release(of.name, Cost.UNREAD_BYTES, room.size - size)
            room.size = size
            self._continue(of)

    def _continue(self, of: _OfPrincipal) -> None:
        """Wakes the one whose turn it is. Its room is reserved until it runs."""
        while of.waiting and not of.pause and self._fits(of, of.waiting[0][0]):
            size, turn = of.waiting.popleft()
            if not turn.done():
                self._costs.charge(of.name, Cost.UNREAD_BYTES, size)
                turn.set_result(None)
                self._pause(of, 1)
        self._need_oldest(of)
        is_idle = not of.waiting and not of.pause and not of.rooms and not self._costs.held(of.name, Cost.UNREAD_BYTES)
        if is_idle and self._principals.get(of.name) is of:  # a cancelled caller may come back to one that is gone
            del self._principals[of.name]

    def _need_oldest(self, of: _OfPrincipal) -> None:
        """If the first that waits does not fit, asks the oldest message to end that is being sent, and those before it once they are."""
        if of.waiting and not self._fits(of, of.waiting[0][0]):
            for room in of.rooms:
                room.need()
                if room.is_sending:
                    break

    def exceeded(self, principal: str | None) -> QuotaExceeded:
        return self._costs.exceeded(principal, Cost.UNREAD_BYTES)

    def held(self, principal: str) -> int:
        return self._costs.held(principal, Cost.UNREAD_BYTES)

    @property
    def principals(self) -> int:
        """How many have something unread, or wait."""
        return len(self._principals)
