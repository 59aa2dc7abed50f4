"""Services with outboxes beside an ordinary client, on one cluster in virtual time, with faults of everything drawn from a seed.

The services die again and again, some with their machine, some leaving connections and frames on the wire behind. At the end all is quiet, everything
owed is forwarded, and what was accepted is compared with what is in the log.
"""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass, field
from typing import Any

from waltz_log.client import (
    ClientSettings,
    Intent,
    IntentReceipt,
    Lock,
    LockConflict,
    Outbox,
    OutboxSettings,
    Transaction,
    TransactionContext,
    WaltzClient,
)
from waltz_log.errors import NotAppended, OutboxFenced, OutcomeUnknown
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.testing.disk import SimulatedDisk
from waltz_log.testing.held_network import HeldNetwork
from waltz_log.testing.offload import run_in_place

__all__ = ["World"]

PARTITIONS = 2
COUNTED = 0
"""The partition in which keys are counted under locks."""
KEYS = 4
CLIENT = ClientSettings(retry_base_s=0.01, retry_cap_s=0.1, request_timeout_s=3.0, close_timeout_s=1.0)
OUTBOX = OutboxSettings(file_bytes=64 * 1024, bytes_max=1024 * 1024, retry_base_s=0.01, retry_cap_s=0.2, attempts_max=100_000)
SETTLED_WITHIN_S = 30.0


def _event(value: str, **more: Any) -> bytes:
    return json.dumps({"value": value} | more).encode()


@dataclass
class Service:
    """One outbox on one disk, and what it promised."""

    name: str
    disk: SimulatedDisk
    network: HeldNetwork
    numbers: int = 0
    lives: int = 0
    accepted: set[str] = field(default_factory=set)
    receipts: dict[str, IntentReceipt] = field(default_factory=dict)
    ordered: dict[str, int] = field(default_factory=dict)


