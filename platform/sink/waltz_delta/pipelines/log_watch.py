"""Asks the log every few seconds how far it is, one thread for each pipeline, so that a lag is true while a batch runs, hangs or fails.

Spark reports the end of the log only when a batch has ended. A question costs each owner one small request. If the cluster does not answer, the board
keeps the last known ends, and their age shows it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, Self

from pyspark_waltz.log_view import LogView, inspect_cluster
from pyspark_waltz.offsets import Extent
from pyspark_waltz.options import SourceOptions
from pyspark_waltz.positions import EARLIEST
from waltz_delta.pipelines.listener import StatusBoard
from waltz_delta.pipelines.pipeline import PipelineSettings
from waltz_log.errors import WaltzError
from waltz_log.loggers import get_logger

__all__ = ["LogWatch", "WatchedView"]

log = get_logger(__name__)

PAUSE_S = 2.0
"""Between two questions: how exact a lag in seconds is."""

END_S = 1.0
"""How long the end of the job waits for a question that is on its way."""

AGES_S = tuple(1.26**step for step in range(64))
"""From a second to 24 days, so that the age of the oldest missing transaction is known to a quarter. A question has at most 64."""


class WatchedView(Protocol):
    """The part of `LogView` that is used here."""

    def extents(self) -> Mapping[int, Extent]: ...
    def past_ends(self, partitions: Sequence[int], times_ms: Sequence[int]) -> Mapping[int, Sequence[int]]: ...
    def close(self) -> None: ...


def _view(options: SourceOptions) -> WatchedView:
    return LogView(options, inspect_cluster)


class LogWatch:
    """A context for the life of a job. `connect`: opens the view of a pipeline's log. `pause_s`: between two questions."""

    def __init__(
        self,
        board: StatusBoard,
        pipelines: Sequence[PipelineSettings],
        *,
        connect: Callable[[SourceOptions], WatchedView] = _view,
        pause_s: float = PAUSE_S,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._board = board
        self._connect = connect
        self._pause_s = pause_s
        self._now_ms = now_ms
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(each,), name=f"waltz log watch {each.name}", daemon=True) for each in pipelines]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(END_S)

    def _run(self, settings: PipelineSettings) -> None:
        view = self._connect(settings.options)
        failed = False
        try:
            while True:
                try:
                    self.read(settings, view)
                    failed = False
                except WaltzError as error:
                    if not failed:
                        log.warning("log end not read", pipeline=settings.name, reason=str(error))
                    failed = True
                if self._ended.wait(self._pause_s):
                    return
        finally:
            view.close()

    def read(self, settings: PipelineSettings, view: WatchedView) -> None:
        """Reads the log's ends once. Raises `WaltzError`."""
        extents = view.extents()
        self._board.log_read(settings.name, {p: extent.next for p, extent in extents.items()}, _begins(settings.options, extents))
        undated = self._board.undated(settings.name)
        if undated:
            now_ms = self._now_ms()
            found = view.past_ends(undated, [now_ms - round(1000 * age_s) for age_s in AGES_S])
            self._board.log_was(settings.name, {p: tuple(zip(AGES_S, ends, strict=True)) for p, ends in found.items()})


def _begins(options: SourceOptions, extents: Mapping[int, Extent]) -> dict[int, int]:
    """Where a query without a table begins. Left out where only its first batch shows it: at the log's end of that moment, or by time."""
    if options.starting_times is not None or options.starting.topics:
        return {}
    starts = {p: extent.first if options.starting.of(p) == EARLIEST else options.starting.of(p) for p, extent in extents.items()}
    return {p: max(start, extents[p].first) for p, start in starts.items() if start >= 0}
