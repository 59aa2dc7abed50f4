"""Compares what clients know of the cluster with what the coordinator held: a map never goes back, and each of its sources is what the node of the
coordinator was at the version that the map claims.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from verification.simulation.history import History
from waltz_log.client.owners.following import Following
from waltz_log.client.owners.owners import Owners
from waltz_log.core import metadata as paths
from waltz_log.core.cluster_map import ASSIGNMENT_SOURCE, CLUSTER_SOURCE, REPLICAS_SOURCE, TOPICS_SOURCE, ClusterMap
from waltz_log.core.metadata import Assignment, ReplicaAssignment
from waltz_log.core.topics.catalogue import CATALOGUE, Catalogue

__all__ = ["MapsSeen"]


def _assignment(found: Assignment) -> object:
    return found.partitions, found.addresses, found.workers


CHECKED: Final[dict[str, tuple[str, Callable[[bytes], object], Callable[[ClusterMap], object]]]] = {
    ASSIGNMENT_SOURCE: (paths.ASSIGNMENT, lambda data: _assignment(Assignment.from_bytes(data)), lambda map: _assignment(map.assignment)),
    REPLICAS_SOURCE: (paths.REPLICAS, ReplicaAssignment.from_bytes, lambda map: map.replicas),
    TOPICS_SOURCE: (CATALOGUE, lambda data: dict(Catalogue.from_bytes(data).topics), lambda map: dict(map.catalogue.topics)),
}
"""By source: its node, what the node's value says, and what a map says."""


CONFIRMED: Final = {paths.CLUSTER: CLUSTER_SOURCE} | {path: source for source, (path, _, _) in CHECKED.items()}


class MapsSeen:
    """`some_topics`: clients see only topics of which they may do something."""

    def __init__(self, history: History, *, some_topics: bool) -> None:
        self._history = history
        self._some_topics = some_topics
        self._written: dict[tuple[str, int], list[bytes]] = {}
        """By node and number of the change. A coordinator that was set back gives numbers again."""
        self._paths = {path for path, _, _ in CHECKED.values()}
        self._newest: dict[str, int] = {}
        """By source that a confirmation covers, the number of its newest change."""

    def written(self, path: str, data: bytes, changed: int) -> None:
        """A node was written with the change of this number."""
        if path in CONFIRMED:
            self._newest[CONFIRMED[path]] = changed
        if path in self._paths:
            self._written.setdefault((path, changed), []).append(data)

    def restored(self) -> None:
        """The coordinator was set back: its numbers begin again."""
        self._newest.clear()

    async def confirm(self, name: str, owners: Owners, timeout_s: float) -> None:
        """What was written before a confirmation is in the map after it. Raises `Unavailable`."""
        wanted, epoch = dict(self._newest), owners._following.map.epoch
        await owners.confirm(timeout_s)
        map = owners._following.map
        if map.epoch == epoch and self._newest.keys() >= wanted.keys():
            for source, changed in wanted.items():
                if map.versions.get(source, -1) < changed:
                    known = map.versions.get(source, -1)
                    self._history.complaints.append(f"33: {name} was confirmed without a change of {source}: {known} instead of {changed}")

    def watch(self, name: str, following: Following) -> None:
        """Checks the map of a client from now on."""
        seen: dict[str, int] = {}
        epoch = following.map.epoch
        report: Any = following._changed

        def changed(sources: set[str]) -> None:
            nonlocal epoch
            if following.map.epoch != epoch:
                if following.map.epoch < epoch:
                    self._history.complaints.append(f"33: the map of {name} went back to epoch {following.map.epoch} from {epoch}")
                epoch = following.map.epoch
                seen.clear()
            for source in sorted(sources):
                self._check(name, source, following.map, seen)
            report(sources)

        following._changed = changed
        changed(set(following.map.versions))

    def _check(self, name: str, source: str, map: ClusterMap, seen: dict[str, int]) -> None:
        version = map.versions.get(source, -1)
        if version < seen.get(source, -1):
            self._history.complaints.append(f"33: the map of {name} went back: {source} from {seen[source]} to {version}")
        seen[source] = version
        if source not in CHECKED or version <= 0:
            return
        path, parse, read = CHECKED[source]
        states = [parse(data) for data in self._written.get((path, version), ())]
        known = read(map)
        if source == TOPICS_SOURCE and self._some_topics:
            states = [{topic: each for topic, each in state.items() if topic in known} for state in states if isinstance(state, dict)]  # type: ignore[operator]
        if known not in states:
            self._history.complaints.append(f"33: the map of {name} is not what {path} was at {version}: {known}")
