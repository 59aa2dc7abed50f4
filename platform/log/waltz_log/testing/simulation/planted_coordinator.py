"""Bugs to plant in what is decided by the coordinator's answers (as in `planted.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from waltz_log.core.metadata import Assignment, ServerEntry
from waltz_log.errors import Fenced
from waltz_log.server import manager, recovery
from waltz_log.server.store import StoreSession
from waltz_log.testing.simulation.planting import bug, change

__all__: list[str] = []


@bug
def restored_coordinator_believed() -> None:
    """An owner goes on from metadata that is older than the replicas, and takes session numbers until they are high enough."""

    async def expect_taken(self: StoreSession, _replica: str, error: Fenced) -> None:
        self.fenced(error)

    change(recovery, "unrecorded_session", lambda *_: None)
    change(StoreSession, "expect_taken", expect_taken)


@bug
def partitions_not_heard_of_are_dropped() -> None:
    """A manager whose follower lags assigns the partitions that it knows of, and forgets the others with their generations."""

    def assign(previous: Assignment, servers: Sequence[ServerEntry], partitions: int) -> Assignment:
        known = {partition: owned for partition, owned in previous.partitions.items() if partition < partitions}
        found: Assignment = original(replace(previous, partitions=known), servers, partitions)
        return found

    original: Any = change(manager, "assign", assign)
