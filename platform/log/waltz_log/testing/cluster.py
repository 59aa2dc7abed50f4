"""A whole cluster in one event loop: real log servers and storage nodes over the in-memory network, coordinator and disks.

For tests of what no single part decides: fail-over, recovery, catch-up, fencing. Everything is driven by the caller; nothing here uses wall time but
the event loop's.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any  # keyword arguments that a settings model checks
from uuid import UUID

from waltz_log.background_tasks import end_tasks, start_task
from waltz_log.client import ClientSettings, WaltzClient
from waltz_log.coordination.access import AccessFollower, change_rules
from waltz_log.coordination.followed import RULES, FollowedValue
from waltz_log.coordination.other_nodes import OtherNodes
from waltz_log.coordination.remembered_values import RememberedValues
from waltz_log.coordination.round_trips import measure_round_trips
from waltz_log.coordination.topic_creation import Existing, TopicPlan, create_topic
from waltz_log.coordination.topics import change_catalogue
from waltz_log.core import metadata as paths
from waltz_log.core.metadata import ClusterParameters, ReplicaAssignment, StorageNodeEntry
from waltz_log.core.ports import Clock, Coordinator, Listener
from waltz_log.core.topics.catalogue import Policies, Topic
from waltz_log.core.topics.topic_names import TopicName
from waltz_log.security.access import AccessControl
from waltz_log.security.identity import Identity, Role
from waltz_log.security.rules import AccessRules
from waltz_log.server import LogServer, ServerSettings
from waltz_log.storage import StorageNode, StorageSettings
from waltz_log.testing.disk import SimulatedDisk
from waltz_log.testing.known_servers import KnownServers
from waltz_log.testing.links import Links
from waltz_log.testing.memory_coordinator import MemoryCoordinator, MemoryEnsemble
from waltz_log.testing.network import MemoryNetwork
from waltz_log.testing.offload import run_in_place

__all__ = ["LoopClock", "MemoryCluster"]

CLUSTER_KEY = UUID("00112233-4455-6677-8899-aabbccddeeff")


class LoopClock:
    """Dates that follow the event loop's time, from a fixed start."""

    START_MS = 1_600_000_000_000

    def now_ms(self) -> int:
        return self.START_MS + int(asyncio.get_running_loop().time() * 1000)


