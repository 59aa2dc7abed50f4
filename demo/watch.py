"""The state of a run as seen from outside: the dispatchers' counts, the marks of the log and of the tables, memory; and whether anything still
advances.

Reads only. Each table reports its own marks, and the log's owners theirs; no part of the pipeline is asked about another one.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path

from demo.dispatcher import Counts
from demo.display import Snapshot, TableLag
from demo.flights import AIRPORTS
from demo.lag import LagClock, committed, table_marks
from demo.processes import memory_bytes
from waltz_log.client.inspection.inspect import ClusterInspector
from waltz_log.errors import WaltzError

__all__ = ["Stalled", "Watch", "last_counts"]

MARKS_INTERVAL_S = 1.0
MEMORY_INTERVAL_S = 2.0
RATE_WINDOW_S = 5.0

STALL_TIMEOUT_S = 150.0
"""The run failed if no append and no new row of a table was seen for this time. A new owner needs seconds; the start of two Spark drivers and their
first batches half a minute, and several times as long on a busy machine."""


class Stalled(RuntimeError):
    """Nothing advanced for too long; the message shows the last state."""


def last_counts(path: Path) -> Counts:
    """The newest complete line that a dispatcher has written."""
    if not path.exists():
        return Counts()
    complete = path.read_bytes()[-4096:].rpartition(b"\n")[0].splitlines()
    return Counts(**json.loads(complete[-1])) if complete else Counts()


class Watch:
    """Call `poll` often; the other methods return what the last poll saw."""

    def __init__(self, inspector: ClusterInspector, tables: Mapping[str, Path], counts: Mapping[str, Path], flights: int) -> None:
        self._inspector = inspector
        self._parameters = inspector.parameters
        self._tables = dict(tables)
        self._counts_files = dict(counts)
        self._flights = flights
        self._started_s = time.monotonic()
        self._counts = {airport: Counts() for airport in AIRPORTS}
        self._table_marks: dict[str, dict[int, int]] = {table: {} for table in tables}
        self._clock = LagClock()
        self._measured = False
        self._behind_s: dict[str, list[float]] = {table: [] for table in tables}
        self._recent: deque[tuple[float, int]] = deque()
        self._memory = 0
        self._next_marks_s = self._next_memory_s = 0.0
        self._moved: tuple[int, ...] = ()
        self._moved_s = 0.0
        self.log_marks: dict[int, int] = {}
        self.memory_peak = 0

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started_s

    @property
    def appended(self) -> int:
        return sum(counts.appended for counts in self._counts.values())

    @property
    def conflicts(self) -> int:
        return sum(counts.conflicts for counts in self._counts.values())

    @property
    def settled(self) -> int:
        return sum(counts.settled for counts in self._counts.values())

    @property
    def share(self) -> float:
        return self.appended / max(self._flights, 1)

    def rows(self, table: str) -> int:
        """The number of transactions that the table's marks cover."""
        return committed(self._table_marks[table])

    def has_all(self, flights: int) -> bool:
        """Whether this number of flights is in the log and in every table."""
        return committed(self.log_marks) >= flights and all(self.rows(table) >= flights for table in self._tables)

    def measure_lag(self) -> None:
        """From now on."""
        self._measured = True

    @property
    def caught_up(self) -> bool:
        """All flights are in the log, and all of the log is in every table."""
        return committed(self.log_marks) >= self._flights and all(marks == self.log_marks for marks in self._table_marks.values())

    def behind_p95_s(self, table: str) -> float:
        """How far the table was behind the log while flights were appended, since `measure_lag`: the 95th percentile of the states that were read, in
        seconds."""
        behind_s = sorted(self._behind_s[table])
        return behind_s[int(len(behind_s) * 0.95)] if behind_s else 0.0

    def poll(self) -> None:
        """Updates everything; raises `Stalled` if nothing has advanced for too long."""
        now_s = self.elapsed_s
        self._counts = {airport: last_counts(path) for airport, path in self._counts_files.items()}
        if now_s >= self._next_marks_s:
            self._next_marks_s = now_s + MARKS_INTERVAL_S
            self._read_marks()
        if now_s >= self._next_memory_s:
            self._next_memory_s = now_s + MEMORY_INTERVAL_S
            self._memory = memory_bytes()
            self.memory_peak = max(self.memory_peak, self._memory)
        self._recent.append((now_s, self.appended))
        while self._recent[0][0] < now_s - RATE_WINDOW_S:
            self._recent.popleft()
        moved = (self.appended, *(committed(marks) for marks in self._table_marks.values()))
        if moved != self._moved:
            self._moved, self._moved_s = moved, now_s
        elif now_s - self._moved_s > STALL_TIMEOUT_S:
            told = f"appended={self.appended} flights={self._flights} log={self.log_marks} tables={self._table_marks}"
            raise Stalled(f"nothing moved for {STALL_TIMEOUT_S:.0f} s: {told}")

    def _read_marks(self) -> None:
        for table, path in self._tables.items():
            self._table_marks[table] = table_marks(path, str(self._parameters.key), self._parameters.partitions)
        try:
            bounds = self._inspector.bounds()
        except WaltzError as error:
            if not error.retriable:
                raise
            return  # between two owners; keep the old marks
        self.log_marks = {partition: bound.high_water_mark for partition, bound in bounds.items()}
        total = committed(self.log_marks)
        self._clock.log_at(self.elapsed_s, total)
        if self._measured and total < self._flights:
            for table, behind_s in self._behind_s.items():
                behind_s.append(self._clock.behind_s(self.elapsed_s, self.rows(table)))

    def snapshot(self, phase: str) -> Snapshot:
        now_s = self.elapsed_s
        (first_s, first), (last_s, last) = self._recent[0], self._recent[-1]
        total = committed(self.log_marks)
        return Snapshot(
            phase=phase,
            elapsed_s=now_s,
            flights=self._flights,
            appended=self.appended,
            rate=(last - first) / (last_s - first_s) if last_s > first_s else 0.0,
            conflicts=self.conflicts,
            settled=self.settled,
            memory_bytes=self._memory,
            by_airport={airport: counts.appended for airport, counts in self._counts.items()},
            lags=tuple(
                TableLag(table, self.rows(table), max(0, total - self.rows(table)), self._clock.behind_s(now_s, self.rows(table)))
                for table in self._tables
            ),
        )
