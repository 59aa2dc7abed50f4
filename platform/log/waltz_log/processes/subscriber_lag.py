"""How far each subscriber is behind, for the statistics of a log server: their marks are in the coordinator, the committed marks in the server.

The marks are read at most once in a period, and only while someone asks for statistics. A coordinator that does not answer leaves the marks as they
were, so an answer never waits for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from waltz_log.background_tasks import end_tasks, start_task
from waltz_log.coordination.subscribers import read_subscribers
from waltz_log.core.ports import Coordinator
from waltz_log.core.status.server_statistics import OpenPartitionStatistics, ServerStatistics
from waltz_log.errors import WaltzError

__all__ = ["SubscriberLag"]

PERIOD_S = 5.0


class SubscriberLag:
    """Reads the coordinator in tasks of the running event loop; `close` ends them."""

    def __init__(self, coordinator: Coordinator, now_s: Callable[[], float] = time.monotonic) -> None:
        self._coordinator = coordinator
        self._now_s = now_s
        self._marks: dict[str, Mapping[int, int]] | None = None
        self._read_s = -PERIOD_S
        self._reading: asyncio.Task[None] | None = None

    def added_to(self, statistics: ServerStatistics) -> ServerStatistics:
        """The statistics with the lags of subscribers, as far as they are known by now."""
        if self._now_s() - self._read_s >= PERIOD_S and (self._reading is None or self._reading.done()):
            self._read_s = self._now_s()
            self._reading = start_task(self._read())
        if self._marks is None:
            return statistics
        committed = {number: each.committed for number, each in statistics.partitions.items() if isinstance(each, OpenPartitionStatistics)}
        return replace(statistics, subscribers={name: lag_of(marks, committed) for name, marks in self._marks.items()})

    async def _read(self) -> None:
        with suppress(WaltzError):  # the next period reads again
            self._marks = {each.name: each.marks for each in await read_subscribers(self._coordinator)}

    async def close(self) -> None:
        if self._reading is not None:
            await end_tasks([self._reading])


def lag_of(marks: Mapping[int, int], committed: Mapping[int, int]) -> int:
    """Committed transactions above the marks, of the partitions that `committed` names."""
    return sum(max(0, committed[partition] - mark) for partition, mark in marks.items() if partition in committed)
