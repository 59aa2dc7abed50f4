"""Admission to an outbox: decides which submits are accepted now, wait, or are refused. Knows sizes and ages; writes nothing."""

from __future__ import annotations

import asyncio

from waltz_log.client.base.fifo_waiters import FifoWaiters
from waltz_log.core.ports import Clock
from waltz_log.errors import OutboxFull, WaltzError
from waltz_log.outbox.ledger import Ledger
from waltz_log.outbox.settings import OutboxSettings

__all__ = ["Admission"]


class Admission:
    """`reserve` before a submit, `release` after it; `update` whenever what is owed has changed. First come, first served."""

    def __init__(self, settings: OutboxSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._owed = 0
        self._oldest_ms: int | None = None
        self._reserved = 0
        self._waiters = FifoWaiters(lambda size: self._why_not(size) is None, self._add, self.release)

    def _add(self, size: int) -> None:
        self._reserved += size

    def _why_not(self, size: int) -> str | None:
        settings = self._settings
        used = self._owed + self._reserved
        if used and used + size > settings.bytes_max:
            return f"bytes_max reached: {settings.bytes_max}"
        if settings.age_max_s is not None and self._oldest_ms is not None and self._clock.now_ms() - self._oldest_ms > 1000 * settings.age_max_s:
            return f"the oldest intent waits for more than age_max_s: {settings.age_max_s:g}"
        return None

    async def reserve(self, size: int, timeout_s: float) -> None:
        """Returns when this many bytes are reserved. Raises `OutboxFull`."""
        why = "others wait" if self._waiters.queue else self._why_not(size)
        if why is None:
            self._add(size)
            return
        if self._settings.when_full == "refuse":
            raise self._full(why)
        try:
            await self._waiters.wait(size, asyncio.get_running_loop().time() + timeout_s)
        except TimeoutError:
            raise self._full(self._why_not(size) or "others wait") from None

    def _full(self, why: str) -> OutboxFull:
        return OutboxFull(bytes=self._owed, reason=why)

    def release(self, size: int) -> None:
        """Ends a reservation: its intents count as owed now, or were not written."""
        self._reserved -= size
        self._waiters.admit()

    def update(self, ledger: Ledger) -> None:
        self._owed = ledger.bytes
        if self._settings.age_max_s is not None:
            oldest = ledger.oldest()
            self._oldest_ms = None if oldest is None else oldest.submitted_ms
        self._waiters.admit()

    def refuse_all(self, error: WaltzError) -> None:
        self._waiters.fail(error)
