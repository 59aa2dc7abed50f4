"""The status of every pipeline as of now, for metrics and for the live line.

Three sources: the landing says what its tables hold, `log_watch` what the log holds, and Spark the duration of a batch and of its phases. Only Spark
waits for the end of a batch. So a lag is true while a batch runs and while it hangs.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any  # JSON values, and pyspark's events

from pyspark import SparkContext
from pyspark.sql.streaming.listener import StreamingQueryListener

from waltz_delta.landing.landing_progress import LandingProgress
from waltz_delta.pipelines.lag_clock import LagClock

__all__ = ["PipelineListener", "PipelineStatus", "StatusBoard"]


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """The status of a pipeline at the time of the question. Counts start when the job starts."""

    running: bool = False
    batches: int = 0
    rows: int = 0
    """Transactions of the log that every table is past, each counted once: landed, dropped by a filter, or dead letters."""
    rows_per_s: float = 0.0
    """In the last batch that had any rows, from its trigger to its end."""
    batch_s: float = 0.0
    phases_s: Mapping[str, float] = field(default_factory=dict)
    """Durations in the last batch by Spark's names (`addBatch` is the landing)."""
    landed: Mapping[int, int] = field(default_factory=dict)
    """Log partition to the first transaction id that some table does not hold."""
    log: Mapping[int, int] = field(default_factory=dict)
    """Log partition to the id that its next transaction will have."""
    started: bool = True
    """False: the query never started, so it is not known what the tables hold, and the lag is none."""
    lag_transactions: int = 0
    lag_s: float = 0.0
    """Age of the oldest transaction that some table does not hold; 0 if there is none."""
    log_age_s: float = 0.0
    """Since the log was last heard of. The lag counts what it had then."""
    dead_letters: int = 0
    failures: int = 0


@dataclass(slots=True)
class _Log:
    """What is known of the log that a pipeline reads. `begins`: where its query begins without a table. `dated`: partitions whose past is known."""

    ends: dict[int, int] = field(default_factory=dict)
    begins: Mapping[int, int] = field(default_factory=dict)
    clocks: dict[int, LagClock] = field(default_factory=dict)
    dated: set[int] = field(default_factory=set)
    heard_s: float | None = None

    def heard(self, now_s: float, ends: Mapping[int, int]) -> None:
        self.heard_s = now_s
        for partition, end in ends.items():
            self.ends[partition] = max(end, self.ends.get(partition, 0))
            self.clocks.setdefault(partition, LagClock()).log_at(now_s, end)

    def behind(self, landed: Mapping[int, int]) -> dict[int, int]:
        """Partition to the first id that is missing, of those that miss any. A partition of which nothing is known misses nothing."""
        firsts = {partition: landed.get(partition, self.begins.get(partition, end)) for partition, end in self.ends.items()}
        return {partition: first for partition, first in sorted(firsts.items()) if first < self.ends[partition]}


@dataclass(slots=True)
class _Run:
    """A pipeline over all starts of its query. `before`: what earlier starts counted."""

    progress: Callable[[], LandingProgress]
    status: PipelineStatus
    reported: Mapping[int, int] = field(default_factory=dict)
    """What Spark's last report calls read: landed too, because a report follows its batch."""
    before: LandingProgress = field(default_factory=LandingProgress)
    last_batch: int | None = None

    def landed(self) -> dict[int, int]:
        return {**self.reported, **self.progress().landed}


