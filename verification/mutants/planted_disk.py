"""Bugs to plant in how nodes meet disks that fail (as in `planted.py`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from verification.mutants.planting import bug, change
from waltz_log.errors import StorageFailed
from waltz_log.server.replication import acknowledgments
from waltz_log.storage.replica.range_reads import RangeReads
from waltz_log.storage.segments.segment_log import SegmentLog
from waltz_log.testing import disk
from waltz_log.testing.disk import SimulatedDisk

__all__: list[str] = []


def _without_errors(original: Callable[..., None]) -> Callable[..., None]:
    def call(*given: Any) -> None:
        try:
            original(*given)
        except OSError as error:
            if error.strerror is None or not error.strerror.startswith("input/output error"):
                raise

    return call


@bug
def write_errors_swallowed() -> None:
    """A write that failed counts as successful."""
    change(disk._OpenFile, "write", _without_errors(disk._OpenFile.write))


@bug
def directory_sync_errors_swallowed() -> None:
    """A sync of a directory that failed counts as successful."""
    change(SimulatedDisk, "sync_directory", _without_errors(SimulatedDisk.sync_directory))


@bug
def rename_tried_again() -> None:
    """A partition goes on after a rename that failed, with the next append."""

    def stop(self: SegmentLog, error: Any) -> StorageFailed:
        if "on rename" in str(error):
            return StorageFailed(partition=self.partition, reason=str(error))
        stopped: StorageFailed = original(self, error)
        return stopped

    original: Any = change(SegmentLog, "_stop", stop)


@bug
def read_errors_not_typed() -> None:
    """What the disk says when it cannot be read reaches the caller unchanged."""

    async def read(self: RangeReads, cuts: int, first: int, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return await self._offload(call, *arguments)
        except OSError:
            raise
        except BaseException:
            return await original(self, cuts, first, call, *arguments)

    original: Any = change(RangeReads, "_read", read)


@bug
def hanging_replica_waited_for() -> None:
    """A block is committed when every replica has it that has ever acknowledged one in the session."""

    def mark(acknowledged: Mapping[str, int], assigned: int) -> int | None:
        return None if original(acknowledged, assigned) is None else min(acknowledged.values())

    original: Any = change(acknowledgments, "committed_mark", mark)
