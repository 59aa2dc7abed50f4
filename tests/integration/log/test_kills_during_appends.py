"""kill -9 of every kind of process while clients append under locks: nothing acknowledged is lost, nothing is there twice, no update is lost."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from waltz_log.client import ClientSettings, Lock, Transaction, WaltzClient
from waltz_log.errors import LockConflict, NotAppended, OutcomeUnknown
from waltz_log.processes.local_cluster import LocalCluster

pytestmark = pytest.mark.timeout(240)

KEYS = 20
CLIENTS = 3
APPENDS_PER_CLIENT = 1500


async def _count(client: WaltzClient, name: str, rng: random.Random, reported: dict[str, int], never: set[str], progress: Callable[[], None]) -> None:
    """Counts keys of two partitions up, each count computed from the feed and held by a write lock."""
    counts: dict[int, int] = {}

    def apply(transactions: list[Transaction]) -> None:
        for transaction in transactions:
            event = json.loads(transaction.data)
            counts[event["key"]] = event["count"]

    followers = [await client.follow(partition, apply) for partition in range(2)]
    room = asyncio.Semaphore(16)

    async def one(number: int) -> None:
        key = rng.randrange(KEYS)
        partition, value = key % 2, f"{name}-{number}"
        follower = followers[partition]
        mark = follower.applied
        data = json.dumps({"key": key, "count": counts.get(key, 0) + 1, "value": value}).encode()
        try:
            reported[value] = (
                await client.append(partition, data, write_locks=[Lock("key", key)], high_water_mark=mark, timeout_s=60)
            ).transaction_id
        except LockConflict as conflict:
            never.add(value)
            await follower.wait(conflict.winner)
        except NotAppended:
            never.add(value)
        except OutcomeUnknown as unknown:
            found = await client.resolve(unknown)
            if found is None:
                never.add(value)
            else:
                reported[value] = found.transaction_id
        progress()
        room.release()

    tasks = []
    for number in range(APPENDS_PER_CLIENT):
        await room.acquire()
        tasks.append(asyncio.ensure_future(one(number)))
        await asyncio.sleep(0.002)
    await asyncio.gather(*tasks)
    for follower in followers:
        await follower.close()


async def _check(cluster: LocalCluster, reported: dict[str, int], never: set[str]) -> None:
    assert len(reported) + len(never) == CLIENTS * APPENDS_PER_CLIENT
    places: dict[str, int] = {}
    counts: dict[int, int] = {}
    async with WaltzClient.open(cluster.cluster) as reader:
        for partition in range(2):
            mark = await reader.high_water_mark(partition)
            expected = 0
            async for batch in reader.feed_batches(partition, after=-1):
                for transaction in batch:
                    assert transaction.transaction_id == expected
                    expected += 1
                    event = json.loads(transaction.data)
                    assert event["value"] not in places, f"twice in the log: {event}"
                    places[event["value"]] = transaction.transaction_id
                    counts[event["key"]] = counts.get(event["key"], 0) + 1
                    assert event["count"] == counts[event["key"]], f"lost update: {event}"
                if batch[-1].transaction_id >= mark:
                    break
    assert places == reported, "what was acknowledged is not what is in the log"
    assert not never & set(places)


def test_kill_of_each_process_kind_during_appends_loses_and_repeats_nothing(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "cluster", partitions=2, servers=2, session_timeout_s=2.0) as cluster:

        async def run() -> None:
            reported: dict[str, int] = {}
            never: set[str] = set()
            decided = 0

            def progress() -> None:
                nonlocal decided
                decided += 1

            async def reached(part: float) -> None:
                while decided < part * CLIENTS * APPENDS_PER_CLIENT:
                    await asyncio.sleep(0.02)

            async def nemesis() -> None:
                for part, name, pause_s in (
                    (0.1, "storage-1", 1.0),
                    (0.3, "server-0", 0.5),
                    (0.5, "zookeeper", 1.0),
                    (0.7, "server-1", 0.5),
                    (0.85, "storage-2", 0.2),
                ):
                    await reached(part)
                    await asyncio.to_thread(cluster.kill, name)
                    await asyncio.sleep(pause_s)
                    await asyncio.to_thread(cluster.start, name)

            async with asyncio.timeout(200):
                clients = [await WaltzClient.connect(cluster.cluster, ClientSettings()) for _ in range(CLIENTS)]
                kills = asyncio.ensure_future(nemesis())
                await asyncio.gather(*(_count(client, f"c{n}", random.Random(n), reported, never, progress) for n, client in enumerate(clients)))
                await kills
                for client in clients:
                    await client.close()
                await _check(cluster, reported, never)
            assert len(reported) > 500

        asyncio.run(run())
