"""A scripted cluster and clients of it, in one event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from waltz_log.client import ClientSettings, WaltzClient
from waltz_log.testing.memory_coordinator import MemoryEnsemble
from waltz_log.testing.network import MemoryNetwork
from waltz_log.testing.scripted_server import ScriptedCluster

FAST: dict[str, Any] = {"retry_base_s": 0.001, "retry_cap_s": 0.01, "append_timeout_s": 5.0, "request_timeout_s": 1.0, "close_timeout_s": 1.0}


@pytest.fixture
def ensemble() -> MemoryEnsemble:
    return MemoryEnsemble()


@pytest.fixture
def network() -> MemoryNetwork:
    return MemoryNetwork()


@pytest.fixture
async def cluster(ensemble: MemoryEnsemble, network: MemoryNetwork) -> AsyncIterator[ScriptedCluster]:
    made = ScriptedCluster(network, ensemble.session(), partitions=2)
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def connect(cluster: ScriptedCluster, network: MemoryNetwork) -> AsyncIterator[Callable[..., Awaitable[WaltzClient]]]:
    made: list[WaltzClient] = []

    async def connect(**settings: Any) -> WaltzClient:
        client = await WaltzClient.connect_over(cluster.seeds, network, ClientSettings(**(FAST | settings)))
        made.append(client)
        return client

    yield connect
    for client in made:
        await client.close()


@pytest.fixture
async def client(connect: Callable[..., Awaitable[WaltzClient]]) -> WaltzClient:
    return await connect()
