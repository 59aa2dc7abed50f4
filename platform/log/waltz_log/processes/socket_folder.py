"""The folder of a node's unix sockets: created for one supervisor, accessible only to its user, and removed with it.

A supervisor that is killed leaves its folder behind. The lock on it is then free, so the next supervisor to start, of any node, removes it. Young
folders are kept, because their lock may not be held yet. Tools that clean temporary files respect the same lock.
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

PARENT_BYTES_MAX = 72
"""For the path of the folder's parent. The system bounds the path of a socket by 104 or 108 bytes, and this is what the names below it leave."""


class SocketFolder:
    """Below the system's directory for temporary files: the path of a unix socket has little more than a hundred characters."""

    def __init__(self) -> None:
        parent = _parent(tempfile.gettempdir())
        _remove_left(parent)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _parent(temporary: str) -> Path:
    """The directory for temporary files, or another one where its path is too long. Raises `OSError` if none will do."""
    for path in (temporary, "/tmp", "/var/tmp"):
        if len(os.fsencode(path)) <= PARENT_BYTES_MAX and os.access(path, os.W_OK | os.X_OK):
            return Path(path)
    raise OSError(f"no directory for unix sockets: {temporary} has more than {PARENT_BYTES_MAX} bytes, and /tmp cannot be written; set TMPDIR")


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
