"""Space held back in an outbox's directory, so that a full disk cannot stop it from getting empty.

To forward anything the outbox must first write an attempt. Where the disk has no space even for that, the ballast is thrown off: the journal makes
one more file of it, which takes the attempts and deletes of all that is owed. Without ballast nothing is accepted until there is space for it again.
"""

from __future__ import annotations

import structlog

from waltz_log.core.ports import Disk

__all__ = ["BALLAST_FILE", "Ballast"]

log = structlog.get_logger(__name__)

BALLAST_FILE = "outbox.ballast"


class Ballast:
    """All calls block. `there`: whether the space is held."""

    def __init__(self, disk: Disk, size: int) -> None:
        self._disk = disk
        self._size = size
        self.there = False

    def take(self) -> None:
        """Holds the space where the disk has it."""
        try:
            if not self._disk.exists(BALLAST_FILE):
                self._disk.open(BALLAST_FILE, "create").close()
            file = self._disk.open(BALLAST_FILE, "write")
            try:
                file.allocate(self._size)
            finally:
                file.close()
        except OSError as error:
            log.warning("space not reserved", file=BALLAST_FILE, error=str(error))
            return
        self.there = True

    def drop(self) -> bool:
        """Gives the space away; whether there was any."""
        if not self.there:
            return False
        self.there = False
        log.warning("disk full, reserved space released", file=BALLAST_FILE, bytes=self._size)
        self._disk.remove(BALLAST_FILE)
        return True
