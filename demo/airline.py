"""The run from start to end: a cluster, two Spark jobs, three dispatchers; then the tables catch up, everything stops, and the checks speak.

Decides only when each part starts and stops. The applications, the jobs and the cluster are what a user would run, each in processes of its own.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deltalake import DeltaTable
from rich.console import Console

from demo.checks import Result, check_aircraft, check_flight_legs
from demo.dispatcher import Counts
from demo.display import Display, Snapshot, TableLag, show_answer, show_results
from demo.faults import Fault, FaultPlan
from demo.flights import AIRPORTS, Flight, flights_archive, read_flights
from demo.lag import LagClock, committed, table_marks
from demo.processes import Child, ChildFailed, Children, memory_bytes
from demo.queries import ask
from demo.spark import AIRCRAFT, FLIGHT_LEGS, READY, submit_command, submit_environment
from waltz_log.client.inspect import ClusterInspector
from waltz_log.errors import InvalidSetting, WaltzError
from waltz_log.testing.local import LocalCluster

__all__ = ["Options", "Stalled", "clear", "last_counts", "run"]

PARTITIONS = 4
LOOP_INTERVAL_S = 0.25
MARKS_INTERVAL_S = 1.0
MEMORY_INTERVAL_S = 2.0
RATE_WINDOW_S = 5.0
STALL_TIMEOUT_S = 90.0
"""Without one more append, or one more row in a table, for this long the run failed: a takeover takes seconds, a restarted driver half a minute."""

YEAR_S = 75.0
"""How long the year 2013 takes: each airport gets a day's schedule every 0.2 s. Some 4,500 flights a second leave the Spark jobs a part of
two cores, so that the tables can be watched following; without a pace the log takes twice as many, and the tables follow later."""

MARKER = ".waltz-demo"

TABLES = (FLIGHT_LEGS, AIRCRAFT)


class Stalled(RuntimeError):
    """Nothing moved for too long; the message says what was waited for."""


@dataclass(frozen=True)
class Options:
    directory: Path
    faults: bool = False
    limit: int | None = None
    """Only the first flights of each airport: a short run."""
    year_s: float = YEAR_S


@dataclass
class _Progress:
    """What the children have reported so far."""

    counts: dict[str, Counts]
    log_marks: dict[int, int]
    table_marks: dict[str, dict[int, int]]

    @property
    def appended(self) -> int:
        return sum(counts.appended for counts in self.counts.values())

    def moved(self) -> tuple[int, ...]:
        """Rises with everything that counts as progress."""
        return (self.appended, *(committed(marks) for marks in self.table_marks.values()))


def last_counts(path: Path) -> Counts:
    """The newest complete line that a dispatcher has written."""
    if not path.exists():
        return Counts()
    complete = path.read_bytes()[-4096:].rpartition(b"\n")[0].splitlines()
    return Counts(**json.loads(complete[-1])) if complete else Counts()


class _Run:
    def __init__(self, options: Options, flights: list[Flight], cluster: LocalCluster, children: Children, display: Display) -> None:
        self._options = options
        self._flights = len(flights)
        self._cluster = cluster
        self._children = children
        self._display = display
        self._started_s = time.monotonic()
        self._progress = _Progress({airport: Counts() for airport in AIRPORTS}, {}, {table: {} for table in TABLES})
        self._jobs: dict[str, Child] = {}
        self._killed: set[str] = set()
        self._clock = LagClock()
        self._recent: deque[tuple[float, int]] = deque()
        self._memory = 0
        self.memory_peak = 0
        self.dispatched_s = 0.0
        self._began_s = 0.0
        self._next_marks_s = self._next_memory_s = 0.0
        self._moved: tuple[int, ...] = ()
        self._moved_s = self._started_s
        self._inspector = ClusterInspector(cluster.cluster, timeout_s=5)
        self._cluster_key = str(self._inspector.parameters.key)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started_s

    @property
    def counts(self) -> Mapping[str, Counts]:
        return self._progress.counts

    def fly(self) -> dict[int, int]:
        """Everything up to the stopped jobs; returns the log's high-water marks, which both tables have reached."""
        for table in TABLES:
            self._start_job(table)
        self._wait_for_jobs()
        self._began_s = self.elapsed_s
        dispatchers = [self._start_dispatcher(airport) for airport in AIRPORTS]
        plan = FaultPlan(self._faults() if self._options.faults else [])
        while True:
            flying = [dispatcher.check() for dispatcher in dispatchers]
            for job in self._jobs.values():
                job.check()
            self._check_cluster()
            self._look()
            for done in plan.advance(self._progress.appended / max(self._flights, 1), self.elapsed_s):
                self._display.event(self.elapsed_s, done)
            if not any(flying):
                if not self.dispatched_s:
                    self.dispatched_s = self.elapsed_s - self._began_s
                    self._display.event(self.elapsed_s, "all flights are in the log")
                if plan.finished and self._caught_up():
                    break
            self._display.show(self._snapshot("dispatching" if any(flying) else "tables catch up"))
            time.sleep(LOOP_INTERVAL_S)
        self._display.event(self.elapsed_s, "both tables have reached the high-water marks")
        for job in self._jobs.values():
            job.terminate()
        for job in self._jobs.values():
            job.wait()
        self._inspector.close()
        return self._progress.log_marks

    def _wait_for_jobs(self) -> None:
        """Until both queries run. Flights before that would only pile up, and nothing would be seen of the tables."""
        while not all(job.said(READY) for job in self._jobs.values()):
            for job in self._jobs.values():
                job.check()
            self._check_cluster()
            self._look()
            self._display.show(self._snapshot("Spark starts"))
            time.sleep(LOOP_INTERVAL_S)
        self._display.event(self.elapsed_s, "both Spark jobs are ready, the dispatchers start")

    def _check_cluster(self) -> None:
        """A process of the cluster that ended without our killing it is a failure, though the others go on."""
        for name in sorted(set(self._cluster.ended) - self._killed):
            raise ChildFailed(f"{name} ended by itself: {self._cluster.last_words(name)}")

    def _kill(self, name: str) -> None:
        self._killed.add(name)
        self._cluster.kill(name)

    def _start(self, name: str) -> None:
        self._cluster.start(name)
        self._killed.discard(name)

    def _start_job(self, table: str) -> None:
        command = submit_command(table, cluster=self._cluster.cluster, directory=self._options.directory, partitions=PARTITIONS)
        self._jobs[table] = self._children.start(f"spark-{table}", command, environment=submit_environment())

    def _start_dispatcher(self, airport: str) -> Child:
        command = [sys.executable, "-m", "demo.dispatcher", airport, f"--cluster={self._cluster.cluster}"]
        command.append(f"--year={self._options.year_s}")
        if self._options.limit is not None:
            command.append(f"--limit={self._options.limit}")
        return self._children.start(f"dispatcher-{airport}", command, stdout=self._counts_path(airport))

    def _counts_path(self, airport: str) -> Path:
        return self._options.directory / "logs" / f"{airport}.jsonl"

    def _faults(self) -> list[Fault]:
        def kill_driver() -> None:
            self._jobs[FLIGHT_LEGS].kill()
            del self._jobs[FLIGHT_LEGS]

        def has_committed() -> bool:
            return committed(self._progress.table_marks[FLIGHT_LEGS]) > 0

        return [
            Fault("storage-1", 0.25, lambda: self._kill("storage-1"), lambda: self._start("storage-1"), 5.0),
            Fault("server-0", 0.45, lambda: self._kill("server-0"), lambda: self._start("server-0"), 5.0),
            Fault(f"the Spark driver of {FLIGHT_LEGS}", 0.65, kill_driver, lambda: self._start_job(FLIGHT_LEGS), 1.0, has_committed),
        ]

    def _look(self) -> None:
        """Brings progress up to date; raises `Stalled` where there has been none for too long."""
        now_s = self.elapsed_s
        self._progress.counts = {airport: last_counts(self._counts_path(airport)) for airport in AIRPORTS}
        if now_s >= self._next_marks_s:
            self._next_marks_s = now_s + MARKS_INTERVAL_S
            self._look_at_marks()
        if now_s >= self._next_memory_s:
            self._next_memory_s = now_s + MEMORY_INTERVAL_S
            self._memory = memory_bytes()
            self.memory_peak = max(self.memory_peak, self._memory)
        self._recent.append((now_s, self._progress.appended))
        while self._recent[0][0] < now_s - RATE_WINDOW_S:
            self._recent.popleft()
        moved = self._progress.moved()
        if moved != self._moved:
            self._moved, self._moved_s = moved, time.monotonic()
        elif time.monotonic() - self._moved_s > STALL_TIMEOUT_S:
            words = "\n".join(f"-- {name}\n{job.last_words()}" for name, job in self._jobs.items())
            raise Stalled(f"nothing moved for {STALL_TIMEOUT_S:.0f} s: {self._progress}\n{words}")

    def _look_at_marks(self) -> None:
        for table in TABLES:
            self._progress.table_marks[table] = table_marks(self._options.directory / "tables" / table, self._cluster_key, PARTITIONS)
        try:
            bounds = self._inspector.bounds()
        except WaltzError as error:
            if not error.retriable:
                raise
            return  # between two owners; the marks stay as they were
        self._progress.log_marks = {partition: bound.high_water_mark for partition, bound in bounds.items()}
        self._clock.log_at(self.elapsed_s, committed(self._progress.log_marks))

    def _caught_up(self) -> bool:
        log = self._progress.log_marks
        return committed(log) >= self._flights and all(self._progress.table_marks[table] == log for table in TABLES)

    def _snapshot(self, phase: str) -> Snapshot:
        progress, now_s = self._progress, self.elapsed_s
        (first_s, first), (last_s, last) = self._recent[0], self._recent[-1]
        total = committed(progress.log_marks)
        rows = {table: committed(progress.table_marks[table]) for table in TABLES}
        return Snapshot(
            phase=phase,
            elapsed_s=now_s,
            flights=self._flights,
            appended=progress.appended,
            rate=(last - first) / (last_s - first_s) if last_s > first_s else 0.0,
            conflicts=sum(counts.conflicts for counts in progress.counts.values()),
            settled=sum(counts.settled for counts in progress.counts.values()),
            memory_bytes=self._memory,
            by_airport={airport: counts.appended for airport, counts in progress.counts.items()},
            lags=tuple(TableLag(table, rows[table], max(0, total - rows[table]), self._clock.behind_s(now_s, rows[table])) for table in TABLES),
        )


