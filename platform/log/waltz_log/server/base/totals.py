"""What a log server counts over all of its partitions for as long as its process lives, for its statistics alone. No decision reads it.

Observed once for each block, for each message of blocks to a replica, each recovery, each fencing, and each rejection that waited at a hot lock.
Never for a transaction that is committed.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from waltz_log.core.status.latency import Latency
from waltz_log.core.status.server_statistics import ServerTotals

__all__ = ["Totals"]


class Totals:
    """`now_s`: a clock that never goes back; real also where the rest of a cluster is simulated, as durations are only shown."""

    def __init__(self, now_s: Callable[[], float] = time.perf_counter) -> None:
        self.now_s = now_s
        self.queue = Latency()
        self.commit = Latency()
        self.replicate = Latency()
        self.lock_wait = Latency()
        self.recovery = Latency()
        self.sessions = 0
        self.append_refusals = self.mount_refusals = 0
        """Because a quota was exceeded."""
        self._fenced_generations = self._fenced_sessions = self._fenced_mounts = 0

    def count_fenced(self, what: str) -> None:
        """`what`: as `Fenced` names it. Whatever else ends an owner's session counts as a session."""
        if what == "generation":
            self._fenced_generations += 1
        elif what == "mount":
            self._fenced_mounts += 1
        else:
            self._fenced_sessions += 1

    def statistics(self) -> ServerTotals:
        return ServerTotals(
            queue=self.queue.statistics(),
            commit=self.commit.statistics(),
            replicate=self.replicate.statistics(),
            lock_wait=self.lock_wait.statistics(),
            recovery=self.recovery.statistics(),
            sessions=self.sessions,
            fenced_generations=self._fenced_generations,
            fenced_sessions=self._fenced_sessions,
            fenced_mounts=self._fenced_mounts,
            append_refusals=self.append_refusals,
            mount_refusals=self.mount_refusals,
        )
