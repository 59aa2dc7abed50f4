"""What a command needs to ask a cluster: a session of its coordinator, and a network."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from waltz_log.core.ports import Coordinator, Network

__all__ = ["connected"]


@asynccontextmanager
async def connected(address: str, timeout_s: float) -> AsyncIterator[tuple[Coordinator, Network]]:
    """Raises `InvalidSetting` for an address that is none, `ClusterUnavailable` if no coordinator answers."""
    from waltz_log.coordination.coordinator import ZooKeeperCoordinator
    from waltz_log.transport.grpc import GrpcNetwork

    coordinator = await ZooKeeperCoordinator.connect(address, timeout_s=timeout_s)
    try:
        yield coordinator, GrpcNetwork()
    finally:
        await coordinator.close()
