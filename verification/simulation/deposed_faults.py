"""Owners that were deposed and do not know it, in the situations in which that could do harm."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from verification.simulation.clients import Actor
from verification.simulation.faults import claim, fault
from verification.simulation.probes import confirm_ownership, probe_fork, probe_stranded
from waltz_log.client import WaltzClient
from waltz_log.core.metadata import ASSIGNMENT, Assignment, Ownership
from waltz_log.errors import ClusterUnavailable

if TYPE_CHECKING:
    from verification.simulation.nodes import ClientProcess
    from verification.simulation.world import World

__all__ = ["depose_server", "strand_server"]


@fault("stranded")
async def strand_server(world: World, rng: Random) -> None:
    """A server can reach only one storage node and some clients. The coordinator and the other storage nodes do not receive its messages. Its
    transactions are written to one disk, while another owner gives the same ids to other transactions."""
    async with claim(world, sorted(world.servers)) as name:
        if name is None:
            return
        kept = rng.choice(world.storage_names)
        clients = [client for client in sorted(world.clients) if rng.random() < 0.5]
        await confirm_ownership(world, name)
        if name not in world.servers:
            return
        world.trace.add(name, f"is stranded with {kept} {','.join(clients)}")
        far = [storage for storage in world.storage_names if storage != kept]
        ways = [way for other in far for way in ((name, other), (other, name))]
        ways += [way for other in sorted(world.servers) if other != name for way in ((other, kept), (kept, other))]
        for way in ways:
            world.links.shut(*way)
        sessions = [*world.servers[name].sessions]
        own = [session for client in clients if client in world.clients for session in world.clients[client].sessions]  # probes end
        seconds = rng.choice((1.2, 2.5))
        await asyncio.gather(world.silence(sessions, seconds), world.silence(own, seconds, expire=False), probe_stranded(world, name, kept, seconds))
        for way in ways:
            world.links.open(*way)
        world.trace.add(name, "is back")


@fault("deposed")
async def depose_server(world: World, rng: Random) -> None:
    """A partition gets another owner, and for a while the old one hears nothing of it: its coordinator session lives and lags. It reaches a minority
    of the replicas, the new one all others. Then one of two things: a replica that took part in the new owner's recovery dies, is back at once, and
    for a moment only the old owner reaches it (what it promised the new one must be on its disk); or the new owner commits, and who reads by its
    bounds asks the replicas that it has not reached."""
    fork = await _fork(world, rng)
    if fork is None:
        return
    names = [fork.old, *fork.kept, fork.dies, *fork.rest]
    world.busy.update(names)
    canary = await _Canary.mounted(world, fork.partition)
    try:
        if canary is not None:
            await (_lose_the_fence if rng.random() < 0.6 else _read_the_fork)(world, rng, fork, canary)
    finally:
        world.busy.difference_update(names)
        if canary is not None:
            await canary.close()


@dataclass(frozen=True, slots=True)
class _Fork:
    """`kept` stay with the old owner, one too few to commit; `dies` and `rest` are a majority."""

    partition: int
    old: str
    new: str
    kept: list[str]
    dies: str
    rest: list[str]


async def _fork(world: World, rng: Random) -> _Fork | None:
    """A partition of three or five replicas, all of them up, with its owner and another server; None if there is none that no other fault has."""
    partition = rng.randrange(world.mix.log_partitions)
    held = [*await world.assigned(partition)]
    addresses = {server.server.address: name for name, server in sorted(world.servers.items()) if server.server is not None}
    node = await world.coordinator.get(ASSIGNMENT)
    assignment = Assignment() if node is None else Assignment.from_bytes(node.data)
    old = addresses.get(assignment.address_of(partition) or "")
    others = [name for name in sorted(world.servers) if name != old and name not in world.busy]
    free = all(name in world.storages and name not in world.busy for name in held)
    if old is None or old in world.busy or not others or len(held) < 3 or len(held) % 2 == 0 or not free:
        return None
    chosen, few = rng.sample(held, len(held)), len(held) // 2
    return _Fork(partition, old, rng.choice(others), chosen[:few], chosen[few], chosen[few + 1 :])


class _Canary:
    """A client that stays with the old owner, because it does not see the change either."""

    def __init__(self, world: World, partition: int, process: ClientProcess, client: WaltzClient) -> None:
        self.sessions = process.sessions
        self._world = world
        self._process = process
        self._client = client
        self._actor = Actor(world, process, "canary", Random(world.probes), asyncio.Event())
        self._actor.partition = partition
        self._appending: list[asyncio.Task[None]] = []

    @classmethod
    async def mounted(cls, world: World, partition: int) -> _Canary | None:
        """None where nothing is committed now."""
        world.probes += 1
        process = world.client(f"canary-{world.probes}")
        world.busy.add(process.name)
        # With long timeouts: the coordinator's answers get lost for a canary as for every client.
        client = await Actor(world, process, "canary", Random(world.probes), asyncio.Event()).connect()
        canary = cls(world, partition, process, client)
        attempt = canary._actor.begin(timeout_s=0.5)
        await canary._actor.append(canary._client, attempt)
        if attempt.outcome == "committed":
            return canary
        await canary.close()
        return None

    def append(self) -> None:
        """Does not wait for an outcome."""
        attempt = self._actor.begin(timeout_s=5.0)
        self._appending.append(asyncio.ensure_future(self._actor.append(self._client, attempt)))

    async def close(self) -> None:
        await asyncio.gather(*self._appending)
        await self._process.close()
        self._world.busy.discard(self._process.name)
        del self._world.clients[self._process.name]


def _between(some: Iterable[str], others: Iterable[str]) -> list[tuple[str, str]]:
    pairs = [(one, other) for one in some for other in others]
    return [*pairs, *((other, one) for one, other in pairs)]


@asynccontextmanager
async def _two_owners(world: World, rng: Random, fork: _Fork, canary: _Canary) -> AsyncIterator[None]:
    """The old one has a block that cannot be committed, the new one begins."""
    world.trace.add(fork.old, f"is deposed of {fork.partition} by {fork.new} and does not know, with {','.join(fork.kept)} on its side")
    newer = [name for name in sorted(world.servers) if name != fork.old]
    ways = [*_between([fork.old], [fork.dies, *fork.rest]), *_between(newer, fork.kept)]
    clients = [session for name in sorted(world.clients) for session in world.clients[name].sessions if rng.random() < 0.7]
    lagging = [*world.servers[fork.old].sessions, *canary.sessions, *clients]
    for way in ways:
        world.links.shut(*way)
    for session in lagging:
        world.ensemble.lag(session)
    try:
        canary.append()
        await asyncio.sleep(rng.uniform(0.02, 0.1))
        world.resolved[fork.partition] = asyncio.Event()
        if {fork.old, fork.new} <= world.servers.keys():  # one may have left while the canary was on its way
            await _assign(world, fork)
        yield
    finally:
        world.resolved.pop(fork.partition, None)
        for session in lagging:
            world.ensemble.catch_up(session)
        for way in ways:
            world.links.open(*way)
        world.trace.add(fork.old, "hears of changes again")


async def _assign(world: World, fork: _Fork) -> None:
    """As the cluster manager does it for a server that is preferred. The two change places, so that it lets them be."""
    node = await world.coordinator.get(ASSIGNMENT)
    assert node is not None
    assignment = Assignment.from_bytes(node.data)
    owned = assignment.partitions[fork.partition]
    server = world.servers[fork.new].server
    assert server is not None
    new_id = next((number for number, address in assignment.addresses.items() if address == server.address), None)
    if new_id is None:
        return
    after = dict(assignment.partitions)
    theirs = [partition for partition, each in after.items() if each.server_id == new_id]
    after[fork.partition] = Ownership(new_id, owned.generation + 1)
    if theirs:
        after[theirs[0]] = Ownership(owned.server_id, after[theirs[0]].generation + 1)
    with suppress(ClusterUnavailable):  # made, and the answer lost
        await world.coordinator.set(ASSIGNMENT, Assignment(after, assignment.addresses, assignment.workers).to_bytes(), node.version)


async def _lose_the_fence(world: World, rng: Random, fork: _Fork, canary: _Canary) -> None:
    async with _two_owners(world, rng, fork, canary):
        try:
            async with asyncio.timeout(2.5):
                await world.resolved[fork.partition].wait()
        except TimeoutError:
            world.trace.add(fork.old, "was not succeeded")
            return
        newer = [name for name in sorted(world.servers) if name != fork.old]
        shut, opened = _between(newer, [fork.dies]), _between([fork.old], [fork.dies])
        for way in shut:
            world.links.shut(*way)
        world.trace.add(fork.dies, "is killed")
        await world.kill_storage(fork.dies, world.disks[fork.dies].crash(keep=True))
        await world.start_storage(fork.dies)
        for way in opened:
            world.links.open(*way)
        await asyncio.sleep(rng.choice((0.5, 1.5, 2.5)))
        for way in opened:
            world.links.shut(*way)  # it is open again when the two owners are over
        for way in shut:
            world.links.open(*way)


async def _read_the_fork(world: World, rng: Random, fork: _Fork, canary: _Canary) -> None:
    async with _two_owners(world, rng, fork, canary):
        await probe_fork(world, fork.old, rng.choice(fork.kept), fork.partition, rng.choice((1.2, 2.5)))