def clear(directory: Path) -> None:
    """An empty directory; what an earlier demo left there is removed, anything else is not touched."""
    marker = directory / MARKER
    if directory.exists() and any(directory.iterdir()) and not marker.exists():
        raise InvalidSetting(name="--directory", reason=f"{directory} holds something that is not of a demo", nearest=None)
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    marker.write_text("python -m demo empties this directory at its start\n")


def run(options: Options, console: Console) -> bool:
    """True where every check held."""
    directory = options.directory
    clear(directory)
    (directory / "logs").mkdir()
    archive = flights_archive()
    started_s = time.monotonic()
    console.print(
        f"The airline: {len(AIRPORTS)} dispatchers, {PARTITIONS} log partitions on three replicas, two Spark jobs; all in {_shown(directory)}"
    )
    with LocalCluster(directory / "cluster", partitions=PARTITIONS, storages=3, servers=2) as cluster, Children(directory / "logs") as children:
        flights = [flight for airport in AIRPORTS for flight in read_flights(archive, airport)[: options.limit]]
        with Display(console) as display:
            flying = _Run(options, flights, cluster, children, display)
            marks = flying.fly()
    paths = {table: directory / "tables" / table for table in TABLES}
    results = _check(paths, flights, marks)
    show_results(console, results)
    for query, columns, rows in ask(paths):
        show_answer(console, query, columns, rows)
    _summary(console, flying, len(flights), time.monotonic() - started_s, options, all(result.ok for result in results))
    return all(result.ok for result in results)


