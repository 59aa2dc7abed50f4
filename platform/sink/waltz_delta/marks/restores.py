"""What the commits of a table say of RESTORE: which version a RESTORE that still stands brought back, and whether a batch was committed over one.

A RESTORE changes rows and leaves every transaction identifier as it is (delta-io/delta issue 1813), so the marks describe the table only as of our
last commit that was decided by what the table holds. Pure: commits come in as `commitInfo`, from the newest back, whoever reads them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from waltz_delta.errors import RestoreOvertaken

__all__ = ["is_ours", "restored_by", "standing_restore"]


def restored_by(told: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What a commit was given to restore, where it is a RESTORE: `version`, or a time as `timestamp` (Delta) or `datetime` (delta-rs)."""
    return (told.get("operationParameters") or {}) if told.get("operation") == "RESTORE" else None


def is_ours(told: Mapping[str, Any], cluster_key: str | None) -> bool:
    """Whether the sink made the commit, for this cluster; for any cluster without a key."""
    if "waltz" in str((told.get("operationParameters") or {}).get("queryId")) and not told.get("userMetadata"):
        return True
    found = _metadata(told).get("cluster")
    return found is not None and cluster_key in (None, found)


def standing_restore(
    path: str, commits: Iterable[tuple[int, Mapping[str, Any]]], cluster_key: str | None, target: Callable[[int, Mapping[str, Any]], int]
) -> int | None:
    """The version that a RESTORE brought back after our last commit; None where the marks are in line with the rows. A RESTORE of what an earlier
    RESTORE made means that one's version. `target` gives the version from that of the RESTORE and what it was given. Raises `RestoreOvertaken` where
    our last commit came after a RESTORE that it was not decided by."""
    found: int | None = None
    seen: int | None = None
    for version, told in commits:
        if seen is not None and version <= seen:
            break
        if found is not None and version > found:
            continue
        given = restored_by(told)
        if given is not None:
            if seen is not None:
                raise RestoreOvertaken(path=path, version=version)
            found = target(version, given)
        elif is_ours(told, cluster_key):
            seen = min(_decided_by(told, version), version if seen is None else seen)
    return found


def _decided_by(told: Mapping[str, Any], version: int) -> int:
    """The version of the table by which one of our commits was decided: what it says itself, or what Delta says that it read."""
    read = _metadata(told).get("read", told.get("readVersion"))
    return version - 1 if read is None or int(read) < 0 else int(read)


def _metadata(told: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        found = json.loads(told.get("userMetadata") or "")["waltz"]
    except (ValueError, KeyError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}
