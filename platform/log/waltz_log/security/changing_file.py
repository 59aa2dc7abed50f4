"""A small file whose contents are read again when it changes."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path
from typing import Final

__all__ = ["CHECK_S", "ChangingFile"]

CHECK_S: Final = 0.5
"""Between two checks of a file."""


class ChangingFile:
    """Of at most `bytes_max` bytes."""

    def __init__(self, path: Path, bytes_max: int) -> None:
        self.path = path
        self._bytes_max = bytes_max
        self._checked_s = -CHECK_S
        self._stamp: tuple[int, int, int] | None = None

    def changed(self) -> bytes | None:
        """None if it is as before, or was checked a moment ago. Raises `OSError`, also for something else than a file of that size."""
        if time.monotonic() - self._checked_s < CHECK_S:
            return None
        self._checked_s = time.monotonic()
        status = os.stat(self.path)
        if not stat.S_ISREG(status.st_mode) or status.st_size > self._bytes_max:
            raise OSError(f"it is no file of at most {self._bytes_max} bytes")
        stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
        if stamp == self._stamp:
            return None
        with self.path.open("rb") as file:
            data = file.read(self._bytes_max + 1)
        self._stamp = stamp
        return data
