"""Receives the progress of each query from Spark and keeps the latest status of every pipeline, for metrics and for the live line.

A query's progress (`endOffset`, `latestOffset`: the source fills both) states what it has landed and what the log holds, so no request goes to a
table or a cluster. Spark reports after each batch, and now and then while a query is idle; in between the lag in seconds grows with the clock.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any  # JSON values, and pyspark's events

from pyspark.sql.streaming.listener import StreamingQueryListener

from waltz_delta.pipelines.lag_clock import LagClock

__all__ = ["PipelineListener", "PipelineStatus", "StatusBoard"]


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """The last reported status of a pipeline. Counts start when the job starts."""

    running: bool = False
    batches: int = 0
    rows: int = 0
    """Transactions read for its batches."""
    rows_per_s: float = 0.0
    """In the last batch that had any rows, from its trigger to its end."""
    batch_s: float = 0.0
    phases_s: Mapping[str, float] = field(default_factory=dict)
    """Durations in the last batch by Spark's names (`addBatch` is the landing)."""
    landed: Mapping[int, int] = field(default_factory=dict)
    """Log partition to the first transaction id that is not landed."""
    log: Mapping[int, int] = field(default_factory=dict)
    """Log partition to the id that its next transaction will have."""
    lag_transactions: int = 0
    lag_s: float = 0.0
    dead_letters: int = 0
    failures: int = 0
    heard_s: float = 0.0
    """Time of the last report, by the clock of the board."""


class StatusBoard:
    """The status of every pipeline. Safe to use from any thread. Observers are called for each batch, one at a time; they must be quick."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._statuses: dict[str, PipelineStatus] = {}
        self._clocks: dict[str, LagClock] = {}
        self._dead_letters: dict[str, Callable[[], int]] = {}
        self._dead_before: dict[str, int] = {}
        self._observers: list[Callable[[str, PipelineStatus, bool], None]] = []

    def observe(self, observer: Callable[[str, PipelineStatus, bool], None]) -> None:
        """Called with name, status, and whether a batch with rows ended."""
        self._observers.append(observer)

    def add(self, name: str, dead_letters: Callable[[], int]) -> None:
        """A pipeline starts, for the first time or again; `dead_letters` counts those of this start."""
        with self._lock:
            if name in self._dead_letters:
                self._dead_before[name] = self._dead_before.get(name, 0) + self._dead_letters[name]()
            self._dead_letters[name] = dead_letters
            self._statuses[name] = replace(self._statuses.get(name, PipelineStatus()), running=True, heard_s=self._clock())
        self._notify(name, False)

    def ended(self, name: str, *, failed: bool) -> None:
        with self._lock:
            status = self._statuses.get(name, PipelineStatus())
            self._statuses[name] = replace(status, running=False, failures=status.failures + failed, heard_s=self._clock())
        self._notify(name, False)

    def progressed(self, progress: Mapping[str, Any]) -> None:
        """Accepts a progress report of Spark, as JSON."""
        name = progress.get("name")
        with self._lock:
            before = self._statuses.get(name) if name is not None else None
            if name is None or before is None:
                return  # a query of another application
            now_s = self._clock()
            landed, log = _offsets(progress)
            clock = self._clocks.setdefault(name, LagClock())
            clock.log_at(now_s, sum(log.values()))
            rows = int(progress.get("numInputRows") or 0)
            durations = {phase: ms / 1000 for phase, ms in (progress.get("durationMs") or {}).items()}
            batch_s = durations.pop("triggerExecution", 0.0)
            status = replace(
                before,
                landed=landed or before.landed,
                log=log or before.log,
                dead_letters=self._dead_before.get(name, 0) + self._dead_letters[name](),
                heard_s=now_s,
            )
            if rows:
                status = replace(
                    status,
                    batches=before.batches + 1,
                    rows=before.rows + rows,
                    rows_per_s=rows / batch_s if batch_s else 0.0,
                    batch_s=batch_s,
                    phases_s=durations,
                )
            behind = sum(max(0, end - status.landed.get(partition, end)) for partition, end in status.log.items())
            reached = sum(status.log.values()) - behind
            self._statuses[name] = replace(status, lag_transactions=behind, lag_s=clock.behind_s(now_s, reached) if behind else 0.0)
        self._notify(name, bool(rows))

    def statuses(self) -> dict[str, PipelineStatus]:
        """The statuses now: a lag grows while no report arrives."""
        with self._lock:
            now_s = self._clock()
            return {
                name: replace(status, lag_s=status.lag_s + now_s - status.heard_s) if status.lag_transactions else status
                for name, status in self._statuses.items()
            }

    def _notify(self, name: str, batch: bool) -> None:
        status = self.statuses()[name]
        for observer in self._observers:
            observer(name, status, batch)


class PipelineListener(StreamingQueryListener):
    """`spark.streams.addListener(PipelineListener(board))`."""

    def __init__(self, board: StatusBoard) -> None:
        self._board = board

    def onQueryStarted(self, event: object) -> None:
        """Ignored: the job reports its start itself, before Spark does."""

    def onQueryProgress(self, event: Any) -> None:
        self._board.progressed(json.loads(event.progress.json))

    def onQueryIdle(self, event: object) -> None:
        """Ignored: no news."""

    def onQueryTerminated(self, event: object) -> None:
        """Ignored: the job reports the end itself, with the reason."""


def _offsets(progress: Mapping[str, Any]) -> tuple[dict[int, int], dict[int, int]]:
    """What is landed and what the log holds, of the one source; both empty if the progress does not state them."""
    sources = progress.get("sources") or [{}]
    found: list[dict[int, int]] = []
    for name in ("endOffset", "latestOffset"):
        value = sources[0].get(name)
        if isinstance(value, str):
            value = json.loads(value)
        found.append({int(p): int(at) for p, at in value.items() if p.isdecimal()} if isinstance(value, dict) else {})
    landed, log = found
    return landed, {partition: max(end, landed.get(partition, 0)) for partition, end in log.items()}
