"""Owners that were deposed and do not know it, at the moments when that could do harm."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

from waltz_log.testing.simulation.faults import claim, fault
from waltz_log.testing.simulation.probes import probe_stranded

if TYPE_CHECKING:
    from waltz_log.testing.simulation.world import World

__all__ = ["depose_server", "strand_server"]


@fault("stranded")
async def strand_server(world: World, rng: Random) -> None:
    """A server is left with one storage node and some clients; the coordinator and the other storage nodes do not hear of it. What it orders is
    written to one disk, while another owner gives the same ids to other transactions."""
    async with claim(world, sorted(world.servers)) as name:
        if name is None:
            return
        kept = rng.choice(world.storage_names)
        clients = [client for client in sorted(world.clients) if rng.random() < 0.5]
        world.trace.add(name, f"is stranded with {kept} {','.join(clients)}")
        far = [storage for storage in world.storage_names if storage != kept]
        ways = [way for other in far for way in ((name, other), (other, name))]
        ways += [way for other in sorted(world.servers) if other != name for way in ((other, kept), (kept, other))]
        for way in ways:
            world.links.shut(*way)
        sessions = [*world.servers[name].sessions]
        own = [session for client in clients for session in world.clients[client].sessions]
        seconds = rng.choice((1.2, 2.5))
        await asyncio.gather(world.silence(sessions, seconds), world.silence(own, seconds, expire=False), probe_stranded(world, name, kept, seconds))
        for way in ways:
            world.links.open(*way)
        world.trace.add(name, "is back")


@fault("deposed")
async def depose_server(world: World, rng: Random) -> None:
    """An owner loses the coordinator and goes on; when its successor has decided where the log ends, a storage node that took part dies and is back
    at once, and for a moment only the old owner reaches it. What it promised the new one must be on its disk."""
    async with claim(world, sorted(world.servers)) as name:
        others = [each for each in sorted(world.storages) if each not in world.busy]
        if name is None or len(others) < 2 or len(world.servers) < 2:
            return
        kept, dies = rng.sample(others, 2)
        world.busy.add(dies)
        world.trace.add(name, f"is deposed, with {kept} on its side; {dies} is to die")
        successors = [server for server in sorted(world.servers) if server != name]
        ways = [way for server in successors for way in ((server, kept), (kept, server))]
        for way in ways:
            world.links.shut(*way)
        clients = [session for client in sorted(world.clients) for session in world.clients[client].sessions if rng.random() < 0.7]
        silences = asyncio.gather(world.silence([*world.servers[name].sessions], 3.0), world.silence(clients, 3.0, expire=False))
        try:
            world.resolved.clear()
            async with asyncio.timeout(2.5):
                await world.resolved.wait()
            more = [way for server in successors for way in ((server, dies), (dies, server))]
            for way in more:
                world.links.shut(*way)
            world.trace.add(dies, "is killed")
            await world.kill_storage(dies, world.disks[dies].crash(keep=True))
            await world.start_storage(dies)
            await asyncio.sleep(0.3)
            for way in more:
                world.links.open(*way)
        except TimeoutError:
            world.trace.add(name, "was not succeeded")
        finally:
            await silences
            for way in ways:
                world.links.open(*way)
            world.busy.discard(dies)
