"""What a command needs to ask a cluster: its log servers, or for operators a session of its coordinator and a network."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from waltz_log.core.ports import Coordinator, Network

if TYPE_CHECKING:
    from waltz_log.client.owners.owners import Owners

__all__ = ["connected", "reached"]


@asynccontextmanager
async def reached(servers: str, timeout_s: float) -> AsyncIterator[Owners]:
    """Follows the cluster at its log servers. Raises `InvalidSetting` for an address that is none of theirs, `ClusterUnavailable` if none answers."""
    from waltz_log.client import ClientSettings
    from waltz_log.client.owners.owners import Owners
    from waltz_log.client.owners.seeds import NamedServers
    from waltz_log.transport.grpc import GrpcNetwork

    settings = ClientSettings(connect_timeout_s=timeout_s, request_timeout_s=timeout_s)
    owners = Owners(NamedServers(servers), GrpcNetwork(), settings, random.Random())
    await owners.open()
    try:
        yield owners
    finally:
        await owners.close()


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
