"""The fill of one replica: its progress, rate and remaining time, and its pace during appends (`core.fill_pace`).

A fill continues over several store sessions: the replica keeps what was copied (docs/decisions/0022), and this object keeps the measured rate. It
does not decide what is copied or kept.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Final, NamedTuple

from waltz_log.core.fill_pace import FillPace
from waltz_log.core.formats.block import Block
from waltz_log.core.status.server_statistics import FillStatistics
from waltz_log.loggers import get_logger

__all__ = ["Fill"]

log = get_logger(__name__)

WINDOW_S: Final = 10.0
"""Rates are those of the last seconds."""

ESTIMATED_AFTER_S: Final = 3.0
"""How long a fill must have copied before its rate is meaningful. Earlier there is no warning."""

WARN_EVERY_S: Final = 30.0

KEEP_EVERY_S: Final = 5.0
"""Between two syncs that make progress outlast a crash of the replica. A change of session loses nothing: the replica keeps what it has then."""


class _Sample(NamedTuple):
    at_s: float
    bytes: int
    transactions: int
    committed: int


class Fill:
    """The fill of one replica, from the first block that it lacks until it follows the owner closely."""

    def __init__(self, partition: int, replica: str, pace: FillPace) -> None:
        self._partition = partition
        self._replica = replica
        self._pace = pace
        self._samples: deque[_Sample] = deque()
        self._bytes = self._transactions = 0
        self._last = self._committed = -1
        self._warned_s = float("-inf")
        self._kept_s = 0.0

    # ---- copying ---------------------------------------------------------------------------------------------------------------------------------

    @property
    def keeps_now(self) -> bool:
        return _now_s() - self._kept_s >= KEEP_EVERY_S

    def kept(self) -> None:
        self._kept_s = _now_s()

    async def in_turns(
        self,
        runs: AsyncGenerator[list[Block], None],
        committed: Callable[[], int],
        acknowledged: Callable[[int], Awaitable[None]],
        yields: Callable[[], bool],
    ) -> AsyncGenerator[list[Block], None]:
        """The same runs, with rests between them. `acknowledged`: returns once the replica has the id, on disk where the caller needs it there;
        `yields`: whether appends have precedence. They do not where they wait for this replica."""
        pace = self._pace
        async with aclosing(runs) as found:
            while True:
                await asyncio.sleep(pace.rest_s(_now_s()) if yields() else 0)
                began_s = _now_s()
                pace.begin(began_s)
                try:
                    run = await anext(found, None)
                    if run is None:
                        return
                    self._count(run, committed())  # before it is sent: a session may end with it
                    yield run
                    if yields() and pace.busy:
                        await acknowledged(run[-1].last_transaction_id)  # the replica's own work is part of the turn
                finally:
                    pace.end(_now_s(), _now_s() - began_s)

    def _count(self, run: Sequence[Block], committed: int) -> None:
        now_s = _now_s()
        self._bytes += sum(len(block.records) for block in run)
        self._transactions += run[-1].last_transaction_id - run[0].first_transaction_id + 1
        self._last, self._committed = run[-1].last_transaction_id, committed
        self._samples.append(_Sample(now_s, self._bytes, self._transactions, committed))
        while len(self._samples) > 2 and self._samples[1].at_s < now_s - WINDOW_S:
            self._samples.popleft()
        self._warn(now_s)

    def _warn(self, now_s: float) -> None:
        if now_s - self._warned_s < WARN_EVERY_S or not self.outpaced:
            return
        self._warned_s = now_s
        facts = self.statistics()
        log.warning(
            "appends arrive faster than a replica is filled",
            partition=self._partition,
            replica=self._replica,
            mb_s=facts.mb_s,
            transactions_s=facts.transactions_s,
            appended_s=facts.appended_s,
            missing=facts.missing,
            without_appends_s=facts.without_appends_s,
        )

    # ---- reports ---------------------------------------------------------------------------------------------------------------------------------

    @property
    def outpaced(self) -> bool:
        """Appends arrive faster than the replica is filled: at these rates it is never clean."""
        filled_s, appended_s, measured_s, _ = self._rates()
        return measured_s >= ESTIMATED_AFTER_S and filled_s <= appended_s and self._committed > self._last

    def _rates(self) -> tuple[float, float, float, float]:
        """Transactions filled and appended per second, over how many seconds, and bytes filled per second."""
        if len(self._samples) < 2:
            return 0.0, 0.0, 0.0, 0.0
        old, new = self._samples[0], self._samples[-1]
        elapsed_s = max(new.at_s - old.at_s, 1e-9)
        filled, appended = new.transactions - old.transactions, new.committed - old.committed
        return filled / elapsed_s, appended / elapsed_s, elapsed_s, (new.bytes - old.bytes) / elapsed_s

    def statistics(self) -> FillStatistics:
        filled_s, appended_s, measured_s, bytes_s = self._rates()
        missing = max(0, self._committed - self._last)
        known = measured_s > 0
        return FillStatistics(
            transactions=self._transactions,
            bytes=self._bytes,
            last=self._last,
            target=self._committed,
            missing=missing,
            missing_bytes=round(missing * self._bytes / self._transactions) if self._transactions else None,
            mb_s=round(bytes_s / 1e6, 3) if known else None,
            transactions_s=round(filled_s, 1) if known else None,
            appended_s=round(appended_s, 1) if known else None,
            remaining_s=round(missing / (filled_s - appended_s), 1) if known and filled_s > appended_s else None,
            without_appends_s=round(missing / filled_s, 1) if filled_s else None,
            outpaced=self.outpaced,
        )


def _now_s() -> float:
    return asyncio.get_running_loop().time()
