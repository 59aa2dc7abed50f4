"""Nodes that the console has seen: one that is killed leaves the list of the cluster, and is missing. Bounded, in memory. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from waltz_log.coordination.survey import Survey

__all__ = ["KEPT_MS", "KnownNodes", "MissingNode"]

KEPT_MS: Final = 86_400_000
"""A day, so that an operator sees in the morning which node failed in the night. Then it counts as removed."""

NODES_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class MissingNode:
    """`server_id`: None for a storage node. `name`: of a storage node, the address of a log server. `seen_ms`: when it last answered, or was first
    seen if it never did, since 1970."""

    server_id: int | None
    name: str
    seen_ms: int

    @property
    def title(self) -> str:
        return f"Storage node {self.name}" if self.server_id is None else f"Server {self.server_id} at {self.name}"


class KnownNodes:
    """Remembers nodes for a day after they answered last: log servers by address, because each start gives them another id. A drained node that left
    was removed on purpose."""

    def __init__(self) -> None:
        self._seen: dict[tuple[bool, str], MissingNode] = {}

    def add(self, found: Survey, time_ms: int) -> tuple[MissingNode, ...]:
        """Adds a survey, and returns the nodes that it lacks, servers first. `time_ms`: its time, since 1970."""
        present = set()
        for node, answers in _nodes(found, time_ms):
            key = (node.server_id is None, node.name)
            present.add(key)
            if answers or key not in self._seen:
                self._seen[key] = node
        self._seen = {
            key: node
            for key, node in sorted(self._seen.items(), key=lambda each: -each[1].seen_ms)[:NODES_MAX]
            if time_ms - node.seen_ms <= KEPT_MS and node.name not in found.drained
        }
        missing = (node for key, node in self._seen.items() if key not in present)
        return tuple(sorted(missing, key=lambda node: (node.server_id is None, node.server_id or 0, node.name)))


def _nodes(found: Survey, time_ms: int) -> Iterator[tuple[MissingNode, bool]]:
    """Each with whether it answers."""
    for server in found.servers:
        yield MissingNode(server.server_id, server.address, time_ms), server.answers
    for storage in found.storages:
        yield MissingNode(None, storage.name, time_ms), storage.answers
