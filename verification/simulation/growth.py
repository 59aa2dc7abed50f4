"""Partitions that are added to the log under load (`waltz cluster grow`), and clients that use them as soon as they exist. Sometimes the manager's
server is killed right after. Its successor may learn late of the growth and early of the assignment of its predecessor.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

from verification.simulation.clients import Actor, run_client
from verification.simulation.faults import claim, fault
from waltz_log.coordination.cluster import grow_cluster
from waltz_log.core.metadata import MANAGER
from waltz_log.errors import ClusterUnavailable, InvalidRequest

if TYPE_CHECKING:
    from verification.simulation.world import World

__all__ = ["Growth", "grow"]

ADDED_MAX = 3

SOMETIMES = 1 / 4
"""The share of the seeds."""

KINDS = ("counter", "locker", "producer", "sole")


class Growth:
    """The partitions that were added in a run and their clients. `over`: when the load ends."""

    def __init__(self, world: World, over: asyncio.Event) -> None:
        self._world = world
        self._over = over
        self.actors: list[Actor] = []
        self.work: list[asyncio.Task[None]] = []

    async def watch(self) -> None:
        """In addition to the faults of the run, which seldom affect it."""
        rng = Random(f"growth {self._world.seed}")
        if rng.random() < SOMETIMES:
            await asyncio.sleep(rng.uniform(0.1, 0.8 * self._world.mix.load_s))
            await self.grow(rng)

    async def grow(self, rng: Random) -> None:
        world = self._world
        number = world.mix.log_partitions + len(world.grown)
        if len(world.grown) >= ADDED_MAX or self._over.is_set():
            return
        session = world.ensemble.session()
        try:
            await grow_cluster(session, number + 1)
        except (ClusterUnavailable, InvalidRequest) as error:
            # Another caller changed replicas at the same time, or the answer was lost: it may have been done.
            world.trace.add("operator", f"grows again later: {error}")
        finally:
            await session.close()
        await world.note_growth()
        if number not in world.grown:
            return
        world.trace.add("operator", f"added partition {number}")
        for place in range(rng.choice((1, 2))):
            process = world.client(f"grown-{number}-{place}")
            actor = Actor(world, process, rng.choice(KINDS), Random(rng.random()), self._over)
            actor.partition = number
            self.actors.append(actor)
            self.work.append(process.process.spawn(run_client(actor)))
        if rng.random() < 0.5:
            await asyncio.sleep(rng.choice((0.0, 0.05)))
            await self._kill_the_manager()

    async def _kill_the_manager(self) -> None:
        world = self._world
        node = world.ensemble.get(MANAGER)
        office = None if node is None else int(node.data)
        names = [name for name, each in sorted(world.servers.items()) if each.server is not None and each.server.server_id == office]
        async with claim(world, names) as name:
            if name is not None:
                await world.kill_server(name)
                await asyncio.sleep(world.mix.session_timeout_s)
                await world.start_server(name)


@fault("partitions-added")
async def grow(world: World, rng: Random) -> None:
    if world.grow is not None:
        await world.grow(rng)
