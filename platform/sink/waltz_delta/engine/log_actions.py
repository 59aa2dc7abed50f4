"""The files that a commit adds and removes.

`deltalake` escapes the path of an action when it writes it. A Remove counts only if it has the path of the Add letter by letter; otherwise the rows
of the file stay beside those that were to replace them. Other writers escape otherwise, so a path that `deltalake` would not write as the log
has it is never removed here.

Source: Delta's PROTOCOL.md, "Add File and Remove File", and what `deltalake` 1.6 writes for each letter.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final  # Any: `deltalake` has no types
from urllib.parse import quote, unquote

__all__ = ["AddFile", "Change", "RemoveFile", "is_removable"]

_KEPT: Final = "!$&'()+,-./:;=@~"
"""Beside letters, digits and `_`, what `deltalake` does not escape."""


def is_removable(path: str) -> bool:
    """Whether `deltalake` would write the path of a log as it is there."""
    return quote(unquote(path), safe=_KEPT) == path


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
    """A data file that a commit removes. `path`: exactly as the log has it, escapes included, and `is_removable`."""

    path: str
    size: int
    partition_values: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Change:
    """The files of one commit. `data_change`: whether the rows of the table are others afterwards; not after a compaction."""

    added: Sequence[AddFile] = ()
    removed: Sequence[RemoveFile] = ()
    data_change: bool = True

    def actions(self) -> Iterator[dict[str, Any]]:
        """As a local commit has them."""
        now_ms = time.time_ns() // 1_000_000
        for gone in self.removed:
            assert is_removable(gone.path), gone.path
            values = dict(gone.partition_values)
            of_file = {"extendedFileMetadata": True, "partitionValues": values, "size": gone.size}
            yield {"remove": {"path": gone.path, "deletionTimestamp": now_ms, "dataChange": self.data_change, **of_file}}
        for new in self.added:
            named = {"path": new.path, "partitionValues": dict(new.partition_values), "size": new.size, "modificationTime": new.modified_ms}
            yield {"add": {**named, "dataChange": self.data_change, "stats": new.statistics}}

    def entries(self) -> list[Any]:
        """As `deltalake` is given them."""
        from deltalake.transaction import AddAction, RemoveAction

        now_ms, found = int(time.time() * 1000), list[Any]()
        for gone in self.removed:
            assert is_removable(gone.path), gone.path
            found.append(RemoveAction(unquote(gone.path), self.data_change, now_ms, gone.size, dict(gone.partition_values)))
        for new in self.added:
            found.append(AddAction(new.path, new.size, dict(new.partition_values), new.modified_ms, self.data_change, new.statistics))
        return found
