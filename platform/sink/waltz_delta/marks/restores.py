"""What a table's commits say about RESTORE: the version that the newest RESTORE brought back, and whether a batch was committed over one.

A RESTORE changes rows and leaves every transaction identifier as it is (delta-io/delta issue 1813), so the marks describe the table only as of our
last commit that was decided from the table's content. Pure: commits are passed in as `commitInfo`, newest first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any  # JSON values

from waltz_delta.errors import RestoreOvertaken

__all__ = ["is_ours", "restored_by", "standing_restore"]


def restored_by(info: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What a commit was given to restore, if it is a RESTORE: `version`, or a time as `timestamp` (Delta) or `datetime` (delta-rs)."""
    return (info.get("operationParameters") or {}) if info.get("operation") == "RESTORE" else None


def is_ours(info: Mapping[str, Any], cluster_key: str | None) -> bool:
    """Whether the sink made the commit, for this cluster; without a key, for any cluster."""
    if "waltz" in str((info.get("operationParameters") or {}).get("queryId")) and not info.get("userMetadata"):
        return True
    found = _metadata(info).get("cluster")
    return found is not None and cluster_key in (None, found)


def standing_restore(
    path: str, commits: Iterable[tuple[int, Mapping[str, Any]]], cluster_key: str | None, target: Callable[[int, Mapping[str, Any]], int]
) -> int | None:
    """The version that a RESTORE brought back after our last commit; None if the marks match the rows. If a RESTORE restores the result of an earlier
    RESTORE, the result is the version that the earlier one restored.

    `target` returns the restored version, from the version of the RESTORE and what it was given. Raises `RestoreOvertaken` if our last commit came
    after a RESTORE that it had not seen."""
    found: int | None = None
    seen: int | None = None
    for version, info in commits:
        if seen is not None and version <= seen:
            break
        if found is not None and version > found:
            continue
        given = restored_by(info)
        if given is not None:
            if seen is not None:
                raise RestoreOvertaken(path=path, version=version)
            found = target(version, given)
        elif is_ours(info, cluster_key):
            seen = min(_decided_by(info, version), version if seen is None else seen)
    return found


def _decided_by(info: Mapping[str, Any], version: int) -> int:
    """The version of the table from which one of our commits was decided: as the commit states, or the version that Delta recorded as read."""
    read = _metadata(info).get("read", info.get("readVersion"))
    return version - 1 if read is None or int(read) < 0 else int(read)


def _metadata(info: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        found = json.loads(info.get("userMetadata") or "")["waltz"]
    except (ValueError, KeyError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}
