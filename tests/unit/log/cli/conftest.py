"""Commands that reach a cluster in memory, in place of one at an address."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from waltz_log.client import ClientSettings, WaltzClient
from waltz_log.client.owners.owners import Owners
from waltz_log.testing import InMemoryCluster

Reached = Callable[[str, float], AbstractAsyncContextManager[Owners]]


@pytest.fixture
def reached_in() -> Callable[[InMemoryCluster], Reached]:
    """Makes what stands for `connecting.reached`."""

    def make(cluster: InMemoryCluster) -> Reached:
        @asynccontextmanager
        async def reached(address: str, timeout_s: float) -> AsyncIterator[Owners]:
            owners = Owners(cluster.seeds, cluster.network, ClientSettings(connect_timeout_s=timeout_s), random.Random(0))
            await owners.open()
            yield owners
            await owners.close()

        return reached

    return make


@pytest.fixture
def clients_in() -> Callable[[InMemoryCluster], type[Any]]:
    """Makes what stands for `WaltzClient`, of which commands use `open`."""

    def make(cluster: InMemoryCluster) -> type[Any]:
        class Connected:
            @staticmethod
            @asynccontextmanager
            async def open(address: str, settings: ClientSettings) -> AsyncIterator[WaltzClient]:
                async with await cluster.client(settings) as client:
                    yield client

        return Connected

    return make
