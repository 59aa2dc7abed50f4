"""How far a job is: a bar with rate and time left in a terminal, a line every ten seconds elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TextIO

__all__ = ["Progress", "progress"]

LINE_INTERVAL_S = 10.0


class Progress(Protocol):
    def advance(self, count: int) -> None:
        """So many more are done."""


@contextmanager
def progress(what: str, total: int, *, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> Iterator[Progress]:
    """Of `total` things, counted by `advance`; told on standard error."""
    out = stream if stream is not None else sys.stderr
    if not out.isatty():
        yield _Lines(what, total, out, clock)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(file=out)) as bar:
        task = bar.add_task(what, total=total)

        class Advancing:
            def advance(self, count: int) -> None:
                bar.advance(task, count)

        yield Advancing()


class _Lines:
    def __init__(self, what: str, total: int, stream: TextIO, clock: Callable[[], float]) -> None:
        self._what, self._total, self._stream, self._clock = what, total, stream, clock
        self._done = 0
        self._began_s = self._told_s = clock()

    def advance(self, count: int) -> None:
        self._done += count
        now_s = self._clock()
        if now_s - self._told_s >= LINE_INTERVAL_S or self._done >= self._total:
            self._told_s = now_s
            rate = self._done / max(now_s - self._began_s, 1e-6)
            print(f"{self._what}: {self._done:,} of {self._total:,}, {rate:,.0f}/s", file=self._stream, flush=True)
