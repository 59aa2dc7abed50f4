"""How full the disk is: warns below one mark, refuses appends below the next, and accepts them again when space returns.

Applies to the whole node; every partition asks before it appends. Reads, truncation and the control files are never refused.
"""

from __future__ import annotations

from waltz_log.core.ports import Disk
from waltz_log.errors import StorageFull
from waltz_log.loggers import get_logger

__all__ = ["DiskSpace"]

log = get_logger(__name__)


class DiskSpace:
    def __init__(self, disk: Disk, *, warn_free_bytes: int, refuse_free_bytes: int) -> None:
        self._disk = disk
        self._warn = warn_free_bytes
        self._refuse = refuse_free_bytes
        self._state = "ample"

    def poll(self) -> str:
        """Reads the free space. Returns `ample`, `low` or `refusing`."""
        free = self._disk.free_bytes()
        self._judge(free, free)
        return self._state

    @property
    def refusing(self) -> bool:
        """Whether every append is refused, however small."""
        return self._disk.free_bytes() < self._refuse

    def require(self, size: int, partition: int) -> None:
        """Raises `StorageFull` if `size` more bytes would leave less than must stay free."""
        free = self._disk.free_bytes()
        self._judge(free, free - size)
        if free - size < self._refuse:
            raise StorageFull(partition=partition, reason=f"this space must stay free: kept_free_bytes={self._refuse}", free_bytes=free)

    def _judge(self, free: int, left: int) -> None:
        """`left`: what remains of `free` after the write; below zero if the write does not fit."""
        state = "refusing" if left < self._refuse else "low" if left < self._warn else "ample"
        if state != self._state:
            (log.info if state == "ample" else log.warning)("disk space", state=state, free_bytes=free, wanted_bytes=free - left, was=self._state)
            self._state = state
