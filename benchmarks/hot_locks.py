"""Many transactions under few locks: how often each is computed until it is in the log (at least once).

Several clients in one process, each with a share of the calls in flight; every call draws one of the locks. No state is applied, because only the
behavior of the locks is measured.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from typing import Any

from benchmarks.measurement import Measurement
from benchmarks.setting import DATA_BYTES, LOCK_NAME, Workload
from waltz_log.client import Lock, TransactionContext, WaltzClient

__all__ = ["measure"]

LOCKS = 64
CLIENTS = 4
CALLS = 1_000
"""Transactions in flight, of all clients together."""

TIMEOUT_S = 120.0


async def measure(cluster: str, workload: Workload, conditions: Mapping[str, Any]) -> Measurement:
    rounds = max(2, workload.single // 200)
    clients = [await WaltzClient.connect(cluster) for _ in range(CLIENTS)]
    executions = 0
    data = bytes(DATA_BYTES)

    async def calls_of(client: WaltzClient, number: int) -> None:
        follower = await client.follow(0, lambda batch: None, after=await client.high_water_mark(0))

        @client.transactional(follower, attempts=1_000, timeout_s=TIMEOUT_S)
        def change(tx: TransactionContext, key: int) -> None:
            nonlocal executions
            executions += 1
            tx.append(data, write_locks=[Lock(LOCK_NAME, key)])

        async def caller(chance: random.Random) -> None:
            for _ in range(rounds):
                await change(chance.randrange(LOCKS))

        await asyncio.gather(*(caller(random.Random(number * CALLS + place)) for place in range(CALLS // CLIENTS)))
        await follower.close()

    began_s = time.perf_counter()
    try:
        await asyncio.gather(*(calls_of(client, number) for number, client in enumerate(clients)))
    finally:
        for client in clients:
            await client.close()
    count = rounds * CALLS
    own = {
        **conditions,
        "locks": LOCKS,
        "in_flight": CALLS,
        "clients": CLIENTS,
        "transactions": count,
        "txn_per_s": round(count / (time.perf_counter() - began_s)),
    }
    return Measurement("append.hot_locks_executions", executions / count, "per txn", own)
