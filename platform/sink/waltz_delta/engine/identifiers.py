"""The application identifiers of a table, followed commit by commit. `deltalake` reads every commit since the last checkpoint for each one that it is
asked for: with 64 partitions and 50 commits that would be 6,400 requests to a store for a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final  # JSON values

from waltz_delta.base.commit_info import VERSION_END, json_object, parsed

__all__ = ["ChangesRules", "Identifiers", "actions_of"]

_RULES: Final = frozenset({"metaData", "protocol"})
_REQUIRED: Final[Mapping[str, frozenset[str]]] = {
    "add": frozenset({"path", "partitionValues", "size", "modificationTime", "dataChange"}),
    "remove": frozenset({"path", "dataChange"}),
    "txn": frozenset({"appId", "version"}),
}
"""Fields that Delta's protocol requires."""


class ChangesRules(Exception):
    """A commit changes columns, properties or the protocol. Internal to this package."""


def actions_of(commit: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
    """Kind and values of each action of a commit that changes only files and identifiers. Raises `ChangesRules` for another one, and `ValueError` for
    one that is torn or that Delta's protocol does not allow."""
    for line in filter(bytes.strip, commit.splitlines()):
        for kind, values in parsed(line.decode()).items():
            if kind in _RULES:
                raise ChangesRules
            if values is not None:
                if missing := _REQUIRED.get(kind, frozenset()) - json_object(values).keys():
                    raise ValueError(f"{kind} without {', '.join(sorted(missing))}")
                yield kind, values


class Identifiers:
    """Those that a transaction asked for, at one version of the table."""

    def __init__(self, known: Mapping[str, int | None] = MappingProxyType({})) -> None:
        self._values = dict(known)

    def of(self, app_id: str, read: Callable[[str], int | None]) -> int | None:
        """`read`: reads it from the log, up to that version."""
        if app_id not in self._values:
            self._values[app_id] = read(app_id)
        return self._values[app_id]

    def after(self, actions: Iterator[tuple[str, dict[str, Any]]]) -> Identifiers:
        """Those of the next version, which these actions made. Raises what `actions` raises, and `ValueError`."""
        found = dict(self._values)
        for kind, values in actions:
            if kind != "txn":
                continue
            name, version = values.get("appId"), values.get("version")
            if not isinstance(name, str) or type(version) is not int or not -VERSION_END <= version < VERSION_END:
                raise ValueError(f"not an identifier: {values!r:.80}")
            if values.get("lastUpdated") is not None:  # it expires by `delta.setTransactionRetentionDuration`, so the log must be asked
                found.pop(name, None)
            elif name in found:
                found[name] = version
        return Identifiers(found)
