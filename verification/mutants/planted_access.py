"""Bugs to plant in who may do what (as in `planted.py`). They show in the seeds in which the rules of access are enforced."""

from __future__ import annotations

from typing import Any

from verification.mutants.planting import bug, change
from waltz_log.coordination.access import AccessFollower
from waltz_log.security.callers import SIBLING, calling, set_caller
from waltz_log.security.identity import Identity
from waltz_log.server.partition.partition import Partition
from waltz_log.storage.node.read_access import ReadAccess
from waltz_log.storage.node.service import _Service
from waltz_log.testing import memory_connection

__all__: list[str] = []


@bug
def permission_skipped_for_a_fence() -> None:
    """A storage node serves a reader that states the session of an owner."""

    async def read(self: _Service, request: Any, stream: Any) -> None:
        if request.fence:
            with calling(SIBLING):
                await original(self, request, stream)
        else:
            await original(self, request, stream)

    original: Any = change(_Service, "read", read)


@bug
def principal_believed() -> None:
    """The caller is the principal that the message states."""

    def admit(method: Any, peer: Identity, message: Any) -> bool:
        stated = getattr(message, "principal", "") or getattr(getattr(message, "mount", None), "principal", "")
        changed: bool = original(method, peer, message)
        if stated:
            set_caller(Identity(stated, peer.roles))
        return changed

    original: Any = change(memory_connection, "_admit", admit)


@bug
def mounts_outlive_their_right() -> None:
    """A change of the rules ends no mount."""
    change(Partition, "access_changed", lambda self: None)


@bug
def rules_not_followed() -> None:
    """A process keeps the rules that it read when it started."""

    async def run(self: AccessFollower) -> None:
        await self._coordinator.wait_session_lost()

    change(AccessFollower, "run", run)


@bug
def replicas_ask_no_rule() -> None:
    """A storage node serves every reader."""
    change(ReadAccess, "expect_permitted", lambda self, partition: None)
