"""Shows the progress of a job: in a terminal a bar with rate and remaining time, otherwise a line every ten seconds."""

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
        """This many more are done."""


@contextmanager
def progress(what: str, total: int, *, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> Iterator[Progress]:
    """Shows on standard error how many of `total` are done, as counted by `advance`."""
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
        self._began_s = self._reported_s = clock()

    def advance(self, count: int) -> None:
        self._done += count
        now_s = self._clock()
        if now_s - self._reported_s >= LINE_INTERVAL_S or self._done >= self._total:
            self._reported_s = now_s
            rate = self._done / max(now_s - self._began_s, 1e-6)
            print(f"{self._what}: {self._done:,} of {self._total:,}, {rate:,.0f}/s", file=self._stream, flush=True)
