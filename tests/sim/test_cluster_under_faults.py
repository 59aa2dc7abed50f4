"""Whole clusters in virtual time, with faults drawn from a seed. What was told to clients is compared with what is in the log.

A failing seed is replayed by `pytest "tests/sim/test_cluster_under_faults.py::test_...[SEED]"`.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from dataclasses import dataclass, field

import pytest

from waltz_log.client import ClientSettings, Lock, Receipt, Transaction, WaltzClient
from waltz_log.errors import LockConflict, NotAppended, OutcomeUnknown, WaltzError
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.testing.virtual_time import run_in_virtual_time

SEEDS = range(int(os.environ.get("FIRST_SEED", "0")), int(os.environ.get("FIRST_SEED", "0")) + int(os.environ.get("SEEDS", "25")))


@dataclass
class History:
    """What clients were told. A value names a key, a count under its lock, and the attempt."""

    committed: dict[str, int] = field(default_factory=dict)
    rejected: set[str] = field(default_factory=set)
    unknown: dict[str, OutcomeUnknown] = field(default_factory=dict)


async def _count_under_lock(client: WaltzClient, name: str, keys: int, rounds: int, rng: random.Random, history: History) -> None:
    """Each transaction is one more than the last of its key that this client has been fed: only the locks keep the counts dense."""
    counts: dict[int, int] = {}

    def apply(transactions: list[Transaction]) -> None:
        for transaction in transactions:
            event = json.loads(transaction.data)
            counts[event["key"]] = event["count"]

    follower = await client.follow(0, apply)
    for number in range(rounds):
        key = rng.randrange(keys)
        value = f"{name}-{number}"
        data = json.dumps({"key": key, "count": counts.get(key, 0) + 1, "value": value}).encode()
        try:
            receipt = await client.append(0, data, write_locks=[Lock("key", key)], high_water_mark=follower.applied, timeout_s=20)
            history.committed[value] = receipt.transaction_id
        except LockConflict as conflict:
            history.rejected.add(value)
            await follower.wait(conflict.winner)
        except NotAppended:
            history.rejected.add(value)
        except OutcomeUnknown as unknown:
            history.unknown[value] = unknown
        await asyncio.sleep(rng.uniform(0, 0.05))
    await follower.close()


async def _read_all(client: WaltzClient, mark: int) -> list[Transaction]:
    found: list[Transaction] = []
    async for batch in client.feed_batches(0, after=-1):
        found.extend(batch)
        if found[-1].transaction_id >= mark:
            return found
    raise AssertionError("the feed ended")


def _check(log: list[Transaction], history: History) -> None:
    assert [transaction.transaction_id for transaction in log] == list(range(len(log)))
    values = [json.loads(transaction.data)["value"] for transaction in log]
    assert len(set(values)) == len(values), "a transaction is in the log twice"
    place = {value: at for at, value in enumerate(values)}
    for value, transaction_id in history.committed.items():
        assert place.get(value) == transaction_id, f"acknowledged and lost or moved: {value}"
    assert not history.rejected & set(values), "rejected and in the log"
    counts: dict[int, int] = {}
    for transaction in log:
        event = json.loads(transaction.data)
        counts[event["key"]] = counts.get(event["key"], 0) + 1
        assert event["count"] == counts[event["key"]], f"lost update: {event}"


async def _faults(cluster: MemoryCluster, rng: random.Random, until: asyncio.Event) -> None:
    """At most one storage node and one server away at a time, so that a majority and an owner can exist."""
    while not until.is_set():
        await asyncio.sleep(rng.uniform(0.05, 0.6))
        name = rng.choice(sorted(cluster.storages))
        match rng.randrange(6):
            case 0:
                await cluster.kill_storage(name)
                await asyncio.sleep(rng.uniform(0, 0.8))
                await cluster.start_storage(name)
            case 1:
                address = cluster.storages[name][1].address
                cluster.network.cut(address)
                await asyncio.sleep(rng.uniform(0, 0.8))
                cluster.network.heal(address)
            case 2:
                server = rng.choice(sorted(cluster.servers))
                await cluster.kill_server(server)
                await asyncio.sleep(rng.uniform(0, 0.5))
                await cluster.start_server(server)
            case 3:
                server = rng.choice(sorted(cluster.servers))
                await cluster.stop_server(server)
                await cluster.start_server(server)
            case 4:
                server = rng.choice(sorted(cluster.servers))
                old, _ = await cluster.isolate_server(server)
                await cluster.start_server(server)
                await asyncio.sleep(rng.uniform(0.1, 1.0))
                await old.abort()
            case 5:
                # The connections of clients break while the owner lives on: what they had in flight must be settled, not guessed.
                cluster.network.cut(server_address := cluster.servers[rng.choice(sorted(cluster.servers))][0].address)
                await asyncio.sleep(rng.uniform(0, 0.1))
                cluster.network.heal(server_address)


async def _run(seed: int) -> list[tuple[int, bytes]]:
    rng = random.Random(seed)
    network_rng = random.Random(seed + 2)
    cluster = MemoryCluster(delay_s=lambda: network_rng.uniform(0, 0.01))
    await cluster.start()
    settings = ClientSettings(retry_base_s=0.01, retry_cap_s=0.1, request_timeout_s=3.0)
    clients = [await cluster.connect(settings, seed=seed * 10 + number) for number in range(3)]
    history = History()
    done = asyncio.Event()
    nemesis = asyncio.ensure_future(_faults(cluster, random.Random(seed + 1), done))
    workers = [_count_under_lock(client, f"c{number}", 4, 150, random.Random(rng.random()), history) for number, client in enumerate(clients)]
    await asyncio.gather(*workers)
    done.set()
    await nemesis
    for value, unknown in history.unknown.items():
        receipt: Receipt | None = await clients[0].resolve(unknown)
        if receipt is None:
            history.rejected.add(value)
        else:
            history.committed[value] = receipt.transaction_id
    mark = await clients[0].high_water_mark(0)
    log = await _read_all(clients[0], mark)
    _check(log, history)
    assert len(history.committed) > 20
    await _replicas_agree(cluster, mark)
    for client in clients:
        await client.close()
    await cluster.stop()
    return [(transaction.transaction_id, transaction.data) for transaction in log]


async def _replicas_agree(cluster: MemoryCluster, mark: int) -> None:
    """Healed and quiet, every replica holds the same bytes."""
    async with asyncio.timeout(30):
        while True:
            contents = set()
            for _, listener in cluster.storages.values():
                contents.add(await _stored(cluster, listener.address, mark))
            if len(contents) == 1:
                return
            await asyncio.sleep(0.1)


async def _stored(cluster: MemoryCluster, address: str, mark: int) -> bytes:
    from waltz_log.rpc import methods
    from waltz_log.rpc import waltz_pb2 as pb

    request = pb.ReadRequest(
        cluster_key=cluster.key.bytes, partition=0, session=0, first_transaction_id=0, last_transaction_id=mark, max_bytes=1 << 20
    )
    stream = cluster.network.connect(address).open(methods.READ, request)
    stored = b""
    try:
        while (answer := await stream.receive()) is not None:
            stored += b"".join(block.records for block in answer.blocks)
    except WaltzError as error:
        return f"{address} {error}".encode()
    return stored


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_lost_repeated_or_updated_blindly_whatever_is_killed(seed: int) -> None:
    run_in_virtual_time(_run(seed))


def test_the_same_seed_gives_the_same_run() -> None:
    assert run_in_virtual_time(_run(4)) == run_in_virtual_time(_run(4))
