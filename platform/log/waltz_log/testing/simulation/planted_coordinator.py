"""Bugs to plant in what is decided by the coordinator's answers (as in `planted.py`)."""

from __future__ import annotations

from waltz_log.errors import Fenced
from waltz_log.server import recovery
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
