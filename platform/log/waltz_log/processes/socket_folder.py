"""The folder of a node's unix sockets: made for one supervisor, which alone may enter it, and gone with it.

A supervisor that is killed leaves its folder behind. The lock on it is free then, so the next one to start, of whatever node, takes it away; young
folders are left alone, for theirs may not be locked yet. Tools that clean temporary files respect the same lock.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

__all__ = ["SocketFolder"]

PREFIX = "waltz-sockets-"
YOUNG_S = 60.0


class SocketFolder:
    """Under the system's temporary files: the name of a unix socket has hardly more than a hundred letters."""

    def __init__(self) -> None:
        parent = Path(tempfile.gettempdir())
        _remove_left(parent)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _remove_left(parent: Path) -> None:
    for folder in parent.glob(f"{PREFIX}*"):
        try:
            if time.time() - folder.stat().st_mtime < YOUNG_S:
                continue
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue  # another's, or gone meanwhile
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            pass  # its supervisor lives
        finally:
            os.close(descriptor)
