"""A cluster in one event loop and outboxes on simulated disks, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from waltz_log.client import ClientSettings, Outbox, OutboxSettings, Transaction
from waltz_log.errors import ClusterUnavailable
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.testing.disk import SimulatedDisk
from waltz_log.testing.held_network import HeldNetwork
from waltz_log.testing.known_servers import KnownServers
from waltz_log.testing.offload import run_in_place
from waltz_log.testing.virtual_time import run_in_virtual_time

FAST = ClientSettings(connect_timeout_s=0.5, retry_base_s=0.01, retry_cap_s=0.1, request_timeout_s=3.0, close_timeout_s=1.0)
SMALL: dict[str, Any] = {"file_bytes": 64 * 1024, "bytes_max": 1024 * 1024, "retry_base_s": 0.01, "retry_cap_s": 0.2}


class Bench:
    def __init__(self, **cluster: Any) -> None:
        self.cluster = MemoryCluster(**({"partitions": 2} | cluster))
        self.network = HeldNetwork(self.cluster.network)
        self.reachable = True

    @property
    def seeds(self) -> KnownServers:
        return KnownServers(self._addresses)

    def _addresses(self) -> list[str]:
        if not self.reachable:
            raise ClusterUnavailable(address="memory", reason="away")
        return [server.address for server, _ in self.cluster.servers.values()]

    def outbox(self, disk: SimulatedDisk, seed: int = 0, client_settings: ClientSettings = FAST, **settings: Any) -> Outbox:
        chosen = OutboxSettings(**(SMALL | settings))
        return Outbox(disk, run_in_place, self.cluster.clock, self.seeds, self.network, chosen, client_settings, rng=random.Random(seed))

    async def log(self, partition: int) -> list[Transaction]:
        """All that is in the log."""
        client = await self.cluster.connect(FAST)
        mark = await client.high_water_mark(partition)
        found: list[Transaction] = []
        if mark >= 0:
            async for batch in client.feed_batches(partition):
                found += batch
                if found[-1].transaction_id >= mark:
                    break
        await client.close()
        return found

    async def data(self, partition: int) -> list[bytes]:
        return [transaction.data for transaction in await self.log(partition)]


@asynccontextmanager
async def bench(**cluster: Any) -> AsyncIterator[Bench]:
    made = Bench(**cluster)
    await made.cluster.start()
    yield made
    await made.network.hang_up()
    await made.cluster.stop()


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Bounded in virtual time: what never happens fails instead of running on."""

    async def bounded() -> None:
        async with asyncio.timeout(3600):
            await main()

    run_in_virtual_time(bounded())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)
