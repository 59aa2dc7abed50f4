"""Executes a schedule on a local cluster and restarts processes that ended by themselves, as a supervisor would. Blocking, in the thread of the
cluster."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator

from verification.smoke.schedule import Outage
from waltz_log.errors import ClusterUnavailable
from waltz_log.processes.local_cluster import LocalCluster

__all__ = ["Nemesis"]


class Nemesis:
    """`advance` again and again with the seconds since the load began; `heal` at the end."""

    def __init__(self, cluster: LocalCluster, schedule: Iterator[Outage]) -> None:
        self.done: Counter[str] = Counter()
        """How often each process was killed or stopped, by `kind name`."""
        self.ended_by_itself: Counter[str] = Counter()
        self._cluster = cluster
        self._schedule = schedule
        self._next = next(schedule)
        self._due: list[tuple[float, str, str]] = []
        self._down: set[str] = set()
        self._stopped: set[str] = set()

    @property
    def away(self) -> list[str]:
        """The processes that are stopped at the moment."""
        return sorted(self._down | self._stopped)

    def advance(self, now_s: float) -> None:
        while self._due and self._due[0][0] <= now_s:
            _, action, name = heapq.heappop(self._due)
            (self._start if action == "start" else self._resume)(name)
        self._restart_ended()
        while self._next.at_s <= now_s:
            outage, self._next = self._next, next(self._schedule)
            if outage.name in self._down or (outage.kind == "stopped" and outage.name in self._stopped):
                continue
            if outage.kind == "killed":
                self._cluster.kill(outage.name)
                self._stopped.discard(outage.name)
                self._down.add(outage.name)
            else:
                self._cluster.pause(outage.name)
                self._stopped.add(outage.name)
            self.done[f"{outage.kind} {outage.name}"] += 1
            # From now on, not from when it was due: on a busy machine a process would have no outage at all, or no time between two.
            heapq.heappush(self._due, (now_s + outage.lasts_s, "start" if outage.kind == "killed" else "resume", outage.name))

    def _start(self, name: str) -> None:
        self._down.discard(name)
        self._cluster.start(name)

    def _resume(self, name: str) -> None:
        if name in self._stopped:
            self._stopped.discard(name)
            self._cluster.resume(name)

    def _restart_ended(self) -> None:
        for name in self._cluster.ended:
            if name not in self._down:
                self._stopped.discard(name)
                self.ended_by_itself[name] += 1
                self._cluster.start(name)

    def heal(self, within_s: float, announce: Callable[[str], None]) -> None:
        """Returns when every process runs and serves. Raises `ClusterUnavailable` if that takes longer than `within_s`."""
        announce("the outages are over")
        for name in sorted(self._stopped):
            self._cluster.resume(name)
        self._stopped.clear()
        for name in sorted(self._down, key=lambda each: each != "zookeeper"):
            self._cluster.start(name)
        self._down.clear()
        self._due.clear()
        for attempt in range(3):
            # A process that was started while there was no ZooKeeper may have given up meanwhile.
            self._restart_ended()
            try:
                self._cluster.wait_ready(within_s)
                return
            except ClusterUnavailable:
                if attempt == 2 or not self._cluster.ended:
                    raise
