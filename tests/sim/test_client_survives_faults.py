"""Clients of a whole cluster in one event loop, real servers and storage nodes, while parts die, stop and are cut off: the log holds each append
as its client learned the outcome, once and in order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from waltz_log.client import ClientSettings, Lock, LockConflict, NotAppended, OutcomeUnknown, Transaction, WaltzClient
from waltz_log.testing.cluster import MemoryCluster


class Appender:
    def __init__(self, client: WaltzClient, name: int, chance: random.Random) -> None:
        self.reported: dict[bytes, int | None] = {}
        self.stopping = False
        self._client = client
        self._name = name
        self._chance = chance

    async def run(self) -> None:
        number = 0
        while not self.stopping:
            burst = []
            for _ in range(self._chance.randrange(1, 60)):
                data = b"%d:%d" % (self._name, number)
                number += 1
                timeout_s = 0.01 if self._chance.random() < 0.01 else None
                locks = [Lock("k", self._chance.randrange(500))]
                try:
                    burst.append((data, await self._client.append_nowait(0, data, write_locks=locks, timeout_s=timeout_s)))
                except NotAppended:
                    self.reported[data] = None
            for data, future in burst:
                try:
                    receipt = await future
                    self.reported[data] = receipt.transaction_id
                except OutcomeUnknown as unknown:
                    found = await self._client.resolve(unknown)
                    self.reported[data] = None if found is None else found.transaction_id
                except (LockConflict, NotAppended):
                    self.reported[data] = None


async def _kill_server(cluster: MemoryCluster, chance: random.Random) -> None:
    name = chance.choice(sorted(cluster.servers))
    await cluster.kill_server(name)
    await cluster.start_server(name)


async def _stop_server(cluster: MemoryCluster, chance: random.Random) -> None:
    name = chance.choice(sorted(cluster.servers))
    await cluster.stop_server(name)
    await cluster.start_server(name)


async def _kill_storage(cluster: MemoryCluster, chance: random.Random) -> None:
    name = chance.choice(sorted(cluster.storages))
    await cluster.kill_storage(name)
    await asyncio.sleep(chance.random() * 0.05)
    await cluster.start_storage(name)


async def _cut_server(cluster: MemoryCluster, chance: random.Random) -> None:
    address = cluster.servers[chance.choice(sorted(cluster.servers))][0].address
    cluster.network.cut(address)
    await asyncio.sleep(chance.random() * 0.02)
    cluster.network.heal(address)


FAULTS: list[Callable[[MemoryCluster, random.Random], Awaitable[None]]] = [_kill_server, _stop_server, _kill_storage, _cut_server]


@pytest.mark.parametrize("seed", range(3))
async def test_the_outcomes_of_clients_match_the_log(seed: int) -> None:
    chance = random.Random(seed)
    cluster = MemoryCluster(partitions=1, servers=2)
    await cluster.start()
    clients = [await cluster.connect(ClientSettings(frame_bytes=4096), seed=number) for number in range(3)]
    appenders = [Appender(client, number, chance) for number, client in enumerate(clients)]
    seen: list[Transaction] = []
    follower = await clients[0].follow(0, seen.extend)
    running = [asyncio.create_task(appender.run()) for appender in appenders]
    for _ in range(8):
        before = follower.applied
        async with asyncio.timeout(30):
            await follower.wait(before + chance.randrange(1, 2000))
        await chance.choice(FAULTS)(cluster, chance)
    for appender in appenders:
        appender.stopping = True
    async with asyncio.timeout(60):
        await asyncio.gather(*running)
        mark = await clients[1].high_water_mark(0)
        await follower.wait(mark)
    assert [each.transaction_id for each in seen] == list(range(mark + 1))
    found = {each.data: each.transaction_id for each in seen}
    assert len(found) == len(seen)
    reported = {data: outcome for appender in appenders for data, outcome in appender.reported.items()}
    assert reported == {data: found.get(data) for data in reported}
    for name in range(3):
        numbers = [int(each.data.partition(b":")[2]) for each in seen if each.data.startswith(b"%d:" % name)]
        assert numbers == sorted(numbers)
    for client in clients:
        await client.close()
    await cluster.stop()
