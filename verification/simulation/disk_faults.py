"""Faults of a node's disk: operations that fail with an input/output error, and a disk that hangs.

An operation that fails once may work the next time, and one that fails may have done its work, or a part of it: a node must not rely on either. An
operator who has seen the error replaces what is broken and starts the node again.
"""

from __future__ import annotations

import asyncio
import errno
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Final

from verification.simulation.clients import Actor
from verification.simulation.faults import claim, crashed, fault
from verification.simulation.history import OperationFailed
from waltz_log.core.recovery import majority
from waltz_log.errors import StorageFailed
from waltz_log.testing.disk import Operation, SimulatedDisk, TornWrite

if TYPE_CHECKING:
    from verification.simulation.world import World

__all__ = ["HANG_S_MAX", "DiskErrors", "fail_operations", "hang_disk"]

HANG_S_MAX: Final = 12.0
"""The time within which the other replicas of a partition must continue without the one whose disk hangs: a recovery, the client's pauses and an
append."""

OPERATIONS: Final = (
    "write",
    "write",
    "read",
    "read",
    "rename",
    "rename",
    "rename",
    "sync_directory",
    "sync_directory",
    "create",
    "truncate",
    "remove",
)
"""What fails. Syncs have a fault of their own (`sync-error`)."""


class DiskErrors:
    """Makes operations of one kind fail on the disk of a node: one of them, or all until `lift`."""

    def __init__(self, world: World, name: str, life: int, rng: Random) -> None:
        self.kind = rng.choice(OPERATIONS)
        self.failed = 0
        self.met = asyncio.Event()
        self._world = world
        self._name = name
        self._life = life
        self._rng = rng
        self._spared = rng.choice((0, 0, 1, 3, 10) if self.kind in ("write", "read") else (0, 0, 1))
        self._once = rng.random() < 0.5

    def plant(self, disk: SimulatedDisk) -> None:
        if self.kind == "read":
            disk.before_read = lambda path: self._meet(disk, Operation("read", path))
        else:
            disk.before = lambda operation: self._meet(disk, operation)

    @staticmethod
    def lift(disk: SimulatedDisk) -> None:
        disk.before, disk.before_read = lambda operation: None, None

    def _meet(self, disk: SimulatedDisk, operation: Operation) -> None:
        if operation.kind != self.kind or (self.failed and self._once):
            return
        if self._spared:
            self._spared -= 1
            return
        world = self._world
        self.failed += 1
        self.met.set()
        if self.failed == 1:
            world.trace.add(self._name, f"{operation.kind} of {operation.path} fails" + ("" if self._once else ", and all that follow"))
        if self._name not in world.corrupted and is_of_the_log(operation):
            partition = int(operation.path.partition("/")[0])
            world.history.operations_failed.append(OperationFailed(world.now_s, self._name, self._life, partition, operation.kind))
        if operation.kind == "write":
            raise TornWrite(operation.path, self._rng.choice((0.0, 0.5, 1.0)))
        raise OSError(errno.EIO, f"input/output error on {operation.kind}", operation.path)


def is_of_the_log(operation: Operation) -> bool:
    """Whether the operation changes the log of a partition, so that its failure is final. The index of a closed segment can be made again at any
    time, and until it is in place that changes nothing."""
    return operation.kind != "read" and operation.path.partition("/")[0].isdigit()


@fault("disk-error", chance=0.3)
async def fail_operations(world: World, rng: Random) -> None:
    """Operations of one kind fail, while the node runs or while it starts. Later the disk works again and the node is started again."""
    async with claim(world, sorted(world.storages)) as name:
        if name is None:
            return
        errors = DiskErrors(world, name, world.storages[name].life, rng)
        if rng.random() < 0.2:
            disk = world.disks[name].crash(keep=True)
            errors.plant(disk)
            await world.kill_storage(name, disk)
            try:
                await world.start_storage(name)
            except StorageFailed:
                await world.start_storage(name)  # the rest of the disk works
        else:
            errors.plant(world.disks[name])
        with suppress(TimeoutError):
            async with asyncio.timeout(2.0):
                await errors.met.wait()
        await asyncio.sleep(rng.choice((0.1, 0.5, 1.0)))
        disk = world.disks[name]
        DiskErrors.lift(disk)
        if errors.failed:
            world.trace.add(name, f"{errors.failed} operations failed; its disk works again")
            machine_dies = rng.random() < 0.5
            await world.kill_storage(name, crashed(world, name, disk, rng) if machine_dies else disk.crash(keep=True))
            await world.start_storage(name)


@fault("disk-hang", chance=0.3)
async def hang_disk(world: World, rng: Random) -> None:
    """The disk of a node hangs: the node answers, but nothing that needs the disk completes. If nothing else goes wrong meanwhile, partitions with a
    majority on other nodes must accept appends, because none of them waits for this node."""
    async with claim(world, sorted(world.storages)) as name:
        if name is None:
            return
        storage = world.storages[name]
        storage.offload.hang()
        world.trace.add(name, "its disk hangs")
        try:
            await asyncio.sleep(rng.choice((0.1, 0.5, 1.5)))
            if world.mix.nemeses == 1 and rng.random() < 0.5:
                async with claim(world, sorted(world.servers)) as server:
                    if server is not None and rng.random() < 0.5:
                        await world.kill_server(server)
                        await world.start_server(server)
                await _expect_appends(world, name, rng)
        finally:
            world.trace.add(name, "its disk goes on")
            storage.offload.resume()


async def _expect_appends(world: World, hanging: str, rng: Random) -> None:
    unfit = {lost.storage for lost in world.history.memory_lost} | world.corrupted
    partitions = [each for each in range(world.mix.partitions) if _has_majority_without(await world.assigned(each), hanging, unfit)]
    if not partitions:
        return
    partition = rng.choice(partitions)
    name = f"prober-{world.now_s:.3f}"
    actor = Actor(world, world.client(name), "prober", Random(rng.random()), asyncio.Event())
    actor.partition = partition
    try:
        async with asyncio.timeout(HANG_S_MAX):
            await actor.process.process.spawn(_append(actor))
    except TimeoutError:
        where = f"partition={partition} hanging={hanging} at={world.now_s:.3f}"
        world.history.complaints.append(f"29: no append within {HANG_S_MAX:g} s while a disk hangs: {where}")


def _has_majority_without(assigned: tuple[str, ...], hanging: str, unfit: set[str]) -> bool:
    """`unfit`: nodes that lost what they held, which may need the one that hangs to decide a mark until they are filled again, and nodes with a
    corrupt file, which may not serve."""
    return hanging in assigned and len(set(assigned) - {hanging} - unfit) >= majority(len(assigned))


async def _append(actor: Actor) -> None:
    """Until one is committed."""
    client = await actor.connect()
    committed = False
    while not committed:
        attempt = actor.begin(timeout_s=2.0)
        await actor.append(client, attempt)
        committed = attempt.outcome == "committed"
    await actor.resolve_all(client)
    await client.close()
