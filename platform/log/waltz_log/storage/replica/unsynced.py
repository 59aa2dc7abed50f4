"""A marker file in a partition's directory: while it exists, this replica may have acknowledged from memory what it has lost.

It is durable before the first transaction is acknowledged that is not. It is removed when everything is synced and the partition is closed in order,
or became clean in a session. A start that finds it cannot know whether the machine or only the process died: the replica reports it to every session
(`may_lack`), and recovery copies to it before it uses its content to decide (docs/internals/recovery.md). Blocks; within a turn of the partition.
"""

from __future__ import annotations

from typing import Final

from waltz_log.core.ports import Disk
from waltz_log.storage.segments.segment import allocating_space, put_file
from waltz_log.storage.segments.segment_log import SegmentLog

__all__ = ["UNSYNCED_FILE", "UnsyncedMark"]

UNSYNCED_FILE: Final = "unsynced"
_CONTENT: Final = b"transactions were acknowledged before they were on disk\n"


class UnsyncedMark:
    """`there`: whether the file exists. `may_lack`: an earlier start left it."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._path = f"{directory}/{UNSYNCED_FILE}"
        self.there = self.may_lack = disk.exists(self._path)

    def put(self, log: SegmentLog) -> None:
        """Raises `StorageFull`, `StorageFailed`."""
        with log.writing():
            with allocating_space():
                put_file(self._disk, self._path, _CONTENT)
            self._disk.sync_directory(self._directory)
        self.there = True

    def settle(self, log: SegmentLog) -> None:
        """Everything that the replica ever acknowledged is on disk, or was copied to it again. Raises `StorageFailed`."""
        if self.there:
            with log.writing():
                self._disk.remove(self._path)
                self._disk.sync_directory(self._directory)
            self.there = False
        self.may_lack = False
