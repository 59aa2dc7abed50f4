"""Topics that are constantly trimmed and compacted, in addition to the partitions of the other clients: their writers, the subscriber, the readers of
their views, and the evidence that is collected in the end (checkers in `kept_checkers`). The subscriber registers before anything is appended and
keeps everything that it reads. So there is a whole log to compare with after the cluster has trimmed most of it. The subscriber sometimes falls
behind, reports late or is silent. Nothing may be trimmed that it has not reported.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from random import Random
from typing import TYPE_CHECKING

from verification.simulation.clients import SETTINGS, Actor, ended_by_the_network
from verification.simulation.kept_evidence import KeptEvidence, ViewSeen
from verification.simulation.nodes import ClientProcess
from waltz_log.client import Lock, Receipt, WaltzClient
from waltz_log.client.feed.subscribers import Subscribers
from waltz_log.core.formats.envelope import pack_keyed
from waltz_log.core.formats.wal_records import WalRecord
from waltz_log.core.recovery import majority
from waltz_log.errors import CorruptData, OutOfRange, Unavailable, WaltzError
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.view_pages import decode_view_page

if TYPE_CHECKING:
    from verification.simulation.world import World

__all__ = ["KeptTopics"]

KEYS = 7
RESOLVE_S = 6.0

LOCKED = 0.3
"""The share of the appends under a lock that the other writers use, too."""


class KeptTopics:
    """`begin` when the cluster is ready, `finish` when it has healed, then `gather`."""

    def __init__(self, world: World, over: asyncio.Event) -> None:
        self._world = world
        self._over = over
        self._healed = asyncio.Event()
        self._rng = Random(f"kept clients {world.seed}")
        self.evidence = {partition: KeptEvidence(partition, topic) for partition, topic in world.mix.kept.items()}
        self.writers: list[Actor] = []
        self._known = dict.fromkeys(world.mix.kept, -1)
        """The newest transaction that a writer got a receipt for, by partition."""
        self._tasks: list[asyncio.Task[None]] = []

    async def begin(self) -> None:
        for partition, evidence in self.evidence.items():
            reader = self._actor(ClientProcess(self._world, f"subscriber-{partition}"), partition)
            await self._register(reader.process, partition)
            self._tasks.append(reader.process.process.spawn(self._subscribe(reader, evidence)))
            for number in range(1 + (partition + self._world.seed) % 2):
                writer = self._actor(self._world.client(f"writer-{partition}-{number}"), partition)
                self.writers.append(writer)
                self._tasks.append(writer.process.process.spawn(self._write(writer, evidence)))
            if evidence.topic.type == "compaction":
                viewer = self._actor(ClientProcess(self._world, f"viewer-{partition}"), partition)
                self._tasks.append(viewer.process.process.spawn(self._compare_views(viewer, evidence)))

    async def _register(self, process: ClientProcess, partition: int) -> None:
        while True:
            try:
                async with await self._subscribers(process, 3.0) as subscribers:
                    await subscribers.register(f"subscriber-{partition}", {partition: -1})
                return
            except Unavailable:
                await asyncio.sleep(0.05)

    async def _subscribers(self, process: ClientProcess, timeout_s: float) -> Subscribers:
        return await Subscribers.connect_over(process.seeds, process.host, SETTINGS, timeout_s, rng=Random(self._rng.random()))

    def _actor(self, process: ClientProcess, partition: int) -> Actor:
        actor = Actor(self._world, process, "kept", Random(self._rng.random()), self._over)
        actor.partition = partition
        return actor

    async def finish(self, bound_s: float) -> None:
        """Lets the subscriber read to the end; what it does not reach in time is missing in the evidence."""
        self._healed.set()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=bound_s)
        for task in self._tasks:
            task.cancel()
        for result in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(result, Exception):
                self._world.history.complaints.append(f"24: a client of a kept topic broke: {result!r}")

    # ---- writing -----------------------------------------------------------------------------------------------------------------------------------

    async def _write(self, actor: Actor, evidence: KeptEvidence) -> None:
        client = await actor.connect()
        left = actor.operations
        while left > 0 and not actor.over.is_set():
            burst = min(left, actor.rng.choice((1, 5, 20)))
            left -= burst
            await asyncio.gather(*(self._append(actor, client, evidence) for _ in range(burst)))
            await actor.pause(0.1)
        try:
            async with asyncio.timeout(RESOLVE_S):
                await actor.resolve_all(client)
        except TimeoutError:
            actor.announce("leaves unknown what is: the log may be trimmed where it would be")
        await client.close()

    async def _append(self, actor: Actor, client: WaltzClient, evidence: KeptEvidence) -> None:
        lock = (f"k{actor.rng.randrange(KEYS)}",) if actor.rng.random() < LOCKED else ()
        attempt = actor.begin(write=lock, mark=self._known[evidence.partition] if lock else None, timeout_s=actor.rng.choice((0.2, 8.0)))
        reported, key = b"#%d|" % attempt.number, b"k%d" % actor.rng.randrange(KEYS)
        value = reported + b"v" * actor.rng.choice((0, 10, 400, 900))
        kind = actor.rng.random()
        if lock and evidence.topic.type != "regular":
            data = pack_keyed(key, value)  # with its number in it, so that it is known whose lock it was
        elif evidence.topic.type == "regular" or kind < 0.1:
            data = value  # of no key
        else:
            data = pack_keyed(key, b"" if kind < 0.25 else value)
        evidence.appended[attempt.number] = data

        async def both() -> Receipt:
            locks = [Lock("l", name) for name in lock]
            appending = client.append_nowait(attempt.partition, data, write_locks=locks, high_water_mark=attempt.mark, timeout_s=attempt.timeout_s)
            return await (await appending)

        await actor.settle(attempt, both())
        if attempt.transaction_id is not None:
            self._known[evidence.partition] = max(self._known[evidence.partition], attempt.transaction_id)

    # ---- reading -----------------------------------------------------------------------------------------------------------------------------------

    async def _subscribe(self, actor: Actor, evidence: KeptEvidence) -> None:
        partition, name = evidence.partition, actor.name
        client = await actor.connect()
        position = reported = -1
        while True:
            mark = await self._mark(client, partition)
            if position < mark:
                try:
                    position = await self._read_some(actor, client, evidence, position, mark)
                except OutOfRange as error:
                    evidence.complaints.append(f"{name} was told at {self._world.now_s:.3f} that {error}, it had reported {reported}")
                    return
                except Unavailable:
                    continue
                except CorruptData as error:
                    if not ended_by_the_network(actor, error):
                        raise
            elif self._healed.is_set():
                break
            if actor.rng.random() < 0.5:
                reported = await self._report(actor, name, partition, max(reported, position - actor.rng.choice((0, 0, 3, 20))), reported)
            if not self._healed.is_set():
                await actor.pause(actor.rng.choice((0.05, 0.3, 1.0)))
        await client.close()

    async def _mark(self, client: WaltzClient, partition: int) -> int:
        while True:
            try:
                return await client.high_water_mark(partition)
            except Unavailable:
                await asyncio.sleep(0.05)

    async def _read_some(self, actor: Actor, client: WaltzClient, evidence: KeptEvidence, position: int, mark: int) -> int:
        try:
            async with asyncio.timeout(2.0), aclosing(client.feed_batches(evidence.partition, position)) as batches:
                async for batch in batches:
                    for each in batch:
                        if each.transaction_id != position + 1:
                            evidence.complaints.append(f"{actor.name} got {each.transaction_id} where {position + 1} was next")
                        evidence.log[each.transaction_id] = (each.timestamp_ms, each.data)
                        evidence.transactions[each.transaction_id] = each
                        position = each.transaction_id
                    if position >= mark:
                        break
        except TimeoutError:
            pass
        return position

    async def _report(self, actor: Actor, name: str, partition: int, mark: int, before: int) -> int:
        try:
            async with asyncio.timeout(1.0), await self._subscribers(actor.process, 1.0) as subscribers:
                await subscribers.report(name, {partition: mark})
            return mark
        except (TimeoutError, WaltzError):
            return before  # perhaps it was made, but without an answer: then more may go than it knows of, all of which it has read

    async def _compare_views(self, actor: Actor, evidence: KeptEvidence) -> None:
        while not self._healed.is_set():
            await actor.pause(0.4)
            seen = await self._view(evidence.partition, actor.rng)
            if seen is not None:
                evidence.views.append(seen)

    async def _view(self, partition: int, rng: Random, name: str | None = None) -> ViewSeen | None:
        world = self._world
        chosen = name or rng.choice(await world.assigned(partition))
        storage = world.storages.get(chosen)
        if storage is None or storage.listener is None:
            return None
        request = pb.ReadViewRequest(cluster_key=world.key.bytes, partition=partition, max_bytes=rng.choice((1, 300, 1 << 20)))
        channel = world.network.host(f"viewer-{partition}").connect(storage.listener.address)
        stream = channel.read(methods.READ_VIEW, request)
        found: list[WalRecord] = []
        try:
            async with asyncio.timeout(2.0):
                while (page := await stream.receive()) is not None:
                    found += decode_view_page(page)
                    if page.done:
                        return ViewSeen(world.now_s, chosen, page.bound, found, self._holders(partition, page.bound - 1))
        except (TimeoutError, WaltzError):
            return None
        finally:
            await stream.cancel()
            await channel.close()
        return None

    def _holders(self, partition: int, last: int) -> int:
        reported = self._world.history.acknowledgments
        return len({each.storage for each in reported if each.partition == partition and each.last >= last})

    # ---- the end -----------------------------------------------------------------------------------------------------------------------------------

    async def _read_on(self, client: WaltzClient, evidence: KeptEvidence, bound_s: float) -> None:
        """What came after the subscriber had left, which holds it."""
        reader = self._actor(ClientProcess(self._world, "checker"), evidence.partition)
        deadline = self._world.now_s + bound_s
        position = max(evidence.log, default=-1)
        while position < evidence.mark and self._world.now_s < deadline:
            try:
                position = await self._read_some(reader, client, evidence, position, evidence.mark)
            except WaltzError as error:
                evidence.complaints.append(f"the end of the log cannot be read: {error}")
                return

    async def gather(self, client: WaltzClient, bound_s: float) -> list[KeptEvidence]:
        world = self._world
        for partition, evidence in self.evidence.items():
            evidence.mark = await self._mark(client, partition)
            await self._read_on(client, evidence, bound_s)
            evidence.majority = majority(world.mix.replicas)
            deadline = world.now_s + bound_s
            while True:
                assigned = await world.assigned(partition)
                # In this order: what is retained rises before replicas are trimmed, also during this check.
                evidence.firsts = {name: await world.first_of(name, partition) for name in assigned}
                evidence.first = await world.retained(partition)
                evidence.stored = {name: await world.stored(name, partition, evidence.mark, evidence.first) for name in assigned}
                views = [await self._view(partition, self._rng, name) for name in assigned] if evidence.topic.type == "compaction" else []
                settled = len(set(evidence.stored.values())) == 1 and not any(isinstance(each, str) for each in evidence.stored.values())
                settled = settled and all(each is not None and each.bound == evidence.mark + 1 for each in views)
                if settled or world.now_s > deadline:
                    break
                await asyncio.sleep(0.1)
            if not settled:
                reported = {
                    name: (None if each is None else each.bound) for name, each in zip(assigned, views or [None] * len(assigned), strict=True)
                }
                evidence.complaints.append(
                    f"replicas do not come to hold the same: stored={_sizes(evidence.stored)} views={reported} mark={evidence.mark}"
                )
            evidence.views += [each for each in views if each is not None]
        return list(self.evidence.values())


def _sizes(stored: dict[str, bytes | str]) -> dict[str, int | str]:
    return {name: each if isinstance(each, str) else len(each) for name, each in stored.items()}
