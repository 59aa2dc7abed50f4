"""A small file whose contents are read again when it changes."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from waltz_log.untrusted_files import FileKind, read_bytes

__all__ = ["CHECK_S", "ChangingFile"]

CHECK_S: Final = 0.5
"""Between two checks of a file."""


class ChangingFile:
    """A file of a person, of one kind."""

    def __init__(self, path: Path, kind: FileKind) -> None:
        self.path = path
        self._kind = kind
        self._checked_s = -CHECK_S
        self._stamp: tuple[int, int, int] | None = None

    def changed(self) -> bytes | None:
        """None if it is as before, or was checked a moment ago. Raises `OSError`, also for what is no file within the limit of its kind."""
        if time.monotonic() - self._checked_s < CHECK_S:
            return None
        self._checked_s = time.monotonic()
        status = os.stat(self.path)
        stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
        if stamp == self._stamp:
            return None
        data = read_bytes(self.path, self._kind)
        self._stamp = stamp
        return data
