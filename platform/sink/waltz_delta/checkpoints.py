"""Writes Delta's checkpoints beside the batches, so that no batch waits for one.

Delta writes a checkpoint of the table's log after every tenth commit (`delta.checkpointInterval`), within the commit: the batch that is due takes
seconds longer, and every row behind it waits. The sink's commits leave it to one thread of the driver. A checkpoint is only a faster way to read the
log, so one that is lost with the driver costs nothing: the next one that is due covers it. MERGE commits by itself and keeps Delta's way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

__all__ = ["CHECKPOINTS", "Checkpoints"]

log = structlog.get_logger(__name__)


class Checkpoints:
    """One thread while there is work. Of a table at most one checkpoint waits: it covers everything that was committed until it is written."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: dict[str, Callable[[], None]] = {}
        self._busy = False

    def schedule(self, path: str, write: Callable[[], None]) -> None:
        """`write` runs soon, in the thread. A failure is logged: the table is whole without the checkpoint."""
        with self._changed:
            self._waiting[path] = write
            if not self._busy:
                self._busy = True
                threading.Thread(target=self._run, name="delta-checkpoints", daemon=True).start()

    def settle(self, timeout_s: float) -> bool:
        """Waits until nothing is left to write. Whether that is so; the session may be stopped in either case."""
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
                log.warning(
                    "a checkpoint of the table's log was not written; the next one covers it", table=path, error=f"{error}".split("\n")[0][:200]
                )


CHECKPOINTS = Checkpoints()
"""Of this process, which has one JVM."""
