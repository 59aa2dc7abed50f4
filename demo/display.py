"""The output during a run: a live panel in a terminal, otherwise a plain line every few seconds; results and queries at the end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.syntax import Syntax
from rich.table import Table

from demo.checks import Result
from demo.queries import Query

__all__ = ["Display", "Snapshot", "TableLag", "console_here", "show_answer", "show_results", "status_line"]

LINE_INTERVAL_S = 5.0
PLAIN_WIDTH = 150
EVENTS_SHOWN = 6


@dataclass(frozen=True)
class TableLag:
    """How far one table is behind the log."""

    name: str
    rows: int
    transactions: int
    seconds: float


@dataclass(frozen=True)
class Snapshot:
    """The state of the run at one moment; counts since the start, `rate` over the last seconds."""

    phase: str
    elapsed_s: float
    flights: int
    appended: int = 0
    rate: float = 0.0
    conflicts: int = 0
    settled: int = 0
    memory_bytes: int = 0
    by_airport: dict[str, int] = field(default_factory=dict)
    lags: tuple[TableLag, ...] = ()


def console_here() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=PLAIN_WIDTH)


def status_line(now: Snapshot) -> str:
    """All of a snapshot in one line of text."""
    lags = "  ".join(f"{lag.name} behind {lag.transactions:,} / {lag.seconds:.1f} s" for lag in now.lags)
    share = now.appended / now.flights if now.flights else 1.0
    return (
        f"{now.elapsed_s:5.0f} s  {now.phase}: {now.appended:,} of {now.flights:,} ({share:.0%})  {now.rate:,.0f} appends/s  "
        f"{now.conflicts:,} conflicts  {lags}  {now.memory_bytes / 2**30:.1f} GiB"
    )


class Display:
    """Shows snapshots; `event` adds a line that stays."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._events: list[str] = []
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self._next_line_s = 0.0

    def __enter__(self) -> Display:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def event(self, elapsed_s: float, text: str) -> None:
        line = f"{elapsed_s:5.0f} s  {text}"
        self._events.append(line)
        if self._live is None:
            self._console.print(line, highlight=False)

    def show(self, now: Snapshot) -> None:
        if self._live is not None:
            self._live.update(self._panel(now), refresh=True)
        elif now.elapsed_s >= self._next_line_s:
            self._next_line_s = now.elapsed_s + LINE_INTERVAL_S
            self._console.print(status_line(now), highlight=False, soft_wrap=True)

    def _panel(self, now: Snapshot) -> RenderableType:
        numbers = Table.grid(padding=(0, 3))
        numbers.add_row("appended", f"{now.appended:,} of {now.flights:,}", "  ".join(f"{name} {count:,}" for name, count in now.by_airport.items()))
        numbers.add_row("appends/s", f"{now.rate:,.0f}", "three replicas, each on disk at a majority before it counts")
        numbers.add_row("conflicts", f"{now.conflicts:,}", "a dispatcher knew too little, read on and decided again")
        if now.settled:
            numbers.add_row("settled", f"{now.settled:,}", "outcome unknown at first, then read from the log")
        numbers.add_row("memory", f"{now.memory_bytes / 2**30:.1f} GiB", "all processes")
        lags = Table(box=None, header_style="bold")
        for header in ("Delta table", "transactions in it", "behind, transactions", "behind, seconds"):
            lags.add_column(header, justify="left" if header == "Delta table" else "right")
        for lag in now.lags:
            lags.add_row(lag.name, f"{lag.rows:,}", f"{lag.transactions:,}", f"{lag.seconds:.1f}")
        bar = ProgressBar(total=max(now.flights, 1), completed=now.appended)
        return Panel(Group(bar, numbers, "", lags, "", *self._events[-EVENTS_SHOWN:]), title=f"the airline · {now.phase} · {now.elapsed_s:.0f} s")


def show_results(console: Console, results: Sequence[Result]) -> None:
    table = Table(title="The tables against the CSV, read independently", title_justify="left")
    for header in ("table", "claim", "expected", "found", ""):
        table.add_column(header, justify="right" if header in ("expected", "found") else "left")
    for result in results:
        table.add_row(result.table, result.claim, result.expected, result.found, "[green]ok[/]" if result.ok else "[bold red]WRONG[/]")
    console.print(table)
    for result in results:
        if result.examples:
            console.print(f"{result.table}: {result.claim}: {result.examples}", style="red", markup=False)


def show_answer(console: Console, query: Query, columns: Iterable[str], rows: Iterable[Sequence[Any]]) -> None:
    console.print(f"\n[bold]{query.question}[/]")
    console.print(Syntax(query.sql, "sql", background_color="default", word_wrap=True))
    table = Table(box=None, padding=(0, 2))
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*(f"{value:,}" if isinstance(value, int) else str(value) for value in row))
    console.print(table)
