"""The application identifiers of a table, followed commit by commit. `deltalake` reads every commit since the last checkpoint for each one that it is
asked for: with 64 partitions and 50 commits that would be 6,400 requests to a store for a batch."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any  # `deltalake` has no types

__all__ = ["Identifiers"]


class Identifiers:
    """Those that were asked for, as of one version of the table."""

    def __init__(self) -> None:
        self._values: dict[str, int | None] = {}

    def of(self, handle: Any, app_id: str) -> int | None:
        """`handle`: shows that version."""
        if app_id not in self._values:
            self._values[app_id] = handle.transaction_version(app_id)
        return self._values[app_id]

    @property
    def asked(self) -> bool:
        """Whether there are some, so that commits must be followed."""
        return bool(self._values)

    def follow(self, commits: Iterable[bytes | None]) -> None:
        """The next versions, in their order. None: the commit cannot be read, and all are asked for again."""
        found = dict(self._values)
        for commit in commits:
            if commit is None:
                found = {}
                break
            for line in commit.splitlines():
                entry = json.loads(line).get("txn") if b'"txn"' in line else None
                if entry is None:
                    continue
                if entry.get("lastUpdated") is None:
                    if entry["appId"] in found:
                        found[entry["appId"]] = int(entry["version"])
                else:  # it expires, which deltalake judges
                    found.pop(entry["appId"], None)
        self._values = found

    def forget(self) -> None:
        """All are asked for again."""
        self._values = {}
