"""Refuses gRPC in a process that was forked while gRPC ran in its parent.

gRPC's threads do not survive a fork, and the child's copy of its state still counts on them: a new channel hangs or ends the process. gRPC runs as
long as one of its objects exists, and its calls are in reference cycles, so before a fork the cycles of closed clients are collected. Its threads end
a moment after the last object, which a fork waits for. If an object is left, because a client is open or the application itself uses gRPC, the child
is refused with the remedy.
"""

from __future__ import annotations

import gc
import os
import time
from pathlib import Path
from typing import Final

from waltz_log.errors import InvalidRequest

__all__ = ["expect_usable"]

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
"""Off, as the documentation of gRPC for Python says. Without the variable gRPC 1.85 prepares each fork nevertheless, and ends every fourth child of a
process with an open channel with SIGABRT or SIGSEGV, whatever the child does."""

REMEDY: Final = (
    "gRPC was in use when this process was forked from its parent, so it cannot connect here: close every client before the fork and create one "
    "after it, or start the process with the method spawn or forkserver"
)

THREADS: Final = Path("/proc/self/task")

NAMES: Final = ("event_engine", "grpc_", "lifeguard")
"""How the names of gRPC's own threads begin. One of them runs as long as gRPC does."""

OBJECTS: Final = frozenset({"Channel", "AioChannel", "Server", "AioServer"})
"""The types of gRPC's objects that its threads run for. They are not public."""

ENDING_S: Final = 5.0
"""How long a fork waits at most for threads that nothing needs any more. They need less than a millisecond on a machine that is not busy."""


class _State:
    """The state of this process."""

    used = False
    """Whether gRPC may run. Some servers fork without Python's announcement; then it is whether gRPC was used since the last one."""
    inherited = False


def expect_usable() -> None:
    """Called before each use of gRPC. Raises `InvalidRequest` in a child whose parent used gRPC when it forked."""
    if _State.inherited:
        raise InvalidRequest(reason=REMEDY)
    _State.used = True


def _runs() -> bool:
    """Whether gRPC has threads now. Where the operating system does not say: whether it may have."""
    try:
        threads = list(THREADS.iterdir())
    except OSError:
        return _State.used
    for thread in threads:
        try:
            name = (thread / "comm").read_text()
        except OSError:
            continue  # it has ended
        if name.startswith(NAMES):
            return True
    return False


def _needed() -> bool:
    """Whether an object of gRPC is left, so that its threads stay."""
    kinds = map(type, gc.get_objects())
    return any(kind.__name__ in OBJECTS and str(kind.__module__).startswith("grpc") for kind in kinds)


def _before_fork() -> None:
    if _runs():
        gc.collect()
        if not _needed():
            until_s = time.monotonic() + ENDING_S
            while _runs() and time.monotonic() < until_s:
                time.sleep(0.001)
    _State.used = _runs()


def _in_child() -> None:
    """What was made in the parent stays as it is: ending gRPC's objects here waits for threads that do not exist, or aborts."""
    if _State.used:
        _State.inherited = True
        gc.freeze()


os.register_at_fork(before=_before_fork, after_in_child=_in_child)
