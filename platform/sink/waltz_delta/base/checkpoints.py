"""Writes Delta's checkpoints in a background thread, so that no batch waits for one.

By default Delta writes a checkpoint of the table's log after every tenth commit, within the commit. That batch runs seconds longer, and every later
row waits. The sink's own commits leave the checkpoint to one thread of the driver. `checkpoint_pace` decides when one is due.

A checkpoint is only a faster way to read the log. If one is lost with the driver, nothing else is lost: the next one covers it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from waltz_delta.base.checkpoint_pace import CheckpointPace
from waltz_log.loggers import get_logger

__all__ = ["CHECKPOINTS", "Checkpoints"]

log = get_logger(__name__)


class _Scheduled(NamedTuple):
    """The last checkpoint of a table that this process scheduled. Before the first one: version 0, at the first commit of this process."""

    version: int
    at_s: float


class Checkpoints:
    """A thread that runs while there is work. At most one checkpoint per table is queued: it covers everything that is committed until it is
    written."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._waiting: dict[str, Callable[[], None]] = {}
        self._scheduled: dict[str, _Scheduled] = {}
        """By table path."""
        self._busy = False

    def committed(self, path: str, version: int, pace: CheckpointPace, newest: int, write: Callable[[], None]) -> None:
        """Schedules a checkpoint if one is due. `newest`: the version of the newest checkpoint that the commit saw, of any writer; -1 for none."""
        now_s = self._clock()
        last = self._scheduled.get(path)
        if last is None or last.version > version:  # the first commit, or the table was replaced
            last = _Scheduled(0, now_s)
        due = pace.is_due(version - max(newest, last.version), now_s - last.at_s)
        self._scheduled[path] = _Scheduled(version, now_s) if due else last
        if due:
            self.schedule(path, write)

    def schedule(self, path: str, write: Callable[[], None]) -> None:
        """Runs `write` soon, in the thread. A failure is only logged, because the table is complete without the checkpoint."""
        with self._changed:
            self._waiting[path] = write
            if not self._busy:
                self._busy = True
                threading.Thread(target=self._run, name="delta-checkpoints", daemon=True).start()

    def settle(self, timeout_s: float) -> bool:
        """Waits until no checkpoint is queued or being written, and returns whether that happened in time. The session may be stopped in either
        case."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._busy, timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._waiting:
                    self._busy = False
                    self._changed.notify_all()
                    return
                path = next(iter(self._waiting))
                write = self._waiting.pop(path)
            try:
                write()
            except Exception as error:
                log.warning("table checkpoint not written", table=path, error=f"{error}".split("\n")[0][:200])


CHECKPOINTS = Checkpoints()
"""One for the process, which has one JVM."""
