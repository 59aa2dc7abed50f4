"""Bugs to plant in how damaged files are met (as in `planted.py`)."""

from __future__ import annotations

from typing import Any

from verification.mutants.planting import bug, change
from waltz_log.compaction.view import CompactedView
from waltz_log.storage.control.control import ControlFiles
from waltz_log.storage.integrity.verify import SegmentCheck
from waltz_log.storage.integrity.view_check import ViewFileCheck

__all__: list[str] = []


def _unnoticed(part: str) -> None:
    """Findings of a part of a segment are dropped."""

    def find(self: SegmentCheck, found: Any, *rest: Any, **more: Any) -> None:
        if found != part:
            original(self, found, *rest, **more)

    original: Any = change(SegmentCheck, "_find", find)


@bug
def damaged_data_not_noticed() -> None:
    """The scrub does not verify the records of segments."""
    _unnoticed("data")


@bug
def damaged_index_not_noticed() -> None:
    """The scrub does not compare the index of a segment with its records."""
    _unnoticed("index")


@bug
def damaged_times_not_noticed() -> None:
    """The scrub does not verify the append times of a segment."""
    _unnoticed("times")


@bug
def damaged_header_not_noticed() -> None:
    """The scrub does not read the headers of a segment's files."""
    _unnoticed("header")


@bug
def damaged_view_not_noticed() -> None:
    """The scrub does not verify the files of compacted views."""
    change(ViewFileCheck, "_find", lambda *_: None)


@bug
def damaged_view_metadata_not_noticed() -> None:
    """The scrub does not read the metadata of compacted views."""
    change(CompactedView, "expect_metadata", lambda self: None)


@bug
def older_fence_believed() -> None:
    """Where the half of a fence that was written last is corrupted, the one before holds."""

    def fence(self: ControlFiles, partition: int) -> int:
        found = self._counters[1 + partition]
        if found is None:
            refused: int = original(self, partition)
            return refused
        return found[0]

    original: Any = change(ControlFiles, "fence", fence)
    change(ControlFiles, "_mirror", lambda self, slot: None)
