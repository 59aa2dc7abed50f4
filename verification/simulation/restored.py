"""A coordinator that is restored from a backup, after the faults and while clients work: owners must notice, or find that nothing is lost, and the
operator's procedure must bring everything back (docs/guides/operations.md, A restored coordinator).

The backup is made some time during the faults. Between the restore and the procedure the servers run for a while. A partition that opened with the
older metadata would truncate acknowledged transactions. Runs have no trimmed topics, because the backup is older than their trims, and no services
with outboxes, which refuse to continue because the backup does not know their last start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING

from verification.simulation.history import MetadataWrite
from verification.simulation.intruder_client import servers_of
from waltz_log.coordination.cluster import adopt_cluster
from waltz_log.core.adoption import adopt
from waltz_log.core.metadata import SERVERS, STORAGE_NODES, PartitionMetadata, StorageNodeEntry, partition_path
from waltz_log.errors import WaltzError
from waltz_log.statistics import to_json
from waltz_log.storage.offline.describe import describe
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.methods import CLIENT_ID

if TYPE_CHECKING:
    from verification.simulation.world import World

__all__ = ["RestoredCoordinator"]

SOMETIMES = 1 / 8
"""The share of the seeds."""

RESTART_S = 0.3

NEWCOMERS = 5
"""Clients that connect to each server then."""

UNNOTICED_S = 1.5
"""How long the servers run with the restored metadata."""

LATE_S = 12.0
"""The time for healing, before the restore and after the procedure."""

RESTORED = "/"
"""The path of a metadata write that stands for the restore: from there on numbers start again."""


class RestoredCoordinator:
    """`watch` during the faults, then `play`."""

    def __init__(self, world: World) -> None:
        self._world = world
        rng = Random(f"restored {world.seed}")
        self._drawn = rng.random() < SOMETIMES and not world.mix.kept and "outbox" not in world.mix.clients
        self._backup_s = rng.uniform(0.1, world.mix.load_s)
        self._restarts = rng.choice((0, 1, 2, 4))
        self._backup: Mapping[str, object] | None = None

    async def watch(self) -> None:
        if self._drawn:
            await asyncio.sleep(self._backup_s)
            self._backup = self._world.ensemble.snapshot()
            self._world.trace.add("coordinator", "is backed up")

    async def play(self, append_everywhere: Callable[[float, str], Awaitable[Mapping[int, float]]]) -> None:
        """No fault is active, and every node is up."""
        world = self._world
        if self._backup is None or world.grown or not await self._whole():
            return
        names = sorted(world.servers)
        world.busy.update(names)  # no one else starts them again
        for name in names:
            await world.kill_server(name)
        world.trace.add("coordinator", "is restored from the backup")
        world.restore_coordinator(self._backup)
        world.history.metadata.append(MetadataWrite(world.now_s, RESTORED, b"", None, 0))
        for restart in range(1 + self._restarts):
            for name in names:
                if restart:
                    await world.kill_server(name)
                await world.start_server(name)
            await asyncio.sleep(RESTART_S)
        await self._ask_for_ids()
        await asyncio.sleep(world.mix.session_timeout_s + UNNOTICED_S)  # also until a manager that was killed is out of office
        self._expect_noticed(names)
        await self._adopt(names)
        for name in names:
            await world.start_server(name)
        world.busy.difference_update(names)
        adopted_s = world.now_s
        took = await append_everywhere(adopted_s, "prober-restored")
        late = [partition for partition in range(world.mix.log_partitions) if took.get(partition, LATE_S) >= LATE_S]
        if late:
            world.history.complaints.append(f"27: no append within {LATE_S:g} s of the adoption: partitions={late}")

    async def _ask_for_ids(self) -> None:
        """New clients ask for ids between the restore and the procedure. They may be refused, and get none that another client has."""
        host, request = self._world.network.host("newcomer"), pb.ClientIdRequest(cluster_key=self._world.key.bytes)
        for address in servers_of(self._world):
            for _ in range(NEWCOMERS):
                with suppress(WaltzError):
                    await host.connect(address).call(CLIENT_ID, request, timeout_s=0.5)

    async def _whole(self) -> bool:
        """False if a replica does not become a clean member in time. A replica that lost its disk and has not copied everything again cannot be
        adopted."""
        world = self._world
        deadline = world.now_s + LATE_S
        while world.now_s < deadline:
            found = [await self._members(partition) for partition in range(world.mix.log_partitions)]
            if all(found) and len(world.servers) >= world.mix.servers:
                return True
            await asyncio.sleep(0.1)
        return False

    async def _members(self, partition: int) -> bool:
        node = self._world.ensemble.get(partition_path(partition))
        states = {} if node is None else PartitionMetadata.from_bytes(node.data).replicas
        newest = max((state.session for state in states.values()), default=-1)
        return set(states) == set(await self._world.assigned(partition)) and all(state.session == newest for state in states.values())

    def _expect_noticed(self, names: Sequence[str]) -> None:
        """By now a partition is open, because nothing of it is lost, or it is refused. A partition whose replicas have moved to other addresses since
        the backup is neither."""
        world = self._world
        owners = [world.servers[name].server for name in names]
        states = [to_json(server.statistics())["partitions"] for server in owners if server is not None]
        for partition in range(world.mix.log_partitions):
            is_open = any(each.get(str(partition), {}).get("state") == "open" for each in states)
            node = world.ensemble.get(partition_path(partition))
            refused = node is not None and PartitionMetadata.from_bytes(node.data).newer_session is not None
            world.trace.add("coordinator", f"is {'refused' if refused else 'gone on from' if is_open else 'not reached'} partition={partition}")
            if not is_open and not refused and self._reachable(partition):
                world.history.complaints.append(f"27: the partition neither opens nor is refused: partition={partition}")

    def _reachable(self, partition: int) -> bool:
        """Whether the backup has the addresses at which all of the partition's nodes are now."""
        world = self._world
        for name in world.replicas[partition]:
            node, storage = world.ensemble.get(f"{STORAGE_NODES}/{name}"), world.storages.get(name)
            if node is None or storage is None or storage.listener is None:
                return False
            if StorageNodeEntry.from_bytes(node.data).address != storage.listener.address:
                return False
        return True

    async def _adopt(self, names: Sequence[str]) -> None:
        world = self._world
        for name in names:
            await world.stop_server(name)
        storages = sorted(world.storages)
        for name in storages:
            await world.stop_storage(name)
        found = adopt({name: describe(world.disks[name]) for name in storages})
        # What it writes without comparing, it writes while no other writer exists.
        observer, world.ensemble.observer = world.ensemble.observer, lambda path, data, expected, version: world.map_written(path, data)
        while await world.coordinator.children(SERVERS):  # of one that was killed, until its session ends
            await asyncio.sleep(0.1)
        await adopt_cluster(world.coordinator, name="test", found=found, restored=True)
        world.ensemble.observer = observer
        world.trace.add("operator", "adopted what the storage nodes hold")
        for name in storages:
            await world.start_storage(name)
