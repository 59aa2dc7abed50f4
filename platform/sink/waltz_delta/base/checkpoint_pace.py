"""Decides when a checkpoint of a table's log is due.

A table that the sink creates has an interval of 100 commits, because Delta rebuilds the table's state within the commit at each multiple of the
interval, for its statistics, even if another thread writes the checkpoint. On such a table the sink writes checkpoints more often than that, so
that readers read few commits. It also pauses between two of them: a checkpoint needs seconds of processor time, and at a trigger of one second, two
or three batches are slow during that time.

A user can choose another interval. The sink then observes it as Delta does: by commits, at any speed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["COMMITS_MIN", "INTERVAL", "CheckpointPace", "checkpoint_pace", "with_interval"]

INTERVAL: Final = "delta.checkpointInterval"
TABLE_INTERVAL: Final = 100
"""In commits, for a table that the sink creates, unless the caller's properties set one."""
COMMITS_MIN: Final = 10
"""Delta's own default interval: fewer commits cost a reader little."""
PAUSE_S: Final = 60.0
"""At a trigger of one second, at most one batch in twenty runs during a checkpoint."""


@dataclass(frozen=True)
class CheckpointPace:
    """When a checkpoint of a table is due."""

    commits_min: int
    """With fewer commits since the last checkpoint, none is due."""
    pause_s: float
    """With `commits_min` commits, one is due after this many seconds."""
    commits_max: int
    """With this many commits, one is due immediately. It bounds what a reader has to read."""

    def is_due(self, commits: int, passed_s: float) -> bool:
        """`commits` and `passed_s`: since the last checkpoint."""
        return commits >= self.commits_max or (commits >= self.commits_min and passed_s >= self.pause_s)


def checkpoint_pace(interval: int) -> CheckpointPace:
    """The pace on a table with this interval, in commits. An interval that a user chose is kept."""
    if interval == TABLE_INTERVAL:
        return CheckpointPace(commits_min=COMMITS_MIN, pause_s=PAUSE_S, commits_max=TABLE_INTERVAL)
    return CheckpointPace(commits_min=interval, pause_s=0.0, commits_max=interval)


def with_interval(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties of a new table."""
    given = {name.lower() for name in properties}
    return dict(properties) if INTERVAL.lower() in given else {INTERVAL: str(TABLE_INTERVAL), **properties}
