"""The files and sockets that a node may have open, checked before it opens the first one."""

from __future__ import annotations

from typing import Final

from waltz_log import machine_faults
from waltz_log.errors import InvalidRequest

__all__ = ["SOCKETS_MIN", "prepare_open_files"]

SOCKETS_MIN: Final = 512
"""For clients, other nodes and direct connections; with fewer, a node that a few hundred clients use refuses others."""

WANTED: Final = 65536


def prepare_open_files(files: int) -> None:
    """For a node that keeps this number of files open beside its sockets. Raises the soft limit; workers inherit it. Raises `InvalidRequest` if the
    hard limit is too low."""
    problem = machine_faults.low_file_limit(needed=files + SOCKETS_MIN)
    if problem is not None:
        raise InvalidRequest(reason=problem)
    machine_faults.raise_file_limit(WANTED)
