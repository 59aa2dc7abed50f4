"""A cluster of simulated processes: real log servers, storage nodes and clients over the in-memory network, coordinator and disks.

Each process can be paused, killed and started again, its host disconnected, its disk crashed. `faults.py` decides what goes wrong and `checkers.py`
what is right; this module keeps the history of observable events.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from random import Random
from typing import Any

from verification.simulation.history import Acknowledgment, ClientIdGiven, History, MarkSent, MemoryLost, MetadataWrite, SessionOpened
from verification.simulation.identities import RULES, identity_of
from verification.simulation.maps_seen import MapsSeen
from verification.simulation.mix import Mix
from verification.simulation.nodes import CLUSTER_KEY, ClientProcess, ServerProcess, SkewedClock, StorageProcess
from verification.simulation.refill_checkers import FillsSeen
from verification.simulation.trace import Trace
from verification.simulation.upkeep_seen import UpkeepSeen
from waltz_log.core import metadata as paths
from waltz_log.core.metadata import ClusterParameters, ReplicaAssignment
from waltz_log.core.ports import Coordinator
from waltz_log.core.retention import Retained, retained_path
from waltz_log.core.topics.access import CLUSTER_PRINCIPAL
from waltz_log.core.topics.catalogue import CATALOGUE, Catalogue
from waltz_log.core.topics.topic_names import TopicName
from waltz_log.errors import WaltzError
from waltz_log.security.rules import ACCESS
from waltz_log.testing.disk import SimulatedDisk
from waltz_log.testing.links import Links
from waltz_log.testing.memory_connection import Connection
from waltz_log.testing.memory_coordinator import MemoryCoordinator, MemoryEnsemble
from waltz_log.testing.network import MemoryNetwork
from waltz_log.testing.offload import SlowOffload
from waltz_log.testing.virtual_time import world_time_s
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb

__all__ = ["World"]


class World:
    def __init__(self, seed: int, mix: Mix, trace: Trace) -> None:
        self.seed = seed
        self.key = CLUSTER_KEY
        self.mix = mix
        self.trace = trace
        self.rng = Random(f"world {seed}")
        self.chance = Random(f"faults {seed}")
        self.history = History()
        self.links = Links(mix.weather, Random(f"links {seed}"))
        self.network = MemoryNetwork(links=self.links)
        self.network.observer = self._observe
        self.network.identities = identity_of if mix.access else None
        self.ensemble = MemoryEnsemble(timeout_s=mix.session_timeout_s)
        chance = Random(f"coordinator {seed}")
        self.ensemble.delay_s = lambda: chance.uniform(0, mix.coordinator_s) if mix.coordinator_s else 0.0
        self.ensemble.observer = self._written
        disk_chance = Random(f"disks {seed}")
        self.offload = SlowOffload(lambda: disk_chance.uniform(0, mix.disk_s) if mix.disk_s else 0.0)
        self.disks: dict[str, SimulatedDisk] = {}
        self.storages: dict[str, StorageProcess] = {}
        self.servers: dict[str, ServerProcess] = {}
        self.named_servers: list[ServerProcess] = []
        self.clients: dict[str, ClientProcess] = {}
        self.clocks: dict[str, SkewedClock] = {}
        self.replicas: dict[int, tuple[str, ...]] = {}
        self.lives: dict[str, int] = {}
        self.storage_names = [f"storage-{index}" for index in range(mix.storages)]
        self.busy: set[str] = set()
        """Nodes that a fault has claimed."""
        self.fragile = [self.rng.choice(self.storage_names)] if mix.replicas >= 3 else []
        """The one node, if any, whose data may be removed."""
        self.corrupted: set[str] = set()
        self._flipped: set[tuple[str, str, int]] = set()
        """Nodes, files and places where a bit flipped."""
        self.probes = 0
        self.grown: list[int] = []
        """Partitions that were added."""
        self.grow: Callable[[Random], Awaitable[None]] | None = None
        """Adds a partition, in runs that may grow."""
        self.upkeep_seen = UpkeepSeen(self.history)
        self.maps_seen = MapsSeen(self.history, some_topics=mix.access)
        self.fills_seen = FillsSeen(self.history.replicas_opened)
        self.resolved: dict[int, asyncio.Event] = {}
        """By partition: set when a recovery has decided. A task that waits for the next one sets it there."""
        self._partition_of: dict[int, int] = {}
        self._life = 0
        self._supervisors: dict[str, asyncio.Task[None]] = {}
        self.coordinator: Coordinator = self.ensemble.session()
        """The harness's own, which reads what was written last."""
        if mix.follower_lag_s:
            behind = Random(f"lags {seed}")
            self.ensemble.follower_lag_s = lambda: behind.choice((0.0, 1.0, 1.0)) * behind.uniform(0, mix.follower_lag_s)
        trace.logged = self._logged

    @property
    def now_s(self) -> float:
        return world_time_s()

    def clock(self, name: str) -> SkewedClock:
        return self.clocks.setdefault(name, SkewedClock())

    # ---- seeing ------------------------------------------------------------------------------------------------------------------------------------

    def _observe(self, connection: Connection, host: str, message: Any, since_s: float) -> None:
        self.upkeep_seen.observe(self.now_s, connection, message)
        self.fills_seen.observe(since_s, connection, host, message)
        if isinstance(message, pb.ClientIdResponse):
            self.history.give_client_id(ClientIdGiven(connection.caller.host, message.client_id, message.ticket))
        elif isinstance(message, pb.ReplicateRequest):
            if message.WhichOneof("kind") == "open":
                self._partition_of[connection.original] = message.open.partition
        elif isinstance(message, pb.OpenRequest):
            self._partition_of[connection.original] = message.partition
        elif isinstance(message, pb.LowWaterMarkRequest):
            if host.startswith("server-") and (recorded := self.ensemble.get(paths.partition_path(message.partition))) is not None:
                reported = MarkSent(since_s, message.partition, connection.address, message.session, message.low_water_mark, recorded.data)
                self.history.reported_marks.append(reported)
        elif isinstance(message, pb.ReplicateResponse | pb.OpenResponse):
            life = self.lives.get(connection.address, 0)
            partition = self._partition_of[connection.original]
            last = int(message.last_transaction_id)
            received = last
            if isinstance(message, pb.ReplicateResponse) and message.HasField("received_transaction_id"):
                received = int(message.received_transaction_id)
            self.history.acknowledgments.append(Acknowledgment(since_s, host, life, partition, last, received))

    def _written(self, path: str, data: bytes, expected: int | None, version: int) -> None:
        self.history.metadata.append(MetadataWrite(self.now_s, path, data, expected, version))
        self.map_written(path, data)

    def map_written(self, path: str, data: bytes) -> None:
        stored = self.ensemble.get(path)
        self.maps_seen.written(path, data, 0 if stored is None else stored.changed)

    def _logged(self, event: str, facts: MutableMapping[str, Any]) -> None:
        if event == "high-water mark resolved" and facts["partition"] in self.resolved:
            self.resolved[facts["partition"]].set()
        if event in ("upkeep failed unexpectedly", "compaction failed unexpectedly", "replica session failed unexpectedly"):
            self.history.complaints.append(f"22: {event} at {self.now_s:.3f}: {facts}")
        if event == "store session open":
            self.history.sessions.append(SessionOpened(self.now_s, facts["partition"], facts["session"], facts["high_water_mark"]))

    # ---- the whole ---------------------------------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        mix = self.mix
        await self.coordinator.create(paths.CLUSTER, ClusterParameters("test", CLUSTER_KEY, mix.log_partitions).to_bytes())
        for partition in range(mix.log_partitions):
            self.replicas[partition] = tuple(self.storage_names[(partition + place) % mix.storages] for place in range(mix.replicas))
        await self.coordinator.create(paths.REPLICAS, ReplicaAssignment(self.replicas).to_bytes())
        if mix.in_memory or mix.kept:
            await self.coordinator.create(CATALOGUE, self._catalogue().to_bytes())
        if mix.access:
            await self.coordinator.create(ACCESS, RULES.to_bytes())
        for name in self.storage_names:
            self.disks[name] = SimulatedDisk()
            await self.start_storage(name)
        for index in range(mix.servers):
            await self.start_server(f"server-{index}")
        # Only now: a cluster is created in peace.
        answers = Random(f"answers {self.seed}")
        self.ensemble.loses_answer = lambda: answers.random() < mix.answers_lost

    def _catalogue(self) -> Catalogue:
        found = Catalogue()
        for partition, policies in self.mix.in_memory.items():
            name = TopicName("sim", f"memory-{partition}")
            found, _ = found.with_new(name, type="regular", partitions=1, pool=(partition,), now_ms=0, policies=policies)
        for partition, topic in self.mix.kept.items():
            name = TopicName("sim", f"kept-{partition}")
            found, _ = found.with_new(name, type=topic.type, partitions=1, pool=(partition,), now_ms=0, policies=topic.policies)
        return found

    async def stop(self) -> None:
        for name, supervisor in list(self._supervisors.items()):
            if name not in self.servers:
                await supervisor  # it is starting the server again
        for name in list(self.servers):
            await self.kill_server(name)
        for name in list(self.storages):
            await self.stop_storage(name)
        await self.coordinator.close()

    @property
    def partitions(self) -> list[int]:
        """All whose topics are not trimmed, those that were added as well."""
        return [*range(self.mix.partitions), *self.grown]

    @property
    def log_partitions(self) -> int:
        """All there are now."""
        return self.mix.log_partitions + len(self.grown)

    async def note_growth(self) -> None:
        node = self.ensemble.get(paths.CLUSTER)
        assert node is not None
        self.grown = list(range(self.mix.log_partitions, ClusterParameters.from_bytes(node.data).partitions))
        for partition in self.grown:
            await self.assigned(partition)

    async def assigned(self, partition: int) -> tuple[str, ...]:
        """Which nodes hold the partition, as the coordinator has it now."""
        node = await self.coordinator.get(paths.REPLICAS)
        if node is not None:
            self.replicas.update(ReplicaAssignment.from_bytes(node.data).replicas)
        return self.replicas[partition]

    # ---- storage nodes -----------------------------------------------------------------------------------------------------------------------------

    async def start_storage(self, name: str, *, replace: bool = False) -> None:
        """Waits until it is up. A failed start is repeated, as a supervisor would do. Raises `Fenced` if the directory is refused."""
        while True:
            self._life += 1
            storage = StorageProcess(self, name, self._life)
            self.trace.add(name, f"starts life={self._life}" + (" replaced" if replace else ""))
            try:
                await storage.process.spawn(storage.start(self.disks[name], self.clock(name), replace=replace))
            except (WaltzError, OSError) as error:
                self.trace.add(name, f"does not start: {error}")
                await self._end_storage(storage, self.disks[name].crash(keep=True))
                if not (isinstance(error, WaltzError) and error.retriable):
                    raise
                await asyncio.sleep(0.05)
                continue
            self.storages[name] = storage
            return

    async def stop_storage(self, name: str) -> None:
        storage = self.storages.pop(name)
        self.trace.add(name, "stops")
        await storage.process.spawn(storage.stop())

    async def kill_storage(self, name: str, disk: SimulatedDisk) -> None:
        """`disk`: what is left of its disk."""
        await self._end_storage(self.storages.pop(name), disk)

    async def _end_storage(self, storage: StorageProcess, disk: SimulatedDisk) -> None:
        self.disks[storage.name] = disk
        storage.die()
        await storage.end_tasks()
        await storage.stop()

    def loses_memory(self, name: str) -> None:
        """The node's machine dies, or what it did not sync is gone in another way."""
        self.history.memory_lost.append(MemoryLost(self.now_s, name))

    def flip(self, name: str, path: str, at: int, bit: int) -> bool:
        """Flips a bit of a file on the node's disk. False: one at this place did before, and a second flip could undo the first."""
        if (name, path, at) in self._flipped:
            return False
        disk = self.disks[name]
        content = bytearray(disk.content(path))
        content[at] ^= 1 << bit
        disk.replace(path, bytes(content))
        self._flipped.add((name, path, at))
        self.corrupted.add(name)
        self.trace.add(name, f"a bit of {path} flips at {at}")
        return True

    async def replace_disk(self, name: str, disk: SimulatedDisk) -> None:
        """Of a node that is down."""
        self.disks[name] = disk

    # ---- log servers -------------------------------------------------------------------------------------------------------------------------------

    async def start_server(self, name: str) -> None:
        while True:
            server = ServerProcess(self, name)
            self.trace.add(name, "starts")
            try:
                await server.process.spawn(server.start())
            except WaltzError as error:
                self.trace.add(name, f"does not start: {error}")
                await self._end_server(server)
                await asyncio.sleep(0.05)
                continue
            self.servers[name] = server
            self._supervisors[name] = asyncio.ensure_future(self._supervise(name, server))
            return

    async def _supervise(self, name: str, server: ServerProcess) -> None:
        """A server whose coordinator session ended must be replaced. The server may notice that late."""
        await server.wait_lost()
        await asyncio.sleep(self.rng.choice((0.0, 0.5, 1.5)))
        while name in self.busy:
            await asyncio.sleep(0.05)
        if self.servers.get(name) is server:
            self.trace.add(name, "lost its coordinator session and is started anew")
            del self.servers[name]
            await self._end_server(server)
            await self.start_server(name)

    async def stop_server(self, name: str) -> None:
        """SIGTERM, and SIGKILL if that is too slow."""
        server = self._leave(name)
        self.trace.add(name, "stops")
        try:
            async with asyncio.timeout(5):
                await server.process.spawn(server.stop())
        except (TimeoutError, WaltzError) as error:
            self.trace.add(name, f"is killed, as it does not stop: {error}")
        await self._end_server(server)

    async def kill_server(self, name: str) -> None:
        self.trace.add(name, "is killed")
        await self._end_server(self._leave(name))

    def _leave(self, name: str) -> ServerProcess:
        self._supervisors.pop(name).cancel()
        return self.servers.pop(name)

    async def _end_server(self, server: ServerProcess) -> None:
        server.die()
        await server.end_tasks()
        await server.abort()

    async def silence(self, sessions: list[MemoryCoordinator], seconds: float, *, expire: bool = True) -> None:
        """The ensemble receives nothing from the sessions for this time. They end if it is longer than their timeout."""
        for session in sessions:
            self.ensemble.cut(session)
        lasts = self.mix.session_timeout_s
        await asyncio.sleep(min(seconds, lasts))
        if expire and seconds >= lasts:
            for session in sessions:
                if not session.connected and not session.ended:
                    self.ensemble.expire(session)
            await asyncio.sleep(seconds - lasts)
        for session in sessions:
            self.ensemble.heal(session)

    def restore_coordinator(self, backup: Mapping[str, object]) -> None:
        """No earlier session is known to the ensemble that comes back, not the harness's either."""
        self.maps_seen.restored()
        self.ensemble.restore(backup)
        lag_s, self.ensemble.follower_lag_s = self.ensemble.follower_lag_s, None
        self.coordinator = self.ensemble.session()
        self.ensemble.follower_lag_s = lag_s

    # ---- clients -----------------------------------------------------------------------------------------------------------------------------------

    def client(self, name: str) -> ClientProcess:
        client = self.clients[name] = ClientProcess(self, name)
        return client

    async def kill_client(self, name: str) -> None:
        client = self.clients[name]
        client.died = True
        self.trace.add(name, "is killed")
        client.die()
        await client.end_tasks()
        await client.close()

    # ---- replicas, unnoticed ---------------------------------------------------------------------------------------------------------

    async def retained(self, partition: int) -> int:
        """The first transaction that is."""
        node = await self.coordinator.get(retained_path(partition), latest=True)
        return 0 if node is None else Retained.from_bytes(node.data).first

    async def first_of(self, name: str, partition: int) -> int:
        """The first transaction that the node has; the largest number there is where it is not up."""
        storage = self.storages.get(name)
        node = None if storage is None else storage.node
        return 1 << 62 if node is None else (await node.partition(partition)).log.first_id

    async def stored(self, name: str, partition: int, last: int, first: int = 0) -> bytes | str:
        """What the node serves of the partition from `first` to `last`, or the error it gives."""
        storage = self.storages.get(name)
        if storage is None or storage.listener is None:
            return f"{name} is not up"
        request = pb.ReadRequest(
            cluster_key=CLUSTER_KEY.bytes,
            partition=partition,
            session=0,
            first_transaction_id=first,
            last_transaction_id=last,
            max_bytes=1 << 20,
            principal=CLUSTER_PRINCIPAL,
        )
        stream = self.network.host("checker").connect(storage.listener.address).read(methods.READ, request)
        found = b""
        try:
            while (answer := await stream.receive()) is not None:
                found += b"".join(block.records for block in answer.blocks)
        except WaltzError as error:
            return f"{name}: {error}"
        return found