class StatusBoard:
    """The status of every pipeline. Safe to use from any thread. Observers are called for each batch, one at a time; they must be quick."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._runs: dict[str, _Run] = {}
        self._logs: dict[str, _Log] = {}
        self._observers: list[Callable[[str, PipelineStatus, bool], None]] = []

    def observe(self, observer: Callable[[str, PipelineStatus, bool], None]) -> None:
        """Called with name, status, and whether a batch with rows ended."""
        self._observers.append(observer)

    def add(self, name: str, progress: Callable[[], LandingProgress]) -> None:
        """A pipeline starts, for the first time or again; `progress` is that of this start, as of the time of the call."""
        with self._lock:
            self._logs.setdefault(name, _Log(heard_s=self._clock()))
            run = self._runs.get(name)
            if run is None:
                self._runs[name] = _Run(progress, PipelineStatus(running=True))
            else:
                ended = run.progress()
                before = LandingProgress(
                    transactions=run.before.transactions + ended.transactions, dead_letters=run.before.dead_letters + ended.dead_letters
                )
                self._runs[name] = _Run(progress, replace(run.status, running=True, started=True), run.landed(), before)
        self._notify(name, False)

    def ended(self, name: str, *, failed: bool) -> None:
        with self._lock:
            run = self._runs.setdefault(name, _Run(LandingProgress, PipelineStatus(started=False)))
            run.status = replace(run.status, running=False, failures=run.status.failures + failed)
        self._notify(name, False)

    def log_read(self, name: str, ends: Mapping[int, int], begins: Mapping[int, int]) -> None:
        """The log has these ends now. `begins`: where the query begins in partitions of which no table holds anything."""
        with self._lock:
            known = self._logs.setdefault(name, _Log())
            known.heard(self._clock(), ends)
            known.begins = begins

    def log_was(self, name: str, past: Mapping[int, Sequence[tuple[float, int]]]) -> None:
        """The ends that partitions had this number of seconds ago."""
        with self._lock:
            now_s, known = self._clock(), self._logs.setdefault(name, _Log())
            for partition, ends in past.items():
                known.dated.add(partition)
                known.clocks.setdefault(partition, LagClock()).log_was((now_s - age_s, end) for age_s, end in ends)

    def undated(self, name: str) -> list[int]:
        """Partitions that missed transactions already when the job started, while it is not known how old those are."""
        with self._lock:
            known, run = self._logs.get(name), self._runs.get(name)
            return [] if known is None or run is None or not run.status.started else [p for p in known.behind(run.landed()) if p not in known.dated]

    def progressed(self, progress: Mapping[str, Any]) -> None:
        """Accepts a progress report of Spark, as JSON."""
        name = progress.get("name")
        with self._lock:
            run = self._runs.get(name) if name is not None else None
            if name is None or run is None:
                return  # a query of another application
            landed, ends = _offsets(progress)
            run.reported = {**run.reported, **landed}
            if ends:
                self._logs.setdefault(name, _Log()).heard(self._clock(), ends)
            number = progress.get("batchId")
            rows = run.progress().batches.get(number, 0) if number is not None and number != run.last_batch else 0
            if rows:
                run.last_batch = number
                durations = {phase: ms / 1000 for phase, ms in (progress.get("durationMs") or {}).items()}
                batch_s = durations.pop("triggerExecution", 0.0)
                rate = rows / batch_s if batch_s else 0.0
                run.status = replace(run.status, batches=run.status.batches + 1, rows_per_s=rate, batch_s=batch_s, phases_s=durations)
        self._notify(name, bool(rows))

    def statuses(self) -> dict[str, PipelineStatus]:
        """The statuses now, also while no batch ends."""
        with self._lock:
            now_s = self._clock()
            return {name: _status(run, self._logs.get(name, _Log()), now_s) for name, run in self._runs.items()}

    def _notify(self, name: str, batch: bool) -> None:
        status = self.statuses()[name]
        for observer in self._observers:
            observer(name, status, batch)


def _status(run: _Run, known: _Log, now_s: float) -> PipelineStatus:
    progress, landed = run.progress(), run.landed()
    behind = known.behind(landed) if run.status.started else {}
    return replace(
        run.status,
        rows=run.before.transactions + progress.transactions,
        dead_letters=run.before.dead_letters + progress.dead_letters,
        landed=landed,
        log=dict(known.ends),
        lag_transactions=sum(known.ends[partition] - first for partition, first in behind.items()),
        lag_s=max((known.clocks[partition].behind_s(now_s, first) for partition, first in behind.items()), default=0.0),
        log_age_s=0.0 if known.heard_s is None else now_s - known.heard_s,
    )


class PipelineListener(StreamingQueryListener):
    """`spark.streams.addListener(PipelineListener(board))`.

    The JVM calls it with its own events. `pyspark` would ask the JVM for each value of a report, some hundred calls, to make an object of it, which
    cost a fifth of the processor time of a small batch."""

    def __init__(self, board: StatusBoard) -> None:
        self._board = board
        self._wrapped: Any = None

    @property
    def _jlistener(self) -> Any:
        """What `addListener` and `removeListener` give to the JVM."""
        if self._wrapped is None:
            jvm: Any = SparkContext._jvm
            self._wrapped = jvm.PythonStreamingQueryListenerWrapper(self)
        return self._wrapped

    def onQueryStarted(self, event: object) -> None:
        """Ignored: the job reports its start itself, before Spark does."""

    def onQueryProgress(self, event: Any) -> None:
        self._board.progressed(json.loads(event.progress().json()))

    def onQueryIdle(self, event: object) -> None:
        """Ignored: no news."""

    def onQueryTerminated(self, event: object) -> None:
        """Ignored: the job reports the end itself, with the reason."""

    class Java:
        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)


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
