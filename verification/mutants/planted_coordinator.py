"""Bugs to plant in what is decided by the coordinator's answers (as in `planted.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from verification.mutants.planting import bug, change
from waltz_log.core.metadata import CLUSTER, Assignment, ServerEntry
from waltz_log.core.ports import Node
from waltz_log.errors import Fenced
from waltz_log.server.node import manager
from waltz_log.server.node.manager import ClusterManager
from waltz_log.server.replication import session_recovery as recovery
from waltz_log.server.replication.fence_evidence import FenceEvidence
from waltz_log.server.replication.session_recovery import Recovery
from waltz_log.testing.memory_coordinator import MemoryCoordinator

__all__: list[str] = []


@bug
def restored_coordinator_believed() -> None:
    """An owner goes on from metadata that is older than the replicas, and uses up session numbers until they are high enough."""

    async def judge(self: FenceEvidence, _replica: str, error: Fenced) -> None:
        if error.newer > self._session.session:
            self._session.fail(error)

    change(recovery, "unrecorded_session", lambda *_: None)
    change(FenceEvidence, "judge", judge)


@bug
def changed_before_a_majority_answered() -> None:
    """The first replica that answers is made clean, whatever the others would show of newer sessions."""

    async def majority_inspected(_self: Recovery) -> None:
        return

    change(Recovery, "majority_inspected", majority_inspected)


async def _hear_of_no_growth(self: ClusterManager) -> int | None:
    node = await self._coordinator.get(CLUSTER)
    return None if node is None else node.version


@bug
def growth_not_heard_of() -> None:
    """A manager assigns the partitions that there were when its server started."""
    change(ClusterManager, "_grown", _hear_of_no_growth)


@bug
def partitions_not_heard_of_are_dropped() -> None:
    """A manager assigns the partitions that there were when its server started, and forgets the others with their generations."""

    def assign(previous: Assignment, servers: Sequence[ServerEntry], partitions: int) -> Assignment:
        known = {partition: owned for partition, owned in previous.partitions.items() if partition < partitions}
        found: Assignment = original(replace(previous, partitions=known), servers, partitions)
        return found

    original: Any = change(manager, "assign", assign)
    change(ClusterManager, "_grown", _hear_of_no_growth)


@bug
def followers_believed() -> None:
    """No read asks for the latest value: whatever is decided by the coordinator is decided by what a follower has."""

    async def get(self: MemoryCoordinator, path: str, *, latest: bool = False) -> Node | None:
        found: Node | None = await original(self, path)
        return found

    original: Any = change(MemoryCoordinator, "get", get)
