"""The application identifiers of a table, followed commit by commit. `deltalake` reads every commit since the last checkpoint for each one that it is
asked for: with 64 partitions and 50 commits that would be 6,400 requests to a store for a batch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

__all__ = ["Identifiers"]


class Identifiers:
    """Those that were asked for, as of one version of the table."""

    def __init__(self, known: Mapping[str, int | None] = MappingProxyType({})) -> None:
        self._values = dict(known)

    def of(self, app_id: str, read: Callable[[str], int | None]) -> int | None:
        """`read`: from the log of that version."""
        if app_id not in self._values:
            self._values[app_id] = read(app_id)
        return self._values[app_id]

    def after(self, commits: Iterable[bytes]) -> Identifiers:
        """As of a later version, by the commits since, in their order. Raises `ValueError` for a line that is no JSON."""
        found = dict(self._values)
        for commit in commits:
            for line in commit.splitlines():
                entry = json.loads(line).get("txn") if b'"txn"' in line else None
                if entry is None:
                    continue
                if entry.get("lastUpdated") is None:
                    if entry["appId"] in found:
                        found[entry["appId"]] = int(entry["version"])
                else:  # it expires, which deltalake judges
                    found.pop(entry["appId"], None)
        return Identifiers(found)
