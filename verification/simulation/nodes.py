"""The processes of a simulated cluster: storage nodes, log servers and clients, each with a host, coordinator sessions and a date of its own.

They start as with `waltz storage` and `waltz server`, with the same checks. `world.py` holds them, and starts and kills them.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Protocol
from uuid import UUID

from verification.simulation.maps_seen import MapsSeen
from verification.simulation.mix import Mix
from waltz_log.client import ClientSettings, WaltzClient
from waltz_log.coordination.access import AccessFollower
from waltz_log.coordination.followed import KnownValues
from waltz_log.core import metadata as paths
from waltz_log.core.metadata import StorageNodeEntry
from waltz_log.core.ports import Listener
from waltz_log.errors import WaltzError
from waltz_log.processes.storage import check_start, register
from waltz_log.security.access import AccessControl
from waltz_log.server import LogServer, ServerSettings
from waltz_log.storage import StorageNode, StorageSettings
from waltz_log.testing.disk import SimulatedDisk
from waltz_log.testing.known_servers import KnownServers
from waltz_log.testing.links import Links
from waltz_log.testing.memory_coordinator import MemoryCoordinator, MemoryEnsemble
from waltz_log.testing.network import MemoryNetwork
from waltz_log.testing.offload import HangingOffload, SlowOffload
from waltz_log.testing.virtual_time import SimulatedProcess, world_time_s

__all__ = ["CLUSTER_KEY", "ClientProcess", "ServerProcess", "SkewedClock", "StorageProcess"]

CLUSTER_KEY = UUID("00112233-4455-6677-8899-aabbccddeeff")

START_MS = 1_600_000_000_000

SEEDS_MAX = 4
"""Addresses of log servers that clients know, of which some are out of date. There are more only if more servers run."""


class SkewedClock:
    """The clock of a node."""

    def __init__(self) -> None:
        self.off_ms = 0
        self._rate = 1.0
        self._drifted_at_s = (0.0, 0.0)

    def drift(self, rate: float) -> None:
        """From now on, the date runs faster by this factor."""
        self._drifted_at_s = (world_time_s(), self._passed_s())
        self._rate = rate

    def _passed_s(self) -> float:
        at_s, passed_s = self._drifted_at_s
        return passed_s + (world_time_s() - at_s) * self._rate

    def now_ms(self) -> int:
        return START_MS + self.off_ms + int(1000 * self._passed_s())


class Machines(Protocol):
    """What processes run on and are judged by: of the `World` that starts them, the part that they use."""

    mix: Mix
    rng: Random
    links: Links
    network: MemoryNetwork
    ensemble: MemoryEnsemble
    offload: SlowOffload
    lives: dict[str, int]
    """By address: the life of the storage node that listens there."""
    maps_seen: MapsSeen
    named_servers: list[ServerProcess]
    """Log servers that run, and some that ran a while ago; the newest last."""

    @property
    def log_partitions(self) -> int: ...

    def clock(self, name: str) -> SkewedClock: ...


class _Process:
    def __init__(self, world: Machines, name: str) -> None:
        self.name = name
        self.process = SimulatedProcess(name)
        self.host = world.network.host(name)
        self._world = world
        self._sessions: list[MemoryCoordinator] = []

    def session(self) -> MemoryCoordinator:
        session = self._world.ensemble.session()
        self._sessions.append(session)
        return session

    @property
    def sessions(self) -> list[MemoryCoordinator]:
        return self._sessions

    def die(self) -> None:
        """No message of the process reaches another process. Its coordinator sessions end after the session timeout."""
        world = self._world
        silent = world.rng.random() < 0.3
        patience = world.links.weather.patience_s
        self.host.die(lambda: world.rng.uniform(0, patience) if silent else world.rng.uniform(0, 0.01))
        self.process.resume()
        for session in self._sessions:
            if not session.ended:
                world.ensemble.cut(session)
                asyncio.get_running_loop().call_later(world.mix.session_timeout_s, world.ensemble.expire, session)

    async def end_tasks(self) -> None:
        tasks = list(self.process.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class StorageProcess(_Process):
    """`life` rises with each start of any node."""

    def __init__(self, world: Machines, name: str, life: int) -> None:
        super().__init__(world, name)
        self.life = life
        self.offload = HangingOffload(world.offload)
        self.node: StorageNode | None = None
        self.listener: Listener | None = None
        self._following: asyncio.Task[None] | None = None

    async def start(self, disk: SimulatedDisk, clock: SkewedClock, *, replace: bool) -> None:
        world = self._world
        settings = StorageSettings(
            name=self.name,
            directory=Path("simulated"),
            coordinator="memory/test",
            segment_bytes=world.mix.segment_bytes,
            compaction_bytes_per_s=1 << 30,
            compaction_key_cache_bytes=4096,
            disk_warn_free_bytes=0,
            disk_refuse_free_bytes=0,
        )
        coordinator = self.session()
        known = await coordinator.get(f"{paths.STORAGE_NODES}/{self.name}", latest=True)
        if not StorageNode.exists(disk):
            StorageNode.create(disk, clock, CLUSTER_KEY, world.log_partitions)
        access = AccessControl(enforced=world.mix.access)
        node = StorageNode(settings, disk, clock, self.offload, access=access)
        # The starts of a directory that replaces another go on from that one's.
        recorded = StorageNodeEntry.from_bytes(known.data).start if replace and known is not None else -1
        await node.open(CLUSTER_KEY, world.log_partitions, starts=recorded)
        self.node = node
        check_start(known, node.start, replace=replace)
        if access.enforced:
            await AccessFollower(coordinator, access, topics=True, known=node.known).read(latest=True)
            self._following = self.process.spawn(self._follow(access, node.known))
        self.listener = await self.host.serve(f"{self.name}:0", node.service())
        world.lives[self.listener.address] = self.life
        await register(coordinator, self.name, StorageNodeEntry(self.listener.address, node.start), replace=replace)
        await coordinator.close()

    def die(self) -> None:
        super().die()
        self.offload.resume()

    async def _follow(self, access: AccessControl, known: KnownValues) -> None:
        """As `waltz storage` does it (`processes.access`)."""
        while True:
            with suppress(WaltzError):
                follower = AccessFollower(self.session(), access, topics=True, known=known)
                await follower.read(latest=True)
                await follower.run()
            await asyncio.sleep(0.5)

    async def stop(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        if self.listener is not None:
            await self.listener.close()
        if self.node is not None:
            await self.node.close()


class ServerProcess(_Process):
    def __init__(self, world: Machines, name: str) -> None:
        super().__init__(world, name)
        self.server: LogServer | None = None
        self.address = ""
        self.is_gone = False
        self.clock = world.clock(name)

    async def start(self) -> None:
        world = self._world
        settings = ServerSettings(coordinator="memory/test", listen=f"{self.name}:0").model_copy(update=dict(world.mix.server_settings))
        access = AccessControl(enforced=world.mix.access)
        server = LogServer(settings, self.session(), self.host, self.clock, owner_secret=self.name.encode(), access=access)
        self.server = server
        await server.start()
        self.address = server.address
        world.named_servers.append(self)
        gone = [each for each in world.named_servers if each.is_gone]
        for each in gone[: max(0, len(world.named_servers) - SEEDS_MAX)]:
            world.named_servers.remove(each)

    async def wait_lost(self) -> None:
        assert self.server is not None
        await self.server.wait_lost()

    def die(self) -> None:
        self.is_gone = True
        super().die()

    async def stop(self) -> None:
        """SIGTERM."""
        self.is_gone = True
        if self.server is not None:
            await self.server.stop()
        for session in self._sessions:
            await session.close()

    async def abort(self) -> None:
        if self.server is not None:
            await self.server.abort()


class ClientProcess(_Process):
    def __init__(self, world: Machines, name: str) -> None:
        super().__init__(world, name)
        self.died = False
        self._clients: list[WaltzClient] = []

    @property
    def seeds(self) -> KnownServers:
        """As DNS gives them: of every server that runs, and of some that were killed."""
        return KnownServers(lambda: [each.address for each in self._world.named_servers])

    async def connect(self, settings: ClientSettings, rng: Random) -> WaltzClient:
        client = await WaltzClient.connect_over(self.seeds, self.host, settings, rng=rng)
        self._world.maps_seen.watch(self.name, client._owners._following)
        self._clients.append(client)
        return client

    async def close(self) -> None:
        for client in self._clients:
            await client.close()
