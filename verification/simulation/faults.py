"""What goes wrong in a run: each fault is a coroutine that causes a failure in a world, waits, and undoes it.

To add one: write `async def fault(world: World, rng: Random) -> None` and decorate it with `@fault("name", chance=0.3)`. It claims the nodes that
it stops (`claim`), so that no two faults start and stop the same one; links are counted, so that cuts overlap. When it returns, the node is up again.

A fault must not remove the data of more than a minority of the replicas, because no log could survive that. One node of a run, drawn at the
beginning, may be emptied, set back or corrupted (`world.fragile`). All nodes may crash at once, any number of times.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, TypeAlias

from verification.simulation.history import SyncFailed
from waltz_log.testing.disk import Operation, SimulatedDisk

if TYPE_CHECKING:
    from verification.simulation.world import World

__all__ = ["CHANCES", "FAULTS", "Fault", "claim", "crashed", "fault"]

Fault: TypeAlias = "Callable[[World, Random], Awaitable[None]]"

FAULTS: dict[str, Fault] = {}

CHANCES: dict[str, float] = {}
"""The share of the seeds that have a fault, for each fault that is drawn separately. The others are drawn together, so adding one of them changes
every seed."""


def fault(name: str, *, chance: float | None = None) -> Callable[[Fault], Fault]:
    """`chance`: the share of the seeds that have the fault, beside those that have none at all. Without it the fault is one of the first ones."""

    def register(run: Fault) -> Fault:
        FAULTS[name] = run
        if chance is not None:
            CHANCES[name] = chance
        return run

    return register


@asynccontextmanager
async def claim(world: World, names: Iterable[str]) -> AsyncIterator[str | None]:
    """One of the names that is up and not claimed by another fault, or None."""
    free = [name for name in names if name not in world.busy and (name in world.storages or name in world.servers)]
    chosen = world.chance.choice(free) if free else None
    if chosen is not None:
        world.busy.add(chosen)
    try:
        yield chosen
    finally:
        if chosen is not None:
            world.busy.discard(chosen)


def crashed(world: World, name: str, disk: SimulatedDisk, rng: Random) -> SimulatedDisk:
    """The machine died: what was not synced is lost, there or torn."""
    world.loses_memory(name)
    return disk.crash(rng if rng.random() < 0.8 else None)


# ---- storage nodes ---------------------------------------------------------------------------------------------------------------------------------


@fault("storage-crash")
async def crash_storage(world: World, rng: Random) -> None:
    async with claim(world, sorted(world.storages)) as name:
        if name is not None:
            world.trace.add(name, "its machine crashes")
            await world.kill_storage(name, crashed(world, name, world.disks[name], rng))
            await asyncio.sleep(rng.choice((0.0, 0.2, 1.5)))
            await world.start_storage(name)


@fault("storage-kill")
async def kill_storage(world: World, rng: Random) -> None:
    async with claim(world, sorted(world.storages)) as name:
        if name is not None:
            world.trace.add(name, "is killed")
            await world.kill_storage(name, world.disks[name].crash(keep=True))
            await asyncio.sleep(rng.choice((0.0, 0.2, 1.5)))
            await world.start_storage(name)


@fault("storage-restart")
async def restart_storage(world: World, rng: Random) -> None:
    async with claim(world, sorted(world.storages)) as name:
        if name is not None:
            await world.stop_storage(name)
            await world.start_storage(name)


@fault("power")
async def cut_power(world: World, rng: Random) -> None:
    """Every storage node crashes at the same moment."""
    names = [name for name in sorted(world.storages) if name not in world.busy]
    world.busy.update(names)
    try:
        world.trace.add("power", f"fails for {','.join(names)}")
        for name in names:
            await world.kill_storage(name, crashed(world, name, world.disks[name], rng))
        for name in rng.sample(names, len(names)):
            await asyncio.sleep(rng.uniform(0, 0.4))
            await world.start_storage(name)
    finally:
        world.busy.difference_update(names)


@fault("storage-pause")
async def pause_storage(world: World, rng: Random) -> None:
    async with claim(world, sorted(world.storages)) as name:
        if name is not None:
            process = world.storages[name].process
            world.trace.add(name, "is stopped")
            process.pause()
            await asyncio.sleep(rng.choice((0.1, 0.7, 2.5)))
            world.trace.add(name, "goes on")
            process.resume()


@fault("sync-error")
async def fail_sync(world: World, rng: Random) -> None:
    """A sync fails, once; the node is started again a while later, by an operator."""
    async with claim(world, sorted(world.storages)) as name:
        if name is None:
            return
        disk, life = world.disks[name], world.storages[name].life
        failed = asyncio.Event()

        def fail(operation: Operation) -> None:
            if operation.kind == "sync" and not failed.is_set():
                failed.set()
                world.trace.add(name, f"sync of {operation.path} fails")
                world.loses_memory(name)
                partition = operation.path.partition("/")[0]
                if partition.isdigit():
                    world.history.syncs_failed.append(SyncFailed(world.now_s, name, life, int(partition)))
                raise OSError(errno.EIO, "input/output error", operation.path)

        disk.before = fail
        await asyncio.sleep(rng.choice((0.2, 1.0)))
        disk.before = lambda operation: None
        if failed.is_set():
            machine_dies = rng.random() < 0.5
            await world.kill_storage(name, crashed(world, name, disk, rng) if machine_dies else disk.crash(keep=True))
            await world.start_storage(name)


@fault("disk-full")
async def fill_disk(world: World, rng: Random) -> None:
    """The last write is short."""
    async with claim(world, sorted(world.storages)) as name:
        if name is not None:
            disk = world.disks[name]
            before = disk.total
            disk.total = before - disk.free_bytes() + rng.randrange(3000)
            world.trace.add(name, "its disk is nearly full")
            await asyncio.sleep(rng.choice((0.2, 1.0)))
            disk.total = before
            world.trace.add(name, "its disk has room again")


# ---- log servers --------------------------------------------------------------------------------------------------------------------------------


@fault("server-kill")
async def kill_server(world: World, rng: Random) -> None:
    async with claim(world, sorted(world.servers)) as name:
        if name is not None:
            await world.kill_server(name)
            await asyncio.sleep(rng.choice((0.0, 0.5, 1.5)))
            await world.start_server(name)


@fault("server-stop")
async def stop_server(world: World, rng: Random) -> None:
    async with claim(world, sorted(world.servers)) as name:
        if name is not None:
            await world.stop_server(name)
            await asyncio.sleep(rng.choice((0.0, 0.5)))
            await world.start_server(name)


@fault("server-pause")
async def pause_server(world: World, rng: Random) -> None:
    """Sometimes longer than its coordinator session lasts, so that it continues as a deposed owner."""
    async with claim(world, sorted(world.servers)) as name:
        if name is not None:
            server = world.servers[name]
            world.trace.add(name, "is stopped")
            server.process.pause()
            await world.silence(server.sessions, rng.choice((0.1, 0.7, 2.5)))
            world.trace.add(name, "goes on")
            server.process.resume()


@fault("server-cut-off")
async def cut_server_off(world: World, rng: Random) -> None:
    """The coordinator no longer receives its messages; the others do."""
    async with claim(world, sorted(world.servers)) as name:
        if name is not None:
            world.trace.add(name, "loses the coordinator")
            await world.silence(world.servers[name].sessions, rng.choice((0.1, 0.7, 2.5)))
            world.trace.add(name, "reaches the coordinator")


@fault("servers-cut-off", chance=0.0)
async def cut_servers_off(world: World, rng: Random) -> None:
    """The coordinator receives the messages of one server alone, so that clients and the cluster's manager depend on what this one knows. Seeds of
    `mix.CUT_OFF_IN` alone have it."""
    async with claim(world, sorted(world.servers)) as kept:
        if kept is None:
            return
        cut = [name for name in sorted(world.servers) if name not in world.busy]
        world.busy.update(cut)
        try:
            world.trace.add("coordinator", f"is reached by {kept} alone, not by {','.join(cut)}")
            await world.silence([each for name in cut for each in world.servers[name].sessions], rng.choice((0.1, 0.7, 2.5)))
            world.trace.add("coordinator", "is reached by all servers")
        finally:
            world.busy.difference_update(cut)


@fault("server-added")
async def add_server(world: World, rng: Random) -> None:
    """Adds a server for a while."""
    name = f"server-{len(world.clocks)}-more"
    await world.start_server(name)
    await asyncio.sleep(rng.uniform(0.2, 1.5))
    async with claim(world, [name]) as claimed:
        if claimed is not None:
            await (world.stop_server(name) if rng.random() < 0.7 else world.kill_server(name))


@fault("coordinator-down")
async def lose_coordinator(world: World, rng: Random) -> None:
    """The coordinator is down for all clients, shorter or longer than sessions last."""
    world.trace.add("coordinator", "is away")
    sessions = [session for process in (*world.servers.values(), *world.clients.values()) for session in process.sessions]
    await world.silence(sessions, rng.choice((0.1, 0.5, 1.5)), expire=rng.random() < 0.3)
    world.trace.add("coordinator", "is back")


# ---- network and clocks ----------------------------------------------------------------------------------------------------------------------------


def _hosts(world: World) -> list[str]:
    return sorted({*world.storages, *world.servers, *world.clients})


async def _shut(world: World, links: list[tuple[str, str]], seconds: float) -> None:
    for source, target in links:
        world.links.shut(source, target)
    await asyncio.sleep(seconds)
    for source, target in links:
        world.links.open(source, target)


@fault("partition")
async def split(world: World, rng: Random) -> None:
    """Splits the hosts into two groups that do not reach each other."""
    hosts = _hosts(world)
    here = set(rng.sample(hosts, rng.randint(1, len(hosts) - 1)))
    world.trace.add("network", f"splits off {','.join(sorted(here))}")
    links = [(one, other) for one in hosts for other in hosts if (one in here) != (other in here)]
    await _shut(world, links, rng.choice((0.1, 1.0, 2.5)))
    world.trace.add("network", "is whole again")


@fault("half-partition")
async def split_pairs(world: World, rng: Random) -> None:
    """Some pairs do not reach each other, while others reach both."""
    hosts = _hosts(world)
    pairs = [(one, other) for place, one in enumerate(hosts) for other in hosts[place + 1 :]]
    chosen = rng.sample(pairs, rng.randint(1, max(1, len(pairs) // 2)))
    world.trace.add("network", "parts " + " ".join(f"{one}-{other}" for one, other in chosen))
    await _shut(world, [link for one, other in chosen for link in ((one, other), (other, one))], rng.choice((0.1, 1.0, 2.5)))
    world.trace.add("network", "joins them again")


@fault("one-way")
async def shut_one_way(world: World, rng: Random) -> None:
    """Messages from one host, or messages to it, do not arrive; the other direction works."""
    hosts = _hosts(world)
    host = rng.choice(hosts)
    others = rng.sample([other for other in hosts if other != host], rng.randint(1, len(hosts) - 1))
    outwards = rng.random() < 0.5
    world.trace.add("network", f"shuts the way {'from' if outwards else 'to'} {host}: {','.join(others)}")
    await _shut(world, [(host, other) if outwards else (other, host) for other in others], rng.choice((0.1, 1.0, 2.5)))
    world.trace.add("network", f"opens the way {'from' if outwards else 'to'} {host}")


@fault("reset")
async def break_connections(world: World, rng: Random) -> None:
    """Connections break. One end notices long before the other, and messages in transit still arrive meanwhile."""
    share = rng.choice((0.2, 0.5, 1.0))
    broken = [connection for connection in list(world.network.connections.values()) if rng.random() < share]
    world.trace.add("network", f"breaks {len(broken)} connections")
    late = world.links.weather.patience_s
    for connection in broken:
        caller_s, callee_s = rng.uniform(0, 0.01), rng.uniform(0, late if rng.random() < 0.5 else 0.01)
        if rng.random() < 0.3:
            caller_s, callee_s = callee_s, caller_s
        world.network.reset(connection, caller_s, callee_s)


@fault("slow")
async def slow_host(world: World, rng: Random) -> None:
    host = rng.choice(_hosts(world))
    world.links.slow[host] = rng.choice((0.05, 0.5))
    world.trace.add("network", f"is slow around {host}")
    await asyncio.sleep(rng.uniform(0.2, 1.5))
    world.links.slow.pop(host, None)


@fault("clock")
async def step_clock(world: World, rng: Random) -> None:
    """A node's date jumps and stays there."""
    name = rng.choice(sorted(world.clocks))
    world.clocks[name].off_ms += rng.choice((-3_600_000, -500, 500, 86_400_000))
    world.trace.add(name, f"its clock is off by {world.clocks[name].off_ms} ms")


# ---- clients ---------------------------------------------------------------------------------------------------------------------------------------


@fault("client-pause")
async def pause_client(world: World, rng: Random) -> None:
    names = [name for name in sorted(world.clients) if name not in world.busy]
    if not names:
        return
    name = rng.choice(names)
    world.busy.add(name)
    process = world.clients[name].process
    world.trace.add(name, "is stopped")
    process.pause()
    await asyncio.sleep(rng.choice((0.1, 1.0, 2.0)))
    world.trace.add(name, "goes on")
    process.resume()
    world.busy.discard(name)


@fault("client-kill")
async def kill_client(world: World, rng: Random) -> None:
    """At most one in a run, so that work continues."""
    names = [name for name in sorted(world.clients) if name not in world.busy]
    if names and not any(client.died for client in world.clients.values()):
        await world.kill_client(rng.choice(names))
