"""The run from start to end: a cluster, a Spark job for two tables, three dispatchers. Then the tables catch up, all stops, and the checks run.

Decides only when each part starts and stops. The applications, the jobs and the cluster are those that a user would run, each in its own process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deltalake import DeltaTable
from rich.console import Console

from demo.checks import Result, check_aircraft, check_flight_legs
from demo.directory import clear
from demo.display import Display, show_answer, show_results
from demo.faults import Fault, FaultPlan
from demo.flights import AIRPORTS, Flight, flights_archive, read_flights
from demo.legs import TOPIC
from demo.processes import Child, ChildFailed, Children
from demo.queries import ask
from demo.spark import AIRCRAFT, FLIGHT_LEGS, READY, metrics_file, submit_command, submit_environment
from demo.watch import Watch
from demo.web_console import keep_until_interrupted, start_web_console
from waltz_log.client.inspection.inspect import ClusterInspector
from waltz_log.processes.local_cluster import LocalCluster

__all__ = ["YEAR_S", "Options", "run"]

PARTITIONS = 4
LOOP_INTERVAL_S = 0.25

YEAR_S = 75.0
"""Duration of the year 2013: each airport receives a day's schedule every 0.2 s. Some 4,500 flights a second leave the Spark job a part of two
cores, so that one can watch the tables follow. Without a pace the log uses twice as much, and the tables follow later."""

OPENING_FLIGHTS = 300
"""Of each airport, before the others: about a day."""

BEHIND = "behind.json"
"""How far each table was behind the log, for programs; beside the tables."""

TABLES = (FLIGHT_LEGS, AIRCRAFT)


@dataclass(frozen=True)
class Options:
    directory: Path
    faults: bool = False
    limit: int | None = None
    """Only the first flights of each airport: a short run."""
    year_s: float = YEAR_S
    secure: bool = False
    """Mutual TLS on every connection. Dispatchers are applications, the Spark job is a reader."""
    keep: bool = False
    """Serves the web console, which stays with the cluster until Ctrl-C."""

    @property
    def tables(self) -> dict[str, Path]:
        return {table: self.directory / "tables" / table for table in TABLES}

    @property
    def counts(self) -> dict[str, Path]:
        """The file to which each dispatcher writes its counts."""
        return {airport: self.directory / "logs" / f"{airport}.jsonl" for airport in AIRPORTS}


class _Run:
    """Starts, kills and ends the parts in their order."""

    def __init__(self, options: Options, cluster: LocalCluster, children: Children, watch: Watch, display: Display) -> None:
        self._options = options
        self._cluster = cluster
        self._children = children
        self._watch = watch
        self._display = display
        self._job: Child | None = None
        """None: killed, and not started again yet."""
        self._killed: set[str] = set()

    def fly(self) -> float:
        """Everything up to the stopped jobs; returns for how many seconds the dispatchers ran."""
        self._start_job()
        while self._job is not None and self._job.said(READY) < len(TABLES):  # earlier flights would only pile up
            self._step("Spark starts")
        self._announce("both pipelines are ready, the dispatchers append the first flights")
        began_s = self._watch.elapsed_s
        opening = min(OPENING_FLIGHTS, self._options.limit or OPENING_FLIGHTS)
        first = [self._start_dispatcher(airport, 0, opening) for airport in AIRPORTS]
        while [dispatcher for dispatcher in first if dispatcher.check()] or not self._watch.has_all(opening * len(AIRPORTS)):
            self._step("the first batches")  # in which Spark loads and compiles what every later one needs
        self._announce("both tables hold them, the dispatchers append the others")
        self._watch.measure_lag()
        dispatchers = [self._start_dispatcher(airport, opening, self._options.limit) for airport in AIRPORTS]
        plan = FaultPlan(self._faults() if self._options.faults else [])
        while [dispatcher for dispatcher in dispatchers if dispatcher.check()]:
            self._step("dispatching", plan)
        self._watch.poll()
        took_s = self._watch.elapsed_s - began_s
        self._announce("all flights are in the log")
        while not (plan.finished and self._watch.caught_up):
            self._step("tables catch up", plan)
        self._announce("both tables have reached the high-water marks")
        if self._job is not None:
            self._job.terminate()
            self._job.wait()
        return took_s

    def _step(self, phase: str, plan: FaultPlan | None = None) -> None:
        """Polls everything once. A part that ended without being killed by us is a failure, even if the others could continue."""
        if self._job is not None and not self._job.check():
            raise ChildFailed(f"{self._job.name} ended by itself; the end of {self._job.log}:\n{self._job.last_words()}")
        for name in sorted(set(self._cluster.ended) - self._killed):
            raise ChildFailed(f"{name} ended by itself: {self._cluster.how_ended(name)}")
        self._watch.poll()
        for done in plan.advance(self._watch.share, self._watch.elapsed_s) if plan is not None else ():
            self._announce(done)
        self._display.show(self._watch.snapshot(phase))
        time.sleep(LOOP_INTERVAL_S)

    def _announce(self, what: str) -> None:
        self._display.event(self._watch.elapsed_s, what)

    def _start_job(self) -> None:
        environment = submit_environment(cluster=self._cluster.cluster, directory=self._options.directory)
        environment |= self._cluster.variables("reader", "spark")
        metrics = metrics_file(self._options.directory) if self._options.keep else None
        self._job = self._children.start("spark", submit_command(metrics), environment=environment)

    def _start_dispatcher(self, airport: str, skip: int, limit: int | None) -> Child:
        command = [sys.executable, "-m", "demo.dispatcher", airport, f"--cluster={self._cluster.cluster}", f"--year={self._options.year_s}"]
        command += [f"--skip={skip}", *([] if limit is None else [f"--limit={limit}"])]
        environment = self._cluster.variables("application", airport)
        return self._children.start(f"dispatcher-{airport}", command, environment=environment, stdout=self._options.counts[airport], yields=True)

    def _faults(self) -> list[Fault]:
        def kill(name: str) -> None:
            self._killed.add(name)
            self._cluster.kill(name)

        def start(name: str) -> None:
            self._cluster.start(name)
            self._killed.discard(name)

        def kill_driver() -> None:
            if self._job is not None:
                self._job.kill()
            self._job = None

        return [
            Fault("storage-1", 0.25, lambda: kill("storage-1"), lambda: start("storage-1"), 5.0),
            Fault("server-0", 0.45, lambda: kill("server-0"), lambda: start("server-0"), 5.0),
            Fault("the Spark driver", 0.65, kill_driver, self._start_job, 1.0, worthwhile=lambda: self._watch.rows(FLIGHT_LEGS) > 0),
        ]


def run(options: Options, console: Console) -> bool:
    """True if every check held."""
    directory = options.directory
    clear(directory)
    (directory / "logs").mkdir()
    archive = flights_archive()
    started_s = time.monotonic()
    console.print(f"The airline: {len(AIRPORTS)} dispatchers, {PARTITIONS} log partitions on three replicas, a Spark job; all in {_shown(directory)}")
    with (
        LocalCluster(directory / "cluster", partitions=PARTITIONS, storages=3, servers=2, secure=options.secure) as cluster,
        Children(directory / "logs") as children,
    ):
        os.environ.update(cluster.variables("operator", "demo"))
        if cluster.secure:
            roles = "the dispatchers are applications, the Spark job is a reader, the demo is an operator"
            console.print(f"Every connection of the cluster uses mutual TLS: {roles}.")
        _create_topic(cluster.cluster)
        if options.keep:
            web, url = start_web_console(children, cluster.cluster, directory)
            plain = " (plain text between the browser and it, on this machine only)" if cluster.secure and url.startswith("http:") else ""
            console.print(f"The console shows it while it runs: {url}{plain}", highlight=False, soft_wrap=True)
        flights = [flight for airport in AIRPORTS for flight in read_flights(archive, airport)[: options.limit]]
        with ClusterInspector(cluster.cluster, timeout_s=5) as inspector, Display(console) as display:
            watch = Watch(inspector, options.tables, options.counts, len(flights))
            dispatched_s = _Run(options, cluster, children, watch, display).fly()
        if options.keep:
            ok = _conclude(options, console, flights, watch, started_s, dispatched_s)
            console.print(f"\n[bold]The console[/]  {url}  (Ctrl-C ends it and the cluster)", highlight=False, soft_wrap=True)
            keep_until_interrupted(web.check)
            return ok
    return _conclude(options, console, flights, watch, started_s, dispatched_s)


def _conclude(options: Options, console: Console, flights: list[Flight], watch: Watch, started_s: float, dispatched_s: float) -> bool:
    """Checks the tables and shows what came of it. True if every check held."""
    results = _check(options.tables, flights, watch.log_marks)
    show_results(console, results)
    for query, columns, rows in ask(options.tables):
        show_answer(console, query, columns, rows)
    took_s = time.monotonic() - started_s
    behind_s = {table: round(watch.behind_p95_s(table), 2) for table in TABLES}
    (options.directory / BEHIND).write_text(json.dumps({"flights": len(flights), "dispatched_s": round(dispatched_s, 1), "behind_p95_s": behind_s}))
    behind = ", ".join(f"{table} {seconds:.1f} s" for table, seconds in behind_s.items())
    console.print(
        f"\nWhile flights were appended, the tables were behind the log by at most (95 % of the time): {behind}.", highlight=False, soft_wrap=True
    )
    console.print(
        f"{len(flights):,} flights in {dispatched_s:.0f} s, {watch.conflicts:,} lock conflicts decided again, "
        f"{watch.settled:,} unknown outcomes read from the log, at most {watch.memory_peak / 2**30:.1f} GiB; {took_s:.0f} s in all.",
        highlight=False,
        soft_wrap=True,
    )
    ok = all(result.ok for result in results)
    if ok:
        _what_next(console, options)
    else:
        console.print(f"[bold red]The tables differ from the flights.[/] What every process wrote: {_shown(options.directory / 'logs')}")
    return ok


def _create_topic(cluster: str) -> None:
    """As the operator of the cluster would."""
    command = [sys.executable, "-m", "waltz_log.cli", "topic", "create", cluster, TOPIC, f"--partitions={PARTITIONS}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise ChildFailed(f"the topic could not be made: {done.stderr.strip()}")


def _check(paths: Mapping[str, Path], flights: list[Flight], marks: Mapping[int, int]) -> list[Result]:
    legs, aircraft = (DeltaTable(str(paths[table])).to_pyarrow_table() for table in TABLES)
    return check_flight_legs(legs, flights, marks) + check_aircraft(aircraft, flights)


def _what_next(console: Console, options: Options) -> None:
    table = options.tables[FLIGHT_LEGS]
    sql = f"SELECT origin, count(*) FROM delta.`{table}` GROUP BY origin"
    console.print("\n[bold]What to try next[/]")
    for what, command in (
        ("the same while a storage node, a server and a Spark driver are killed", "make demo FAULTS=1"),
        ("the same with pages to look at, while it runs and afterwards", "make demo KEEP=1"),
        ("SQL on the tables, in Spark", f"PATH=.venv/bin:$PATH spark-sql --properties-file conf/spark-defaults.conf -e '{sql}'"),
        ("what the job was told to do for a table", "less demo/pipelines/aircraft.yaml"),
        ("the commits that filled a table", f".venv/bin/python -c 'from deltalake import DeltaTable as T; print(T(\"{table}\").history(3))'"),
        ("the application: append, conflict, read on, append again", "less demo/dispatcher.py"),
    ):
        console.print(f"  # {what}\n  {command}", highlight=False, markup=False, soft_wrap=True)


def _shown(path: Path) -> Path:
    """Relative if that is shorter."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
