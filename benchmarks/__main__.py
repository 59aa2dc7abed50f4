"""`python -m benchmarks [--only NAME] [--quick]`: a table on the screen and `benchmarks/latest.json`.

All of them together run for many minutes; the last lines show the duration of each.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from benchmarks import (
    access,
    append,
    bootstrap,
    catch_up,
    console,
    decode,
    delta_table,
    demo_lag,
    durability,
    failover,
    feed,
    idle,
    journal,
    json_tables,
    lake,
    metrics,
    outbox,
    refill,
    spark,
    storage,
    tls,
    topics,
    visible,
    workers,
)
from benchmarks.log import filled_log
from benchmarks.measurement import Measurement, table, write
from benchmarks.report.__main__ import write_report
from benchmarks.report.history import keep, known_seconds, remember_seconds
from benchmarks.running import LATEST, PROJECT, STOPPED, screen
from benchmarks.setting import FULL, QUICK, Workload, machine_conditions
from waltz_log.errors import InvalidSetting, WaltzError

__all__ = ["chosen", "main"]

BENCHMARKS = (
    "journal",
    "append",
    "storage",
    "outbox",
    "bootstrap",
    "failover",
    "catch_up",
    "refill",
    "topics",
    "workers",
    "metrics",
    "tls",
    "access",
    "console",
    "visible",
    "decode",
    "json",
    "lake",
    "demo",
    "feed",
    "spark",
    "delta",
)
FIGURES_OF_DELTA = {"delta.visible": "visible", "delta.append_json": "json", "delta.merge_json": "json"}
"""Figures that benchmarks with other names measure."""


def chosen(only: str | None) -> tuple[str, ...]:
    """The benchmarks that `--only` names, by their own name or by the name of one of their figures; all benchmarks if it names none."""
    if only is None:
        return BENCHMARKS
    name = next((room for figure, room in FIGURES_OF_DELTA.items() if only.startswith(figure)), only.partition(".")[0])
    if name not in BENCHMARKS:
        raise InvalidSetting.unknown(only, BENCHMARKS, what="benchmark")
    return (name,)


def measure(names: tuple[str, ...], directory: Path, workload: Workload, *, quick: bool) -> Iterator[Measurement]:
    conditions = machine_conditions(quick=quick)
    if "journal" in names:
        yield from journal.run(directory, workload, conditions)
    if "append" in names:
        yield from append.run(directory, workload, conditions)
    if "storage" in names:
        yield from storage.run(directory, workload, conditions)
    if "outbox" in names:
        yield from outbox.run(directory, workload, conditions)
    if "bootstrap" in names:
        yield from bootstrap.run(directory, conditions, quick=quick)
    if "failover" in names:
        yield from failover.run(directory, workload, conditions)
    if "catch_up" in names:
        yield from catch_up.run(directory, workload, conditions)
    if "refill" in names:
        yield from refill.run(directory, workload, conditions)
    if "topics" in names:
        yield from topics.run(directory, workload, conditions)
        yield from durability.run(directory, workload, conditions)
        yield from idle.run(directory, workload, conditions)
    if "workers" in names:
        yield from workers.run(directory, workload, conditions)
    if "metrics" in names:
        yield from metrics.run(directory, workload, conditions)
    if "tls" in names:
        yield from tls.run(directory, workload, conditions)
    if "access" in names:
        yield from access.run(directory, workload, conditions)
    if "console" in names:
        yield from console.run(directory, workload, conditions)
    if "visible" in names:
        yield from visible.run(directory, conditions, quick=quick)
    if "decode" in names:
        yield from decode.run(conditions, quick=quick)
    if "json" in names:
        yield from json_tables.run(directory, workload, conditions)
    if "lake" in names:
        yield from lake.run(directory, conditions, quick=quick)
    if "demo" in names:
        yield from demo_lag.run(directory, conditions, quick=quick)
    if "feed" in names:
        yield from feed.run_ten(directory, workload, conditions)
    if {"feed", "spark", "delta"}.isdisjoint(names):
        return
    with filled_log(directory, workload) as cluster:
        if "feed" in names:
            yield from feed.run(cluster, workload, conditions)
        if "spark" in names:
            yield from spark.run_noop(cluster, directory, workload, conditions)
            yield from spark.run_trigger(cluster, directory, workload, conditions)
        if "delta" in names:
            yield from delta_table.run(cluster, directory, workload, conditions)


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Side-by-side measurements on this machine. The last lines say how long each of them ran."
    )
    parser.add_argument("--only", metavar="NAME", help=f"one of {', '.join(BENCHMARKS)}, or a figure of one")
    parser.add_argument("--quick", action="store_true", help="a hundredth of the work: shows that everything runs, the figures mean nothing")
    parser.add_argument("--output", type=Path, default=LATEST, help="where the figures are written, and a page with charts beside them")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, _stop)
    console = screen()
    directory = PROJECT / "var" / "bench"
    found: list[Measurement] = []
    started_s = time.monotonic()
    try:
        names = chosen(arguments.only)
        keep(arguments.output)
        kind = f"{'quick ' if arguments.quick else ''}{'all' if arguments.only is None else names[0]}"
        known_s = known_seconds(arguments.output, kind)
        expected = "takes many minutes the first time" if known_s is None else f"takes about {known_s:.0f} s, as the last time here"
        console.print(expected, highlight=False)
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        spent_s: dict[str, float] = {}
        last_s = started_s
        for measurement in measure(names, directory, QUICK if arguments.quick else FULL, quick=arguments.quick):
            found.append(measurement)
            now_s = time.monotonic()
            room = measurement.name.partition(".")[0]
            spent_s[room], last_s = spent_s.get(room, 0.0) + now_s - last_s, now_s
            console.print(f"{measurement.name}  {measurement.document()['value']:,} {measurement.unit}", highlight=False)
    except KeyboardInterrupt:
        console.print("stopped")
        return STOPPED
    except (WaltzError, RuntimeError) as error:
        console.print(f"the benchmark failed: {error}", style="red", markup=False, highlight=False)
        return 1
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        if found:
            write(arguments.output, found)
    console.print(table(found))
    console.print(", ".join(f"{room} {each_s:.0f} s" for room, each_s in spent_s.items()), highlight=False)
    remember_seconds(arguments.output, kind, time.monotonic() - started_s)
    report = arguments.output.with_name("report.html")
    write_report(arguments.output, report)
    console.print(f"{time.monotonic() - started_s:.0f} s; written to {arguments.output}, with charts to {report}", highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