class MemoryCluster:
    """`await start()`, then kill and restart parts by name: `storage-0`, `server-0`."""

    def __init__(
        self,
        *,
        partitions: int = 1,
        storages: int = 3,
        servers: int = 2,
        settings: dict[str, Any] | None = None,
        storage_settings: dict[str, Any] | None = None,
        delay_s: Callable[[], float] | None = None,
        links: Links | None = None,
        identities: Callable[[str], Identity] | None = None,
        directory: Path | None = None,
    ) -> None:
        """`directory`: where storage nodes remember rules and topics, each in a directory of its name, which is there; None: nowhere.
        `links`: for tests that cut hosts off from each other; a server's host has its name, and so has a storage node's. `identities`: who each
        host is, as with TLS; the rules of access apply then. Servers and storage nodes are nodes whatever it says."""
        self.key = CLUSTER_KEY
        self.partitions = partitions
        self.ensemble = MemoryEnsemble()
        self.network = MemoryNetwork(delay_s, links)
        self.network.identities = None if identities is None else partial(self._identity, identities)
        self._directory = directory
        self._following: dict[str, asyncio.Task[None]] = {}
        self.clock: Clock = LoopClock()
        self.clocks: dict[str, Clock] = {}
        """For nodes whose clock is another one, by name."""
        self.disks: dict[str, SimulatedDisk] = {}
        self.storages: dict[str, tuple[StorageNode, Listener]] = {}
        self.servers: dict[str, tuple[LogServer, MemoryCoordinator]] = {}
        self._storage_names = [f"storage-{index}" for index in range(storages)]
        self._server_names = [f"server-{index}" for index in range(servers)]
        self._settings: dict[str, Any] = {"replica_retry_s": 0.01, "replica_retry_max_s": 0.1, **(settings or {})}
        self._storage_settings = storage_settings or {}
        self._coordinator: Coordinator = self.ensemble.session()

    def _identity(self, of_clients: Callable[[str], Identity], host: str) -> Identity:
        if host in (*self._storage_names, *self._server_names):
            return Identity(f"spiffe://waltz/node/{host}", frozenset({Role.NODE}))
        return of_clients(host)

    def _access(self) -> AccessControl:
        return AccessControl(enforced=self.network.identities is not None)

    async def start(self) -> None:
        """Creates the cluster, and starts its storage nodes and servers."""
        await self._coordinator.create(paths.CLUSTER, ClusterParameters("test", self.key, self.partitions).to_bytes())
        replicas = {partition: tuple(self._storage_names) for partition in range(self.partitions)}
        await self._coordinator.create(paths.REPLICAS, ReplicaAssignment(replicas).to_bytes())
        for name in self._storage_names:
            await self.start_storage(name)
        for name in self._server_names:
            await self.start_server(name)

    async def stop(self) -> None:
        """Ends the servers, then stops the storage nodes."""
        for name in list(self.servers):
            await self.kill_server(name)
        for name in list(self.storages):
            await self.stop_storage(name)

    async def connect(self, settings: ClientSettings | None = None, *, seed: int = 0, host: str = "client") -> WaltzClient:
        """A client of this cluster, on that host. Close it before the cluster stops."""
        return await WaltzClient.connect_over(self.seeds, self.network.host(host), settings, rng=random.Random(seed))

    @property
    def seeds(self) -> KnownServers:
        """The addresses of the servers that run at the time of use. `connect_over` of a client or an outbox needs it and `network`."""
        return KnownServers(lambda: [server.address for server, _ in self.servers.values()])

    async def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        type: str = "regular",
        keyed: bool = False,
        properties: Mapping[str, str] | None = None,
        log_partitions: tuple[int, ...] | None = None,
        existing: Existing | None = None,
        discards: int | None = None,
        **policies: Any,
    ) -> Topic:
        """As `waltz topic create`: `namespace/topic` over empty log partitions, or over `log_partitions`. `policies`: by name, as `waltz topic
        describe` lists them."""
        plan = TopicPlan(TopicName.parse(name), partitions, type, keyed, properties or {}, Policies(**policies), log_partitions, existing, discards)
        return await create_topic(self._coordinator, self.network, plan, now_ms=self.clock.now_ms)

    async def delete_topic(self, name: str) -> None:
        """As `waltz topic delete`."""
        await change_catalogue(self._coordinator, lambda found: found.without(TopicName.parse(name)))

    async def change_access(self, change: Callable[[AccessRules], AccessRules]) -> None:
        """As `waltz access grant` and `waltz access revoke`."""
        await change_rules(self._coordinator, change)

    # ---- storage nodes ---------------------------------------------------------------------------------------------------------------------------

    def restore_coordinator(self, snapshot: Mapping[str, object]) -> None:
        """Sets the coordinator back to what `ensemble.snapshot` returned. All its sessions end."""
        self.ensemble.restore(snapshot)
        self._coordinator = self.ensemble.session()

    async def start_storage(self, name: str) -> None:
        """Starts a storage node on its disk."""
        disk = self.disks.get(name)
        if disk is None:
            disk = self.disks[name] = SimulatedDisk()
            StorageNode.create(disk, self.clocks.get(name, self.clock), self.key, self.partitions)
        settings = StorageSettings(name=name, directory=Path("unused"), coordinator="memory/test", **self._storage_settings)
        access = self._access()
        node = StorageNode(settings, disk, self.clocks.get(name, self.clock), run_in_place, access=access)
        await node.open()
        if access.enforced:
            follower = self._follower(node, access)
            await follower.read()
            self._following[name] = start_task(follower.run())
        listener = await self.network.host(name).serve(f"{name}:0", node.service())
        node.measure_round_trips = partial(self._measure_round_trips, name)
        self.storages[name] = (node, listener)
        path = f"{paths.STORAGE_NODES}/{name}"
        entry = StorageNodeEntry(listener.address, node.start).to_bytes()
        if not await self._coordinator.create(path, entry):
            await self._coordinator.set(path, entry, -1)

    def _follower(self, node: StorageNode, access: AccessControl) -> AccessFollower:
        name = node.settings.name
        others = OtherNodes(self.network.host(name), node.known, storage=name)
        of_node = (self.ensemble.session(), access)
        if self._directory is None:
            return AccessFollower(*of_node, topics=True, known=node.known, others=others)
        remembered = RememberedValues(self._directory / name)
        remembered.load(node.known)
        access.remember(node.known.value(RULES))

        async def remember(kind: FollowedValue[Any], data: bytes) -> None:
            remembered.store(kind, data)

        return AccessFollower(*of_node, topics=True, known=node.known, others=others, remember=remember)

    async def _measure_round_trips(self, name: str) -> Mapping[str, float | None]:
        return await measure_round_trips(self.ensemble.session(), self.network.host(name), self.key.bytes, except_for=name)

    async def stop_storage(self, name: str) -> None:
        """SIGTERM of a storage node: it syncs, and closes its files."""
        node, listener = self.storages.pop(name)
        await self._end_following(name)
        await listener.close()
        await node.close()

    async def _end_following(self, name: str) -> None:
        task = self._following.pop(name, None)
        if task is not None:
            await end_tasks([task])

    async def kill_storage(self, name: str) -> None:
        """Kills the machine of a storage node: what was not synced is lost."""
        node, listener = self.storages.pop(name)
        await self._end_following(name)
        await listener.close()
        self.disks[name] = self.disks[name].crash()
        await node.close()

    # ---- log servers -------------------------------------------------------------------------------------------------------------------------------

    async def start_server(self, name: str, **more: Any) -> None:
        """Starts a server. `more`: settings of this one."""
        session = self.ensemble.session()
        settings = ServerSettings(coordinator="memory/test", **{"listen": f"{name}:0", **self._settings, **more})
        clock = self.clocks.get(name, self.clock)
        server = LogServer(settings, session, self.network.host(name), clock, owner_secret=name.encode(), access=self._access())
        await server.start()
        self.servers[name] = (server, session)

    async def kill_server(self, name: str) -> None:
        """Kills a server. Its coordinator session ends immediately; in a real cluster it ends after the session timeout."""
        server, session = self.servers.pop(name)
        await server.abort()
        self.ensemble.expire(session)

    async def stop_server(self, name: str) -> None:
        """SIGTERM of a server: it ends its store sessions in order."""
        server, session = self.servers.pop(name)
        await server.stop()
        await session.close()

    async def isolate_server(self, name: str) -> tuple[LogServer, MemoryCoordinator]:
        """Ends a server's coordinator session while its process lives on and does not know. Returns the server and its session."""
        server, session = self.servers.pop(name)
        self.ensemble.cut(session)
        self.ensemble.expire(session)
        return server, session