def _check(paths: Mapping[str, Path], flights: list[Flight], marks: Mapping[int, int]) -> list[Result]:
    legs, aircraft = (DeltaTable(str(paths[table])).to_pyarrow_table() for table in TABLES)
    return check_flight_legs(legs, flights, marks) + check_aircraft(aircraft, flights)


def _summary(console: Console, flying: _Run, flights: int, took_s: float, options: Options, ok: bool) -> None:
    conflicts = sum(counts.conflicts for counts in flying.counts.values())
    settled = sum(counts.settled for counts in flying.counts.values())
    console.print(
        f"\n{flights:,} flights in {flying.dispatched_s:.0f} s, {conflicts:,} lock conflicts decided again, "
        f"{settled:,} unknown outcomes read from the log, at most {flying.memory_peak / 2**30:.1f} GiB; {took_s:.0f} s in all.",
        highlight=False,
    )
    if not ok:
        console.print("[bold red]The tables differ from the flights.[/] Logs of every process: " + str(options.directory / "logs"))
        return
    table = _shown(options.directory / "tables" / FLIGHT_LEGS)
    console.print("\n[bold]What to try next[/]")
    for what, command in (
        ("the same while a storage node, a server and a Spark driver are killed", "make demo FAULTS=1"),
        ("the queries above, in Spark", f".venv/bin/spark-sql --properties-file conf/spark-defaults.conf -e 'SELECT count(*) FROM delta.`{table}`'"),
        ("the commits that filled the table", f".venv/bin/python -c 'from deltalake import DeltaTable as T; print(T(\"{table}\").history(3))'"),
        ("the application: append, conflict, read on, append again", "less demo/dispatcher.py"),
    ):
        console.print(f"  # {what}\n  {command}", highlight=False, markup=False, soft_wrap=True)


def _shown(path: Path) -> Path:
    """Relative where that is shorter to read."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
