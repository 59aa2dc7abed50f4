"""How a node joins its cluster, and how long it waits for the coordinator."""

from __future__ import annotations

from typing import Final

from waltz_log.coordination.coordinator import ZooKeeperCoordinator
from waltz_log.security.settings import TlsSettings

__all__ = ["AGAIN_PAUSE_S", "CONNECT_TIMEOUT_S", "join"]

CONNECT_TIMEOUT_S: Final = 10.0
"""For a session, and for each call of a node that has joined."""

JOIN_TIMEOUT_S: Final = 60.0

AGAIN_PAUSE_S: Final = 0.5
"""Before a process that lost its session connects to the coordinator again."""


async def join(address: str, tls: TlsSettings | None, session_timeout_s: float = 10.0) -> ZooKeeperCoordinator:
    """The session of a node that joins, whose calls are patient until `joined`. Raises `ClusterUnavailable` as `ZooKeeperCoordinator.connect`."""
    return await ZooKeeperCoordinator.connect(
        address, session_timeout_s=session_timeout_s, timeout_s=CONNECT_TIMEOUT_S, join_timeout_s=JOIN_TIMEOUT_S, tls=tls
    )
