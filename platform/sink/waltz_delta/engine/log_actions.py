"""The files that a commit adds and removes, and as what `deltalake` they are.

Source: Delta's PROTOCOL.md, "Add File and Remove File".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any  # Any: `deltalake` has no types

__all__ = ["AddFile", "Change", "RemoveFile"]


@dataclass(frozen=True, slots=True)
class AddFile:
    """A data file that a commit adds. `path`: relative to the table's directory, of letters that need no escape. `size`: in bytes. `statistics`:
    strict JSON, as `FileStatistics` writes it."""

    path: str
    size: int
    partition_values: Mapping[str, str | None]
    modified_ms: int
    statistics: str


@dataclass(frozen=True, slots=True)
class RemoveFile:
    """A data file that a commit removes. `path`: exactly as the log has it, escapes included."""

    path: str
    size: int
    partition_values: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Change:
    """The files of one commit. `data_change`: whether the rows of the table are others afterwards; not after a compaction."""

    added: Sequence[AddFile] = ()
    removed: Sequence[RemoveFile] = ()
    data_change: bool = True

    def entries(self, now_ms: int) -> Iterator[Any]:
        """As `deltalake` commits them."""
        from deltalake.transaction import AddAction, RemoveAction

        for gone in self.removed:
            yield RemoveAction(gone.path, self.data_change, now_ms, gone.size, dict(gone.partition_values))
        for new in self.added:
            yield AddAction(new.path, new.size, dict(new.partition_values), new.modified_ms, self.data_change, new.statistics)
