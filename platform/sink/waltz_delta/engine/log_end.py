"""Whether a version is the newest one of a table's log in a directory of this machine.

A free name of the next commit does not prove it. Cleanups of the log remove commits in any order, so the next one can be gone while a checkpoint
above has it. And the hint that names the newest checkpoint can be old, because its writers ignore errors and do not compare it. But a cleanup removes
no commit that is younger than `delta.logRetentionDuration`. So the log, whose listing costs more with each commit, is listed only if its end was not
seen for a minute, or if it keeps commits for less than an hour.

Source: Delta's PROTOCOL.md, "Metadata Cleanup" and "Last Checkpoint File".
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from waltz_delta.base.damaged_checkpoint import CHECKPOINT, COMMIT
from waltz_delta.engine.checkpoint_files import HINT, hinted_version

__all__ = ["CheckpointFiles", "Sighting", "checkpoint_files", "commit_file", "is_end", "keeps_commits", "newest_listed"]

FRESH_S: Final = 60.0
KEPT_MIN_S: Final = 3600.0
"""A sighting proves nothing of a log that keeps commits for less."""
CheckpointFiles: TypeAlias = tuple[tuple[str, int, int, int], ...]
"""Name, inode, bytes and time of each file."""
_RETENTION: Final = "delta.logretentionduration"
_INTERVAL: Final = re.compile(r"interval (\d+) (\w+?)s?")
_UNITS_S: Final = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}


@dataclass(frozen=True, slots=True)
class Sighting:
    """When a version was known to be the newest, by a clock that stands still while the machine sleeps, and by one that can be set."""

    monotonic_s: float
    wall_s: float

    @classmethod
    def now(cls) -> Sighting:
        return cls(time.monotonic(), time.time())

    @property
    def is_fresh(self) -> bool:
        return time.monotonic() - self.monotonic_s < FRESH_S and abs(time.time() - self.wall_s) < FRESH_S


def is_end(log: Path, version: int, seen: Sighting, properties: Mapping[str, str]) -> bool:
    """Whether the log has no commit and no checkpoint above `version`. `seen`: when its end was known. `properties`: of the table."""
    try:
        hinted = hinted_version((log / HINT).read_bytes())
    except OSError:
        hinted = -1
    if hinted > version or commit_file(log, version + 1).exists():
        return False
    return (seen.is_fresh and keeps_commits(properties)) or newest_listed(log) <= version


def newest_listed(log: Path, *names: re.Pattern[str]) -> int:
    """The newest version of which the log has such a file, without `names` a commit or a checkpoint; -1 for none. Names that only begin like these
    are remains of killed writers. A checkpoint of which parts are missing does not count."""
    newest, parts = -1, Counter[tuple[int, int]]()
    with os.scandir(log) as entries:
        for entry in entries:
            for name in names or (COMMIT, CHECKPOINT):
                if found := name.fullmatch(entry.name):
                    whole = (int(found[1]), int(found.groupdict().get("parts") or 1))
                    parts[whole] += 1
                    if parts[whole] >= whole[1]:
                        newest = max(newest, whole[0])
    return newest


def checkpoint_files(log: Path, version: int) -> CheckpointFiles:
    """The files of the checkpoints of a version, which differ from those of another one of the same version."""
    with os.scandir(log) as entries:
        found = [entry for entry in entries if (name := CHECKPOINT.fullmatch(entry.name)) and int(name[1]) == version]
        stats = [(entry.name, entry.stat()) for entry in found]
    return tuple(sorted((name, stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in stats))


def commit_file(log: Path, version: int) -> Path:
    return log / f"{version:020d}.json"


def keeps_commits(properties: Mapping[str, str]) -> bool:
    """Whether cleanups of the log leave the commits of the last hour. `properties`: of the table."""
    given = (_INTERVAL.fullmatch(value) for name, value in properties.items() if name.lower() == _RETENTION)  # Delta's default is 30 days
    return all(found is not None and int(found[1]) * _UNITS_S.get(found[2], 0) >= KEPT_MIN_S for found in given)
