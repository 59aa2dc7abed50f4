"""Calls that declare their locks get their share beside calls that do not: a turn at a hot lock is worth having. Virtual time, drawn from a seed."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from waltz_log.client import Lock, WaltzClient
from waltz_log.errors import GaveUp, GaveUpOnConflict
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.testing.virtual_time import run_in_virtual_time

SECONDS = 8.0
TIMEOUT_S = 4.0


@dataclass(slots=True)
class _Calls:
    """Of one kind of callers."""

    done: int = 0
    timeouts: int = 0
    executions: int = 0
    latencies_s: list[float] = field(default_factory=list)

    @property
    def median_s(self) -> float:
        return sorted(self.latencies_s)[len(self.latencies_s) // 2]


async def _mixed(locks: int, clients: int, callers: int, *, one_client: bool) -> tuple[_Calls, _Calls]:
    """As many callers that declare their locks as others, each with one call after the other. `one_client`: each client has both kinds."""
    rng = random.Random(5)
    cluster = MemoryCluster(servers=1, delay_s=lambda: rng.uniform(0, 0.002))
    await cluster.start()
    loop = asyncio.get_running_loop()
    counts = {True: _Calls(), False: _Calls()}

    def changing(client: WaltzClient, follower: Any, mine: _Calls, *, declares: bool) -> Any:
        options: dict[str, Any] = {"locks": lambda key, _: [Lock("counter", key)]} if declares else {}

        @client.transactional(follower, attempts=1000, timeout_s=TIMEOUT_S, **options)
        def change(tx: Any, key: int, _: object) -> None:
            mine.executions += 1
            tx.append(b"", write_locks=[Lock("counter", key)])

        return change

    async def call_on(change: Any, mine: _Calls, seed: int) -> None:
        chance, over_s = random.Random(seed), loop.time() + SECONDS
        while loop.time() < over_s:
            began_s = loop.time()
            try:
                await change(chance.randrange(locks), (seed, mine.done))  # no two calls have the same arguments, so none can expect its locks
                mine.done += 1
                mine.latencies_s.append(loop.time() - began_s)
            except (GaveUp, GaveUpOnConflict):
                mine.timeouts += 1

    async def run_client(number: int) -> None:
        client = await cluster.connect(seed=number)
        follower = await client.follow(0, lambda batch: None)
        kinds = [True, False] if one_client else [number % 2 == 0]
        work = [(kind, changing(client, follower, counts[kind], declares=kind)) for kind in kinds]
        await asyncio.gather(*(call_on(change, counts[kind], 100 * number + place) for kind, change in work for place in range(callers)))
        await follower.close()
        await client.close()

    await asyncio.gather(*(run_client(number) for number in range(clients)))
    await cluster.stop()
    return counts[True], counts[False]


@pytest.mark.parametrize("one_client", [False, True], ids=["clients of one kind", "both kinds in each client"])
@pytest.mark.parametrize(("locks", "clients", "callers"), [(1, 4, 1), (1, 8, 8), (16, 8, 16)])
def test_callers_that_declare_their_locks_get_their_share_and_no_timeout(locks: int, clients: int, callers: int, *, one_client: bool) -> None:
    declared, others = run_in_virtual_time(_mixed(locks, clients, callers, one_client=one_client))
    assert (declared.timeouts, others.timeouts) == (0, 0)
    assert 0.8 <= declared.done / others.done <= 1.25
    assert declared.median_s <= 1.25 * others.median_s
    assert declared.executions <= 1.1 * declared.done
    assert others.executions <= 2.1 * others.done
