"""A table's identifiers that match its rows: after a RESTORE, the marks of the restored version, read without a JVM.

A query that starts on the table sets these marks itself (`restored`). Until then the table's log still has those from before the RESTORE.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final  # Any: JSON values

from waltz_delta.base.zones import identified_zone, instant_ms
from waltz_delta.marks.positions_log import TableLog
from waltz_delta.marks.restores import standing_restore

__all__ = ["current_identifiers"]

COMMITS_SEARCHED: Final = 1000
"""How many commits to search back for the sink's last one, which is mostly the newest. A query that starts searches the whole log."""

_MARK: Final = re.compile(r"waltz:(.+):(?:\d+(?:@.*)?|epoch|superseded)")


def current_identifiers(log: TableLog) -> dict[str, int]:
    """Application id to its version. Raises `RestoreOvertaken` if a batch was committed over a RESTORE: no position describes that."""
    found = log.identifiers
    epochs = {match[1]: log.identifiers.get(_epoch(match[1]), 0) for name in found if (match := _MARK.fullmatch(name))}
    undone = False
    for key, epoch in sorted(epochs.items(), key=lambda each: (-each[1], each[0])):
        if epoch < max(epochs.values()) and not undone:
            break  # of former clusters, whose last commits may be far back
        restored = standing_restore(log.path, log.commits(COMMITS_SEARCHED), key, lambda version, given: _target(log, version, given))
        if restored is not None:
            undone = True
            then = {name: version for name, version in log.identifiers_at(restored).items() if _is_of(name, key)}
            kept = {name: version for name, version in found.items() if not _is_of(name, key)}
            found = kept | ({_epoch(key): -1} if _epoch(key) in found else {}) | then
    return found


def _epoch(cluster_key: str) -> str:
    return f"waltz:{cluster_key}:epoch"


def _is_of(name: str, cluster_key: str) -> bool:
    match = _MARK.fullmatch(name)
    return match is not None and match[1] == cluster_key


def _target(log: TableLog, version: int, given: Mapping[str, Any]) -> int:
    """The version that a RESTORE names. If it names a time, that is the last version until then. A time without an offset is one of the zone that the
    table was filled with; of UTC, if no identifier of the table names a zone."""
    if given.get("version") is not None:
        return int(given["version"])
    if given.get("datetime") is not None:
        until_ms = int(given["datetime"])
    else:
        until_ms = instant_ms(str(given["timestamp"]), identified_zone(log.identifiers) or "UTC")
    return log.version_until(version, until_ms)
