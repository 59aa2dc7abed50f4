"""Reserved space in an outbox's directory, so that the outbox can be emptied when the disk is full.

To forward an intent the outbox must first write an attempt. If the disk has no space for that, the reserved space is released. The journal uses it
for one more file, which holds the attempts and deletes of everything that is owed. Without reserved space no intent is accepted until it can be
reserved again.
"""

from __future__ import annotations

from waltz_log.core.ports import Disk
from waltz_log.loggers import get_logger

__all__ = ["RESERVED_FILE", "ReservedSpace"]

log = get_logger(__name__)

RESERVED_FILE = "outbox.ballast"


class ReservedSpace:
    """All calls block. `held`: whether the space is reserved."""

    def __init__(self, disk: Disk, size: int) -> None:
        self._disk = disk
        self._size = size
        self.held = False

    def reserve(self) -> None:
        """Reserves the space if the disk has it."""
        try:
            if not self._disk.exists(RESERVED_FILE):
                self._disk.open(RESERVED_FILE, "create").close()
            file = self._disk.open(RESERVED_FILE, "write")
            try:
                file.allocate(self._size)
            finally:
                file.close()
        except OSError as error:
            log.warning("space not reserved", file=RESERVED_FILE, error=str(error))
            return
        self.held = True

    def release(self) -> bool:
        """Releases the space. Whether held was any."""
        if not self.held:
            return False
        self.held = False
        log.warning("disk full, reserved space released", file=RESERVED_FILE, bytes=self._size)
        self._disk.remove(RESERVED_FILE)
        return True
