"""Writes back to the coordinator what nodes know of the values that they follow, where these are missing, cannot be read or are older.

Nothing is guessed: a value that no node knows stays as it is, and is reported with what to do. Every write is a compare-and-set.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final  # Any: values of all kinds

from waltz_log.coordination.access import replace_rules
from waltz_log.coordination.followed import (
    FOLLOWED,
    PARAMETERS,
    REPLICA_ASSIGNMENT,
    RETAINED_MARKS,
    RULES,
    SERVER_ENTRIES,
    STORAGE_ENTRIES,
    SUBSCRIBER_ENTRIES,
    FollowedValue,
    KnownValues,
)
from waltz_log.core.metadata import CLUSTER, ClusterParameters
from waltz_log.core.ports import Coordinator, Node

__all__ = ["Finding", "apply_repair", "find_faults"]

FOLDERS: Final = (SERVER_ENTRIES, SUBSCRIBER_ENTRIES, STORAGE_ENTRIES, RETAINED_MARKS)

ADVICE: Final[Mapping[str, str]] = {
    RULES.path: "`waltz access reset --yes` removes all rules",
    PARAMETERS.path: "restore the coordinator, or adopt the storage directories (`waltz cluster adopt`)",
    REPLICA_ASSIGNMENT.path: "restore the coordinator, or adopt the storage directories (`waltz cluster adopt`)",
    SERVER_ENTRIES.path: "restart that log server",
    SUBSCRIBER_ENTRIES.path: "remove it with `waltz subscriber remove`, and let the subscriber register again",
    STORAGE_ENTRIES.path: "restart that storage node",
}
"""What to do where no node knows the value."""


@dataclass(frozen=True)
class Finding:
    """`fault`: what is wrong with the value at `path`. `source`: the node that knows the value to write; None: no node does. `advice`: what to do
    then."""

    path: str
    fault: str
    source: str | None
    data: bytes = b""
    advice: str = ""


async def find_faults(coordinator: Coordinator, known: Mapping[str, Mapping[str, str]]) -> list[Finding]:
    """`known`: by node, what it knows, by path. Only reads."""
    found: list[Finding] = []
    for kind in FOLLOWED.values():
        entries = await _entries(coordinator, kind, known) if kind in FOLDERS else [""]
        for entry in entries:
            path = f"{kind.path}/{entry}" if entry else kind.path
            fault = await _judged(coordinator, kind, path, {name: each[path] for name, each in known.items() if path in each})
            if fault is not None:
                found.append(fault)
    return found


async def _entries(coordinator: Coordinator, kind: FollowedValue[Any], known: Mapping[str, Mapping[str, str]]) -> Iterable[str]:
    """Those that are there, and those that nodes know. A server's entry lives and ends with the server, and an operator removes the entry of a
    storage node that holds nothing."""
    start = f"{kind.path}/"
    remembered = {path.removeprefix(start) for each in known.values() for path in each if path.startswith(start)}
    there = set(await coordinator.children(kind.path, latest=True))
    if kind is STORAGE_ENTRIES:
        node = await coordinator.get(REPLICA_ASSIGNMENT.path)
        assigned = KnownValues().accept(REPLICA_ASSIGNMENT, node)
        remembered &= {name for names in ({} if assigned is None else assigned.replicas).values() for name in names}
    return sorted(there if kind is SERVER_ENTRIES else there | remembered)


async def _judged(coordinator: Coordinator, kind: FollowedValue[Any], path: str, known: Mapping[str, str]) -> Finding | None:
    node = await coordinator.get(path, latest=True)
    source, data = _newest(kind, known)
    expected = source is not None or kind in (PARAMETERS, REPLICA_ASSIGNMENT) or (kind is RULES and await _ruled(coordinator))
    values = KnownValues()
    if source is not None:
        values.seed(kind, kind.parse(data), data)
    entry = ""  # judged by itself: the path does not matter
    values.accept(kind, node, entry, expected=expected)
    fault = values.refused().get(kind.path)
    if fault is None:
        return None
    return Finding(path, fault.replace("the one that is in use", "what nodes know"), source, data, "" if source else ADVICE.get(kind.path, ""))


def _newest(kind: FollowedValue[Any], known: Mapping[str, str]) -> tuple[str | None, bytes]:
    """The node with the newest value, and the value."""
    source, newest = None, b""
    for name, text in sorted(known.items()):
        data = text.encode()
        if source is None or kind.is_older(kind.parse(newest), kind.parse(data)):
            source, newest = name, data
    return source, newest


async def _ruled(coordinator: Coordinator) -> bool:
    node = await coordinator.get(CLUSTER)
    found = None if node is None else KnownValues().accept(PARAMETERS, node)
    return isinstance(found, ClusterParameters) and found.ruled


async def apply_repair(coordinator: Coordinator, finding: Finding) -> bool:
    """Writes the value that a node knows. False if another client was faster: search again then."""
    if finding.path == RULES.path:
        rules = RULES.parse(finding.data)
        await replace_rules(coordinator, rules, [rules])
        return True
    node: Node | None = await coordinator.get(finding.path, latest=True)
    if node is None:
        return await coordinator.create(finding.path, finding.data)
    return await coordinator.set(finding.path, finding.data, node.version) is not None
