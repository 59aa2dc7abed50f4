"""The bounds of an outbox: decides who may submit now, who waits, who is refused. Knows sizes and ages; writes nothing."""

from __future__ import annotations

import asyncio
from collections import deque
from copy import copy

from waltz_log.core.ports import Clock
from waltz_log.errors import OutboxFull, WaltzError
from waltz_log.outbox.ledger import Ledger
from waltz_log.outbox.settings import OutboxSettings

__all__ = ["Room"]


class Room:
    """`take` before a submit, `give_back` after it; `hold` whenever what is owed has changed. First come, first served."""

    def __init__(self, settings: OutboxSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._held = 0
        self._oldest_ms: int | None = None
        self._taken = 0
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()

    def _why_not(self, size: int) -> str | None:
        settings = self._settings
        used = self._held + self._taken
        if used and used + size > settings.bytes_max:
            return f"bytes_max reached: {settings.bytes_max}"
        if settings.age_max_s is not None and self._oldest_ms is not None and self._clock.now_ms() - self._oldest_ms > 1000 * settings.age_max_s:
            return f"the oldest intent waits for more than age_max_s: {settings.age_max_s:g}"
        return None

    async def take(self, size: int, timeout_s: float) -> None:
        """Returns with room for so many bytes reserved. Raises `OutboxFull`."""
        why = "others wait" if self._waiting else self._why_not(size)
        if why is None:
            self._taken += size
            return
        if self._settings.when_full == "refuse":
            raise self._full(why)
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((waiter, size))
        try:
            async with asyncio.timeout(timeout_s):
                await waiter
        except BaseException as error:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.give_back(size)
            else:
                self._waiting = deque(each for each in self._waiting if each[0] is not waiter)
                self._admit()
            if isinstance(error, TimeoutError):
                raise self._full(self._why_not(size) or "others wait") from None
            raise

    def _full(self, why: str) -> OutboxFull:
        return OutboxFull(bytes=self._held, reason=why)

    def give_back(self, size: int) -> None:
        """What was taken is part of what is owed now, or was not written."""
        self._taken -= size
        self._admit()

    def hold(self, ledger: Ledger) -> None:
        self._held = ledger.bytes
        if self._settings.age_max_s is not None:
            oldest = ledger.oldest()
            self._oldest_ms = None if oldest is None else oldest.submitted_ms
        if self._waiting:
            self._admit()

    def _admit(self) -> None:
        while self._waiting and self._why_not(self._waiting[0][1]) is None:
            waiter, size = self._waiting.popleft()
            if not waiter.done():
                self._taken += size
                waiter.set_result(None)

    def refuse_all(self, error: WaltzError) -> None:
        waiting, self._waiting = self._waiting, deque()
        for waiter, _ in waiting:
            if not waiter.done():
                waiter.set_exception(copy(error))
