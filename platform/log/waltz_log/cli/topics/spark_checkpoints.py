"""The position of a Spark query in the log, from the files of its checkpoint folder: without Spark, and beside a query that runs.

Spark writes `offsets/N` before batch N and `commits/N` after it. A file of offsets has a version, the metadata of the batch, then a line of JSON
for each source of the query. The source of this platform writes the next id of each partition, and its cluster.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any  # JSON values

from waltz_log.errors import InvalidRequest
from waltz_log.untrusted_files import CHECKPOINT, read_text

__all__ = ["CheckpointPosition", "read_checkpoint"]


@dataclass(frozen=True, slots=True)
class CheckpointPosition:
    """`committed`: by partition the last id whose batch is complete, -1 before the first; `planned`: that of the newest batch, complete or not.
    `batch`: the newest complete batch, None before the first."""

    cluster_key: str | None
    batch: int | None
    committed: Mapping[int, int]
    planned: Mapping[int, int]


def read_checkpoint(folder: str) -> CheckpointPosition:
    """Raises `InvalidRequest` for a folder that is no checkpoint of a query over the log."""
    path = Path(folder.removeprefix("file://").removeprefix("file:"))
    if "://" in str(folder) and not str(folder).startswith("file:"):
        raise InvalidRequest(reason=f"a checkpoint is read from a folder of this machine, not from {folder}")
    offsets = _numbers(path / "offsets")
    if not offsets:
        raise InvalidRequest(reason=f"there is no checkpoint of a query in {folder}: no batch in {folder}/offsets")
    commits = set(_numbers(path / "commits"))
    planned = _newest(path, offsets)
    complete = [batch for batch in offsets if batch in commits]
    if not complete:
        return CheckpointPosition(_cluster(planned), None, dict.fromkeys(_positions(planned), -1), _positions(planned))
    committed = _offsets(path / "offsets" / str(complete[-1]))
    if committed is None:
        raise InvalidRequest(reason=f"the offsets of batch {complete[-1]} cannot be read: {path / 'offsets' / str(complete[-1])}")
    return CheckpointPosition(_cluster(committed), complete[-1], _positions(committed), _positions(planned))


def _numbers(folder: Path) -> list[int]:
    try:
        return sorted(int(each.name) for each in folder.iterdir() if each.name.isdecimal())
    except OSError:
        return []


def _newest(path: Path, batches: list[int]) -> dict[str, Any]:
    """The newest file may be half written; then the one before counts."""
    for batch in reversed(batches[-2:]):
        found = _offsets(path / "offsets" / str(batch))
        if found is not None:
            return found
    raise InvalidRequest(reason=f"the newest offsets cannot be read, or the query reads nothing from the log: {path / 'offsets' / str(batches[-1])}")


def _offsets(file: Path) -> dict[str, Any] | None:
    """The offset of the source that reads the log; None if the file has none."""
    try:
        lines = read_text(file, CHECKPOINT).splitlines()[2:]
    except OSError:
        return None
    for line in lines:
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict) and any(name.isdecimal() and isinstance(next_id, int) for name, next_id in found.items()):
            return found
    return None


def _positions(offset: Mapping[str, Any]) -> dict[int, int]:
    return {int(name): next_id - 1 for name, next_id in offset.items() if name.isdecimal() and isinstance(next_id, int)}


def _cluster(offset: Mapping[str, Any]) -> str | None:
    found = offset.get("cluster")
    return None if found is None else str(found)