class World:
    def __init__(self, seed: int, *, lives: int = 4, services: int = 2) -> None:
        self.rng = random.Random(f"outbox {seed}")
        network_rng = random.Random(f"network {seed}")
        self.cluster = MemoryCluster(partitions=PARTITIONS, delay_s=lambda: network_rng.uniform(0, 0.01))
        self.services = [Service(f"s{number}", SimulatedDisk(), HeldNetwork(self.cluster.network)) for number in range(services)]
        self.rival: set[str] = set()
        self._lives = lives

    async def run(self) -> list[tuple[int, bytes]]:
        """All of it; the log at the end."""
        await self.cluster.start()
        done = asyncio.Event()
        nemesis = asyncio.ensure_future(self._break_things(random.Random(self.rng.random()), done))
        client = await self.cluster.connect(CLIENT, seed=1)
        rival = asyncio.ensure_future(self._count_as_client(client, random.Random(self.rng.random()), done))
        await asyncio.gather(*(self._live(service, random.Random(self.rng.random())) for service in self.services))
        done.set()
        await asyncio.gather(nemesis, rival)
        for service in self.services:
            await self._settle(service)
        log = {partition: await _read_all(client, partition) for partition in range(PARTITIONS)}
        self._check(log)
        await client.close()
        await self.cluster.stop()
        return [(transaction.transaction_id, transaction.data) for part in log.values() for transaction in part]

    # ---- the services ------------------------------------------------------------------------------------------------------------------------------

    def _outbox(self, service: Service) -> Outbox:
        service.lives += 1
        rng = random.Random(f"{service.name} {service.lives}")
        outbox = Outbox(service.disk, run_in_place, self.cluster.clock, self.cluster.seeds, service.network, OUTBOX, CLIENT, rng=rng)
        counts: dict[int, int] = {}

        def apply(transactions: list[Transaction]) -> None:
            for transaction in transactions:
                event = json.loads(transaction.data)
                if "count" in event:
                    counts[event["counted"]] = event["count"]

        def count(tx: TransactionContext, arguments: Any) -> None:
            counted = arguments["counted"]
            tx.append(_event(arguments["value"], counted=counted, count=counts.get(counted, 0) + 1), write_locks=[Lock("key", counted)])

        outbox.follow(COUNTED, apply)
        outbox.handler("count")(count)
        return outbox

    async def _live(self, service: Service, rng: random.Random) -> None:
        for _ in range(self._lives):
            outbox = self._outbox(service)
            await outbox.start()
            submitting = asyncio.ensure_future(self._submit(service, outbox, rng))
            await asyncio.sleep(rng.choice([0.0, rng.uniform(0, 0.1), rng.uniform(0, 2)]))
            if rng.random() < 0.5:  # what it sends from here on stays on the wire, and its connections outlive it
                service.network.hold_frames = service.network.outlive = True
                await asyncio.sleep(rng.uniform(0, 0.05))
            elif rng.random() < 0.5:  # what it sends arrives, and it never hears of it
                service.network.hold_answers = True
                await asyncio.sleep(rng.uniform(0, 0.1))
            await outbox.abort()
            submitting.cancel()
            await asyncio.gather(submitting, return_exceptions=True)
            service.disk = service.disk.crash(rng, keep=rng.random() < 0.3)
            service.network.hold_frames = service.network.outlive = service.network.hold_answers = False
            asyncio.get_running_loop().call_later(rng.choice([0.0, rng.uniform(0, 1)]), self._arrive_late, service)

    def _arrive_late(self, service: Service) -> None:
        task = asyncio.ensure_future(service.network.deliver())
        task.add_done_callback(lambda done: None if done.cancelled() else done.exception())

    async def _submit(self, service: Service, outbox: Outbox, rng: random.Random) -> None:
        while True:
            values: list[str] = []
            intents = [self._intent(service, rng, values) for _ in range(rng.randrange(1, 12))]
            receipts = await outbox.submit(intents)
            service.accepted.update(values)
            service.receipts.update(zip(values, receipts, strict=True))
            await asyncio.sleep(rng.uniform(0, 0.05))

    def _intent(self, service: Service, rng: random.Random, values: list[str]) -> Intent:
        service.numbers += 1
        value = f"{service.name}-{service.numbers}"
        values.append(value)
        kind = rng.randrange(3)
        if kind == 0:
            return Intent.call("count", {"counted": rng.randrange(KEYS), "value": value}, COUNTED)
        if kind == 1:
            key = f"{service.name} {rng.randrange(2)}"
            service.ordered[key] = service.ordered.get(key, 0) + 1
            return Intent.data(1, _event(value, ordered=key, number=service.ordered[key]), key=key)
        return Intent.data(rng.randrange(PARTITIONS), _event(value))

    async def _settle(self, service: Service) -> None:
        outbox = self._outbox(service)
        await outbox.start()
        try:
            async with asyncio.timeout(SETTLED_WITHIN_S):
                await outbox.flush()
        except TimeoutError:
            raise AssertionError(f"not forwarded within {SETTLED_WITHIN_S:g} s: {outbox.statistics()}") from None
        except OutboxFenced as error:
            raise AssertionError(f"not forwarded, its own sendings look like those of a copy: {error}") from None
        assert outbox.dead_letters() == []
        await service.network.deliver()
        await asyncio.sleep(1)
        await service.network.hang_up()
        await outbox.close()

    # ---- the others --------------------------------------------------------------------------------------------------------------------------------

    async def _count_as_client(self, client: WaltzClient, rng: random.Random, done: asyncio.Event) -> None:
        """An ordinary client that counts the same keys under the same locks."""
        counts: dict[int, int] = {}

        def apply(transactions: list[Transaction]) -> None:
            for transaction in transactions:
                event = json.loads(transaction.data)
                if "count" in event:
                    counts[event["counted"]] = event["count"]

        follower = await client.follow(COUNTED, apply)
        number = 0
        while not done.is_set():
            counted = rng.randrange(KEYS)
            number += 1
            data = _event(f"client-{number}", counted=counted, count=counts.get(counted, 0) + 1)
            try:
                await client.append(COUNTED, data, write_locks=[Lock("key", counted)], high_water_mark=follower.applied, timeout_s=20)
                self.rival.add(f"client-{number}")
            except (LockConflict, NotAppended):
                pass
            except OutcomeUnknown as unknown:
                if await client.resolve(unknown) is not None:
                    self.rival.add(f"client-{number}")
            await asyncio.sleep(rng.uniform(0, 0.1))
        await follower.close()

    async def _break_things(self, rng: random.Random, until: asyncio.Event) -> None:
        """At most one storage node and one server away at a time, so that a majority and an owner can exist."""
        cluster = self.cluster
        while not until.is_set():
            await asyncio.sleep(rng.uniform(0.05, 0.6))
            storage, server = rng.choice(sorted(cluster.storages)), rng.choice(sorted(cluster.servers))
            match rng.randrange(5):
                case 0:
                    await cluster.kill_storage(storage)
                    await asyncio.sleep(rng.uniform(0, 0.8))
                    await cluster.start_storage(storage)
                case 1:
                    await cluster.kill_server(server)
                    await asyncio.sleep(rng.uniform(0, 0.5))
                    await cluster.start_server(server)
                case 2:
                    await cluster.stop_server(server)
                    await cluster.start_server(server)
                case 3:
                    old, _ = await cluster.isolate_server(server)
                    await cluster.start_server(server)
                    await asyncio.sleep(rng.uniform(0.1, 1.0))
                    await old.abort()
                case 4:
                    address = cluster.servers[server][0].address
                    cluster.network.cut(address)
                    await asyncio.sleep(rng.uniform(0, 0.2))
                    cluster.network.heal(address)

    # ---- the promises ------------------------------------------------------------------------------------------------------------------------------

    def _check(self, log: dict[int, list[Transaction]]) -> None:
        for part in log.values():
            assert [transaction.transaction_id for transaction in part] == list(range(len(part)))
        events = [(partition, t.transaction_id, json.loads(t.data)) for partition, part in log.items() for t in part]
        place = {event["value"]: (partition, transaction_id) for partition, transaction_id, event in events}
        assert len(place) == len(events), "an intent is in the log twice"
        accepted = set().union(*(service.accepted for service in self.services))
        assert accepted <= set(place), f"accepted and lost: {sorted(accepted - set(place))[:5]}"
        assert accepted, "nothing was accepted: the run shows nothing"
        assert self.rival == {value for value in place if value.startswith("client-")}
        for service in self.services:
            for value, receipt in service.receipts.items():
                reported = receipt.known
                assert reported is None or (receipt.partition, reported.transaction_id) == place[value], f"told another place: {value}"
        counts: dict[int, int] = {}
        order: dict[str, int] = {}
        for _, _, event in events:
            if "count" in event:
                counts[event["counted"]] = counts.get(event["counted"], 0) + 1
                assert event["count"] == counts[event["counted"]], f"lost update: {event}"
            if "ordered" in event:
                assert event["number"] > order.get(event["ordered"], 0), f"out of order: {event}"
                order[event["ordered"]] = event["number"]


async def _read_all(client: WaltzClient, partition: int) -> list[Transaction]:
    mark = await client.high_water_mark(partition)
    found: list[Transaction] = []
    if mark >= 0:
        async for batch in client.feed_batches(partition):
            found += batch
            if found[-1].transaction_id >= mark:
                break
    return found
