"""Faults of replicas and their data: corruption, lost disks, disks set back to an earlier state, and replicas that move. Only the run's fragile node
loses data."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

from verification.simulation.faults import claim, fault
from verification.simulation.mix import GROWTH
from waltz_log.cli.cluster.replicas import change_replicas
from waltz_log.coordination.placement import forget_storage
from waltz_log.core.metadata import PartitionMetadata, partition_path
from waltz_log.core.replica_change import ReplicaChange
from waltz_log.errors import ClusterUnavailable, Fenced, InvalidRequest, Unavailable
from waltz_log.testing.disk import SimulatedDisk

if TYPE_CHECKING:
    from verification.simulation.world import World

__all__ = [
    "add_storage",
    "change_replica",
    "flip_a_bit",
    "grow_and_shrink",
    "replace_by_empty",
    "replace_by_stale",
    "replace_while_another_is_behind",
]

STORAGES_MAX = 7
"""The maximum number of storage nodes in a run."""


def _closed_files(disk: SimulatedDisk) -> list[str]:
    """Data files of closed segments."""
    found: list[str] = []
    for directory in disk.list(""):
        if directory.isdigit():
            found += [f"{directory}/{name}" for name in sorted(each for each in disk.list(directory) if each.endswith(".seg"))[:-1]]
    return found


@fault("rot")
async def flip_a_bit(world: World, rng: Random) -> None:
    async with claim(world, world.fragile) as name:
        if name is None or not (files := _closed_files(world.disks[name])):
            return
        disk = world.disks[name]
        path = rng.choice(files)
        partition = int(path.partition("/")[0])
        before = await world.stored(name, partition, 1 << 40)
        if not disk.exists(path):  # trimmed, or the replica moved away, during the check
            return
        if not world.flip(name, path, rng.randrange(len(disk.content(path))), rng.randrange(8)):
            return
        after = await world.stored(name, partition, 1 << 40)
        if isinstance(before, bytes) and isinstance(after, bytes):
            both = min(len(before), len(after))
            if before[:both] != after[:both]:
                world.history.complaints.append(f"13: rotten bytes were served: {path} of {name} at {world.now_s:.3f}")


@fault("replace-empty")
async def replace_by_empty(world: World, rng: Random) -> None:
    """The disk is lost. A restart with an empty disk is refused until an operator confirms it."""
    async with claim(world, world.fragile) as name:
        if name is None:
            return
        world.loses_memory(name)
        await world.kill_storage(name, SimulatedDisk())
        await asyncio.sleep(rng.choice((0.0, 1.0)))
        world.trace.add(name, "comes back empty, as the operator says")
        await world.start_storage(name, replace=True)


@fault("replace-behind")
async def replace_while_another_is_behind(world: World, rng: Random) -> None:
    """One of the only two replicas that hold some transactions loses them, while the lagging third one returns and the owner changes. Those two must
    not decide the vote."""
    async with claim(world, world.fragile) as name:
        others = [other for other in sorted(world.storages) if other != name and other not in world.busy]
        if name is None or not others:
            return
        behind = rng.choice(others)
        world.trace.add("network", f"leaves {behind} behind")
        ways = [way for server in sorted(world.servers) for way in ((server, behind), (behind, server))]
        for way in ways:
            world.links.shut(*way)
        await asyncio.sleep(rng.uniform(0.2, 1.0))
        world.loses_memory(name)
        await world.kill_storage(name, SimulatedDisk())
        async with claim(world, sorted(world.servers)) as server:
            if server is not None:
                await world.kill_server(server)
            for way in ways:
                world.links.open(*way)
            world.trace.add(name, "comes back empty, as the operator says")
            await world.start_storage(name, replace=True)
            if server is not None:
                await world.start_server(server)


@fault("replace-stale")
async def replace_by_stale(world: World, rng: Random) -> None:
    """The directory is set back to an earlier state. That is refused, and then it is emptied and replaced."""
    async with claim(world, world.fragile) as name:
        if name is None:
            return
        snapshot = world.disks[name].fork()
        await asyncio.sleep(rng.uniform(0.1, 1.0))
        if name not in world.storages:
            return
        await world.kill_storage(name, world.disks[name].crash(keep=True))
        # A start in between, which the snapshot has not seen.
        await world.start_storage(name)
        world.loses_memory(name)
        await world.kill_storage(name, snapshot)
        world.trace.add(name, "its directory is set back")
        try:
            await world.start_storage(name)
        except Fenced:
            await world.replace_disk(name, SimulatedDisk())
            await world.start_storage(name, replace=True)
        else:
            world.history.complaints.append(f"15: a directory that was set back was taken: {name} at {world.now_s:.3f}")


@fault("replica-change")
async def change_replica(world: World, rng: Random) -> None:
    """An operator moves a replica under load to a node that holds nothing of the partition. If the operator gives up, the cluster completes the
    move."""
    partition = rng.randrange(world.mix.log_partitions)
    held = await world.assigned(partition)
    spare = [name for name in world.storage_names if name not in held and name in world.storages]
    if not spare or "replicas" in world.busy:
        return
    world.busy.add("replicas")
    try:
        await _change(world, ReplicaChange(partition=partition, add=rng.choice(spare), remove=rng.choice(held)))
    finally:
        world.busy.discard("replicas")


@fault("storage-added")
async def add_storage(world: World, rng: Random) -> None:
    """A storage node with an empty disk joins under load and gets an additional replica of the partition. Later one replica of the partition is
    removed, and the node leaves when it holds nothing."""
    if "replicas" in world.busy or len(world.storage_names) >= STORAGES_MAX:
        return
    world.busy.add("replicas")
    name = f"storage-{len(world.storage_names)}"
    partition = rng.randrange(world.mix.log_partitions)
    try:
        world.storage_names.append(name)
        world.disks[name] = SimulatedDisk()
        await world.start_storage(name)
        await _change(world, ReplicaChange(partition=partition, add=name, remove=None))
        await asyncio.sleep(rng.uniform(0, 1.0))
        held = await world.assigned(partition)
        if len(held) > world.mix.replicas:
            await _change(world, ReplicaChange(partition=partition, add=None, remove=rng.choice(held), force=True))
        await asyncio.sleep(rng.uniform(0, 0.5))
        # A change whose answer was lost may be made and not carried out: the owner's session decides, and it may hear of the change late.
        used = [each for each in range(world.log_partitions) if name in (*await world.assigned(each), *_members(world, each))]
        async with claim(world, [] if used else [name]) as leaves:
            if leaves is not None:
                world.trace.add(name, "leaves the cluster")
                await world.stop_storage(name)
                await _forget(world, name)
    finally:
        world.busy.discard("replicas")


async def _forget(world: World, name: str) -> None:
    """As an operator does for a node that will not come back: a node that starts waits for the answers of a majority of those that are known."""
    while True:
        try:
            await forget_storage(world.coordinator, name)
        except ClusterUnavailable:
            await asyncio.sleep(0.1)
        except InvalidRequest as refused:
            world.trace.add(name, f"is not forgotten: {refused}")
            return
        else:
            return


def _members(world: World, partition: int) -> list[str]:
    """The replicas that the partition's newest session is recorded with."""
    node = world.ensemble.get(partition_path(partition))
    return [] if node is None else list(PartitionMetadata.from_bytes(node.data).replicas)


@fault(GROWTH)
async def grow_and_shrink(world: World, rng: Random) -> None:
    """A partition gets a second and a third replica, or loses one, step by step, under load."""
    if "replicas" in world.busy:
        return
    world.busy.add("replicas")
    try:
        partition = rng.randrange(world.mix.log_partitions)
        held = await world.assigned(partition)
        spare = [name for name in world.storage_names if name not in held and name in world.storages]
        if len(held) < 3 and spare:
            await _change(world, ReplicaChange(partition=partition, add=rng.choice(spare)))
        elif len(held) > 1:
            await _change(world, ReplicaChange(partition=partition, remove=rng.choice(held), force=True))
    finally:
        world.busy.discard("replicas")


async def _change(world: World, change: ReplicaChange) -> None:
    """As `waltz cluster replica` does it. If the caller gives up, the cluster completes the change."""
    world.trace.add("operator", f"changes the replicas of {change.partition}: adds {change.add}, removes {change.remove}")
    network = world.network.host("operator")
    try:
        await change_replicas(world.coordinator, network, "memory/test", change, wait_s=3.0, report=lambda line: world.trace.add("operator", line))
    except (Unavailable, InvalidRequest) as error:
        world.trace.add("operator", f"gives up: {error}")
