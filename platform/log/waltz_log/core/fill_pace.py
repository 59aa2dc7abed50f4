"""How a server process shares its time between appends and the filling of replicas. Pure: the time is an argument.

A fill works for about one run of blocks (a *turn*), and then pauses. So whenever turns slow down appends, appends have the machine for most of the
time. How much they do is measured all the time: the rate of appends during turns is compared with the rate during rests. All fills of a process
rest for each other's turns, so that ten fills cost what one costs.
"""

from __future__ import annotations

from typing import Final

__all__ = ["FillPace"]

LOSS_MAX: Final = 0.2
"""Share of the append rate that fills may cost. The platform promises 0.3; the difference covers what a measurement over seconds may miss."""

SHARE_MIN: Final = 0.25
"""Share of the time for fills, even if appends stop during turns."""

SHARE_MAX: Final = 0.4
"""Some of what a turn costs shows only after it: writes of the disk, and appends that were queued meanwhile. With 0.9 appends kept half of their rate
where they kept all of it by this measure (decision 22)."""

SHARE_FIRST: Final = 0.3
"""Until enough was measured."""

MEASURED_S: Final = 0.2
"""Least duration of turns and of rests: a rate over less is a few blocks, and chance."""

MEMORY_S: Final = 4.0
"""Half-life of measurements."""

REST_MAX_S: Final = 1.0


class _Rate:
    """Appends per second over the last seconds."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._count = 0.0

    def add(self, count: int, seconds: float) -> None:
        self._count += count
        self.seconds += seconds
        if self.seconds > MEMORY_S:
            self._count /= 2
            self.seconds /= 2

    @property
    def per_s(self) -> float:
        return self._count / self.seconds if self.seconds else 0.0


class FillPace:
    """One for each server process. A fill calls `begin`, works for one turn, calls `end`, and waits for `rest_s` before the next turn."""

    def __init__(self) -> None:
        self.appended = 0
        """Transactions that all partitions of the process ordered so far. The code that orders them adds them here."""
        self._turns = 0
        self._since_s = float("-inf")
        self._seen = 0
        self._during = _Rate()
        self._between = _Rate()
        self._free_at_s = float("-inf")
        self._appended_at_rest = 0

    def begin(self, now_s: float) -> None:
        self._measure(now_s)
        self._turns += 1

    def end(self, now_s: float, worked_s: float) -> None:
        """The turn has ended; it lasted `worked_s`."""
        self._measure(now_s)
        self._turns -= 1
        if self.busy:
            share = self.share
            self._free_at_s = max(self._free_at_s, now_s) + min(REST_MAX_S, worked_s * (1 - share) / share)
        self._appended_at_rest = self.appended

    def rest_s(self, now_s: float) -> float:
        """How long until the next turn may begin."""
        return max(0.0, self._free_at_s - now_s)

    @property
    def busy(self) -> bool:
        """Whether anything was appended since the end of the turn before."""
        return self.appended > self._appended_at_rest

    @property
    def share(self) -> float:
        """Share of the time for fills: as much as keeps the loss of appends below `LOSS_MAX`."""
        if min(self._during.seconds, self._between.seconds) < MEASURED_S or not self._between.per_s:
            return SHARE_FIRST
        loss = 1 - self._during.per_s / self._between.per_s
        return SHARE_MAX if loss <= 0 else min(SHARE_MAX, max(SHARE_MIN, LOSS_MAX / loss))

    def _measure(self, now_s: float) -> None:
        elapsed_s, count = now_s - self._since_s, self.appended - self._seen
        self._since_s, self._seen = now_s, self.appended
        if elapsed_s > 2 * REST_MAX_S and not self._turns:
            self._during, self._between = _Rate(), _Rate()  # no fill ran for a while: other appends, another rate
        else:
            (self._during if self._turns else self._between).add(count, elapsed_s)
