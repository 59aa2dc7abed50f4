"""What a node that starts waits for: its predecessor's last process, which may still hold the address or the directory.

A supervisor that was killed leaves workers, which the kernel ends a moment later, and one that waits for a disk ends when the disk answers.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import TypeVar

from waltz_log.loggers import get_logger

__all__ = ["PREDECESSOR_S", "when_released"]

log = get_logger(__name__)

PREDECESSOR_S = 5.0
"""Another process, which is no predecessor, holds what it has for longer, and is reported then."""

AGAIN_PAUSE_S = 0.1

IN_USE = (errno.EADDRINUSE, errno.EWOULDBLOCK)

T = TypeVar("T")


def when_released(hold: Callable[[], T], what: str, *, within_s: float = PREDECESSOR_S) -> T:
    """The result of `hold`, which is repeated while another process holds the same. Blocks. Raises its `OSError`, after `within_s` if that is the
    reason. `what` is for the log."""
    until_s = time.monotonic() + within_s
    logged = False
    while True:
        try:
            return hold()
        except OSError as error:
            if error.errno not in IN_USE or time.monotonic() >= until_s:
                raise
        if not logged:
            logged = True
            log.info("in use, waiting for the process to end", what=what, timeout_s=within_s)
        time.sleep(AGAIN_PAUSE_S)
