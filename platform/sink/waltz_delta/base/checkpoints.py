"""Writes Delta's checkpoints in a background thread, so that no batch waits for one.

Delta writes a checkpoint of the table's log after every tenth commit (`delta.checkpointInterval`), within the commit. That batch runs seconds longer,
and every later row waits. The sink avoids this in two ways. Its own commits leave the checkpoint to one thread of the driver. And a table that the
sink creates has an interval of 100, because Delta also rebuilds the table's state within the commit at each multiple of the interval, for its
statistics, even if another thread writes the checkpoint. On such a table the thread writes a checkpoint after every tenth commit, as Delta would.

A checkpoint is only a faster way to read the log. If one is lost with the driver, nothing else is lost: the next one covers it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Final

import structlog

__all__ = ["CHECKPOINTS", "Checkpoints", "checkpoint_every", "with_interval"]

log = structlog.get_logger(__name__)

INTERVAL: Final = "delta.checkpointInterval"
TABLE_INTERVAL: Final = 100
"""In commits, for a table that the sink creates, unless the caller's properties set one."""
EVERY: Final = 10
"""Commits between two checkpoints of the sink, on a table with `TABLE_INTERVAL`."""


def with_interval(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties of a new table."""
    given = {name.lower() for name in properties}
    return dict(properties) if INTERVAL.lower() in given else {INTERVAL: str(TABLE_INTERVAL), **properties}


def checkpoint_every(interval: int) -> int:
    """Commits between two checkpoints. `interval`: the table's interval; one that a user chose is kept."""
    return EVERY if interval == TABLE_INTERVAL else interval


class Checkpoints:
    """A thread that runs while there is work. At most one checkpoint per table is queued: it covers everything that is committed until it is
    written."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: dict[str, Callable[[], None]] = {}
        self._scheduled: dict[str, int] = {}
        """By table path, the version at which its last checkpoint was scheduled."""
        self._busy = False

    def committed(self, path: str, version: int, every: int, newest: int, write: Callable[[], None]) -> None:
        """Schedules a checkpoint if the last one is `every` commits old. `newest`: the version of the newest checkpoint that the commit saw, -1 for
        none."""
        scheduled = self._scheduled.get(path, 0)
        if scheduled > version:  # the table was replaced
            scheduled = 0
        if version - max(newest, scheduled) >= every:
            self._scheduled[path] = version
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
