"""What an operator does about a checkpoint of a table's log that cannot be read. Pure.

No reader ignores such a file, not even where the commits before it are still there: the table can be opened again only after it is deleted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

__all__ = ["CHECKPOINT", "COMMIT", "remedy"]

COMMIT: Final = re.compile(r"(\d{20})\.json")
CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint(?:\.\d{10}\.(?P<parts>\d{10})|\.[0-9a-f-]{36})?\.(?:parquet|json)")
"""The names in a log. `parts`: how many files the checkpoint has, if its name says so."""


def remedy(name: str, commits: Iterable[int], checkpoints: Iterable[int]) -> str:
    """Returns what is wrong with a checkpoint that cannot be read, and what to do. `commits`, `checkpoints`: the versions of those in the log."""
    version = int(name[:20])
    older = max((each for each in checkpoints if each < version), default=-1)
    if set(range(older + 1, version + 1)) <= set(commits):
        return f"its checkpoint {name} cannot be read; delete that file and _last_checkpoint, since the commits before it are all there"
    return f"its checkpoint {name} cannot be read, and commits before it were cleaned up; restore that file from a copy of the table"
