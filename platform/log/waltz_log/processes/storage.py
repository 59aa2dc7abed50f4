"""`waltz storage`: one storage node, until it is asked to stop.

The first start creates the directory for the cluster at the address and stores that cluster's key in it. At each start the node registers its address
with the coordinator, and how often its directory was started. Refused, before anything is served: a directory of another cluster; one that is older
than the coordinator's record of the node (a restored copy may have lost what it acknowledged); an empty one in place of one that held data, unless
`replace` says that this is intended. A node that starts empty, restored or behind counts as absent in votes until it has caught up with its peers.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from uuid import UUID

from waltz_log.coordination.coordinator import ZooKeeperCoordinator
from waltz_log.coordination.entries import read_entry
from waltz_log.coordination.followed import PARAMETERS, REPLICA_ASSIGNMENT, STORAGE_ENTRIES, KnownValues
from waltz_log.coordination.round_trips import measure_round_trips
from waltz_log.core.metadata import CLUSTER, REPLICAS, STORAGE_NODES, ReplicaAssignment, StorageNodeEntry
from waltz_log.core.ports import Coordinator, Disk, Network, Node
from waltz_log.core.status.storage_statistics import NodeStatistics
from waltz_log.core.topics.sharding import SUPERVISOR, WHOLE, Shard
from waltz_log.errors import ClusterKeyMismatch, ClusterUnavailable, Fenced, InvalidSetting
from waltz_log.filesystem import FileSystemDisk, ThreadOffload
from waltz_log.loggers import get_logger
from waltz_log.monitoring.endpoint import serve_http
from waltz_log.monitoring.monitored import Monitored
from waltz_log.predecessor import PREDECESSOR_S
from waltz_log.processes.access import FollowedAccess, access_control, following
from waltz_log.processes.clock import WallClock
from waltz_log.processes.file_limit import prepare_open_files
from waltz_log.processes.health import health_handler
from waltz_log.processes.joining import AGAIN_PAUSE_S, CONNECT_TIMEOUT_S, join
from waltz_log.processes.protection import check_protection, principal_of
from waltz_log.processes.serving import either, say_ready, serve
from waltz_log.processes.supervisor import NodeAddresses, Workers, orders_of
from waltz_log.processes.tracing import tracing
from waltz_log.processes.worker_link import GROW
from waltz_log.security.access import AccessControl
from waltz_log.security.audit_log import open_audit
from waltz_log.security.settings import TlsSettings
from waltz_log.statistics import from_json
from waltz_log.storage import StorageNode, StorageSettings
from waltz_log.storage.control.storage_directory import read_directory
from waltz_log.storage.integrity.peers import PeerReplicas
from waltz_log.storage.offline.restore import disown, is_restored
from waltz_log.telemetry.tracer import Tracer
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.forwarding import AllWorkers
from waltz_log.transport.grpc import GrpcNetwork

__all__ = ["admit_behind", "check_start", "find_peers", "measure_peers", "peer_addresses", "register", "run", "share_of"]

log = get_logger(__name__)


def run(settings: StorageSettings, *, replace: bool, log_level: str | None = None) -> None:
    prepare_open_files(settings.open_files_max)
    certificates = check_protection(settings)
    open_audit(settings.audit)
    monitored = Monitored("storage")
    with serve_http(settings.http, monitored, certificates) as http:
        _run(settings.model_copy(update={"http": http}), monitored, replace, log_level, principal_of(certificates))


def _run(settings: StorageSettings, monitored: Monitored, replace: bool, log_level: str | None, principal: str) -> None:
    if settings.workers == 1:
        serve(lambda stop: _lives(lambda: _life(settings, monitored, stop, replace), stop))
        return
    with NodeAddresses(settings.listen, settings.workers, settings.worker_ports, principal) as addresses:
        serve(lambda stop: _lives(lambda: _life_of_workers(settings, monitored, addresses, stop, replace, log_level), stop))


class _SessionEnded(Exception):
    """Before the node was registered."""


@asynccontextmanager
async def _joined(settings: StorageSettings) -> AsyncIterator[tuple[ZooKeeperCoordinator, ThreadOffload]]:
    """The session, which the block closes once the node is registered, and threads for the disk. Raises `_SessionEnded` if ZooKeeper ended the
    session before."""
    offload = ThreadOffload(settings.disk_threads)
    coordinator = await join(settings.coordinator, settings.tls)
    try:
        yield coordinator, offload
    except ClusterUnavailable as error:
        if coordinator.lost:
            raise _SessionEnded from error
        raise
    finally:
        await coordinator.close()
        offload.close()


async def _lives(life: Callable[[], Awaitable[None]], stop: asyncio.Event) -> None:
    """Starts over while the coordinator's session ends before the node is registered, as on a machine that is so busy that ZooKeeper answers late. A
    registered node has no session. Raises `ClusterUnavailable` if the coordinator does not answer at all."""
    while True:
        try:
            await life()
            return
        except _SessionEnded as error:
            log.warning("coordinator session ended, starting over", reason=str(error.__cause__))
            await either(stop.wait(), asyncio.sleep(AGAIN_PAUSE_S))
            if stop.is_set():
                return


async def _life(settings: StorageSettings, monitored: Monitored, stop: asyncio.Event, replace: bool) -> None:
    async with tracing(settings.tracing, "waltz-storage", settings.name) as tracer:
        await _traced_life(settings, monitored, stop, replace, tracer)


async def _traced_life(settings: StorageSettings, monitored: Monitored, stop: asyncio.Event, replace: bool, tracer: Tracer | None) -> None:
    monitored.starting("reading the cluster")
    async with _joined(settings) as (coordinator, offload):
        monitored.starting("opening the directory")
        control = access_control(settings.tls)
        disk = FileSystemDisk(settings.directory, lock_within_s=PREDECESSOR_S)
        node = await _open(settings, coordinator, disk, offload, replace, tracer=tracer, access=control)
        try:
            access = FollowedAccess(control, settings.tls, node) if control.enforced else None
            if access is not None:
                await access.follower(coordinator).read(latest=True)

            async def statistics() -> NodeStatistics:
                return node.statistics()

            network = GrpcNetwork(
                settings.direct_port,
                limits=settings.connection_limits,
                beside=health_handler(monitored.ready),
                tls=settings.tls,
            )
            listener = await network.serve(settings.listen, node.service())
            try:
                await register(coordinator, settings.name, StorageNodeEntry(listener.address, node.start), replace=replace)
                await coordinator.close()  # owners fence the node and send what it must know, except the rules of access
                node.start_scrub(PeerReplicas(network, partial(find_peers, settings.coordinator, settings.name, settings.tls)))
                node.measure_round_trips = partial(measure_peers, settings, network, node.cluster_key)
                monitored.serving(statistics)
                say_ready("storage", name=settings.name, address=listener.address, coordinator=settings.coordinator)
                async with following(settings.coordinator, settings.tls, access):
                    await stop.wait()
                monitored.stopping()
            finally:
                await listener.close()
        finally:
            await node.close()
    log.info("storage node closed", name=settings.name)


async def _life_of_workers(
    settings: StorageSettings, monitored: Monitored, addresses: NodeAddresses, stop: asyncio.Event, replace: bool, log_level: str | None
) -> None:
    """Like `_life`, in several processes. This process and each worker hold the directory by the same lock: it is free when the last of them has
    ended, even if this process ended first."""
    monitored.starting("reading the cluster")
    async with _joined(settings) as (coordinator, offload):
        disk = FileSystemDisk(settings.directory, lock_within_s=PREDECESSOR_S)
        monitored.starting("opening the directory")
        node = await _open(settings, coordinator, disk, offload, replace, Shard(SUPERVISOR, settings.workers))
        every = AllWorkers(addresses.siblings)

        async def statistics() -> NodeStatistics:
            answer = await every.ask(methods.STORAGE_STATUS, pb.StorageStatusRequest())
            return from_json(NodeStatistics, json.loads(answer.json), unknown="refuse")

        try:
            growth = _Growth(node.control.header.partitions)
            orders = orders_of("storage", share_of(settings), addresses, log_level, cluster_key=node.cluster_key.hex)
            async with Workers(orders, inherit=disk.held, asked=growth.request, silence_s=settings.worker_silence_s) as workers:
                monitored.stuck_workers = workers.stuck
                await either(workers.start(), stop.wait())
                if workers.serve:
                    await register(coordinator, settings.name, StorageNodeEntry(addresses.address, node.start, addresses.own), replace=replace)
                    await coordinator.close()
                    monitored.serving(statistics)
                    say_ready("storage", name=settings.name, address=addresses.address, coordinator=settings.coordinator, workers=settings.workers)
                while workers.serve and not stop.is_set():
                    await either(stop.wait(), growth.requested.wait(), workers.wait_failed())
                    if growth.requested.is_set():
                        await workers.stop()
                        await node.grow_control_file(growth.pop())
                        await either(workers.start(), stop.wait())
                monitored.stopping()
                await workers.stop()
        finally:
            await every.close()
            await node.close()
    log.info("storage node closed", name=settings.name)


class _Growth:
    """For how many partitions workers requested space: the control files grow while no worker has them open."""

    def __init__(self, there: int) -> None:
        self._wanted = there
        self.requested = asyncio.Event()

    def request(self, what: str, partitions: int) -> None:
        if what == GROW and partitions > self._wanted:
            self._wanted = partitions
            self.requested.set()

    def pop(self) -> int:
        self.requested.clear()
        return self._wanted


def share_of(settings: StorageSettings) -> StorageSettings:
    """The share of one worker in limits that apply to the whole node."""
    least = {
        "open_files_max": 16,
        "writer_bytes_max": 1024 * 1024,
        "scrub_bytes_per_s": 1,
        "repair_bytes_per_s": 1024,
        "compaction_bytes_per_s": 1024,
    }
    whole = {name: int(getattr(settings, name)) for name in least}
    return settings.model_copy(update={name: max(least[name], of // settings.workers) if of else 0 for name, of in whole.items()})


async def _open(
    settings: StorageSettings,
    coordinator: Coordinator,
    disk: FileSystemDisk,
    offload: ThreadOffload,
    replace: bool,
    shard: Shard = WHOLE,
    tracer: Tracer | None = None,
    access: AccessControl | None = None,
) -> StorageNode:
    found = await coordinator.get(CLUSTER, latest=True)
    if found is None:
        raise ClusterUnavailable(address=settings.coordinator, reason="no cluster there, `waltz cluster create` makes one")
    cluster = KnownValues().expect(PARAMETERS, found)
    # Nothing compares and sets this before the directory counts its start: an old answer would admit a copy of an earlier state.
    known = await coordinator.get(f"{STORAGE_NODES}/{settings.name}", latest=True)
    clock = WallClock()
    if not StorageNode.exists(disk):
        if known is not None and not replace:
            reason = (
                f"is empty, but {settings.name} held data: {settings.directory}; mount the right disk, or say --replace to copy all from its peers"
            )
            raise InvalidSetting(name="directory", reason=reason, nearest=None)
        StorageNode.create(disk, clock, cluster.key, cluster.partitions)
    recorded = -1 if known is None else KnownValues().expect(STORAGE_ENTRIES, known, settings.name).start
    node = StorageNode(settings, disk, clock, offload, shard=shard, tracer=tracer, access=access)
    await node.open(cluster.key, cluster.partitions, starts=await offload(admit_behind, disk, cluster.key, recorded, replace))
    try:
        check_start(known, node.start, replace=replace)
    except Fenced:
        await node.close()
        raise
    return node


def admit_behind(disk: Disk, key: UUID, recorded: int, replace: bool) -> int:
    """The number of starts from which the directory counts its own.

    A directory that is behind the coordinator's record is a copy of an earlier state. It is admitted if it is marked as restored, or if it is to
    replace a lost one, and is then marked. Its starts continue from those of the directory that it replaces, which is refused from then on. Raises
    `Fenced` otherwise, `ClusterKeyMismatch`, `InvalidSetting` if the directory is in use."""
    try:
        disk.lock()
    except OSError as error:
        raise InvalidSetting(name="directory", reason=f"is in use by another process: {error.strerror}", nearest=None) from None
    try:
        found = read_directory(disk)
        start = -1 if found.fence is None or found.fence.start is None else found.fence.start
        if found.key != key:
            raise ClusterKeyMismatch(where="the storage directory")
        if start < 0 or start >= recorded or found.java is not None:
            return start  # as it should be, or such as the node itself refuses
        if not is_restored(found):
            if not replace:
                raise _earlier_copy(start + 1, recorded)
            disown(disk, WallClock().now_ms())
            log.warning("directory is behind and treated as restored", start=start, recorded=recorded)
        return recorded
    finally:
        disk.unlock()


async def measure_peers(settings: StorageSettings, network: Network, key: UUID) -> dict[str, float | None]:
    """The results of pings to the other storage nodes, as `measure_round_trips` returns them. Raises `ClusterUnavailable`."""
    coordinator = await ZooKeeperCoordinator.connect(settings.coordinator, timeout_s=CONNECT_TIMEOUT_S, tls=settings.tls)
    try:
        return await measure_round_trips(coordinator, network, key.bytes, except_for=settings.name)
    finally:
        await coordinator.close()


async def find_peers(address: str, name: str, tls: TlsSettings | None, partition: int) -> list[str]:
    """The present addresses of the other replicas of a partition: requested for a repair, which is rare. Raises `ClusterUnavailable`."""
    coordinator = await ZooKeeperCoordinator.connect(address, timeout_s=CONNECT_TIMEOUT_S, tls=tls)
    try:
        return await peer_addresses(coordinator, name, partition)
    finally:
        await coordinator.close()


async def peer_addresses(coordinator: Coordinator, name: str, partition: int) -> list[str]:
    """Without those whose entries cannot be read. Raises `Unavailable` for an assignment that cannot be read or is missing."""
    values = KnownValues()
    names = values.expect(REPLICA_ASSIGNMENT, await coordinator.get(REPLICAS)).replicas.get(partition, ())
    entries = [values.accept(STORAGE_ENTRIES, await coordinator.get(f"{STORAGE_NODES}/{other}"), other) for other in names if other != name]
    return [entry.address_for(partition) for entry in entries if entry is not None]


def check_start(known: Node | None, start: int, *, replace: bool) -> None:
    """Raises `Fenced` if the coordinator has recorded as many or more starts of the node: this directory is not the one that ran last."""
    if known is not None and not replace:
        recorded = StorageNodeEntry.from_bytes(known.data).start
        if start <= recorded:
            raise _earlier_copy(start, recorded)


def _earlier_copy(start: int, recorded: int) -> Fenced:
    reason = "storage directory is a copy of an earlier state; --replace takes it as one that lost what came after"
    return Fenced(what=reason, partition=-1, mine=start, newer=recorded)


async def register(coordinator: Coordinator, name: str, entry: StorageNodeEntry, *, replace: bool = False) -> None:
    """Registers the node's address. Raises `Fenced` if another directory of that name was started meanwhile, and `Unavailable` for an entry that
    cannot be read: that directory could have been started more often."""
    path = f"{STORAGE_NODES}/{name}"
    while not await coordinator.create(path, entry.to_bytes()):
        known = await coordinator.get(path)
        if known is None:
            continue
        if KnownValues().expect(STORAGE_ENTRIES, known, name) == entry:
            break  # by an earlier try whose answer was lost
        check_start(known, entry.start, replace=replace)
        if await coordinator.set(path, entry.to_bytes(), known.version) is not None:
            break
    await _warn_unassigned(coordinator, name)


async def _warn_unassigned(coordinator: Coordinator, name: str) -> None:
    """A node that no partition is assigned to does nothing: it is new, or its name is misspelled and the partitions wait for the right one."""
    assigned = await read_entry(coordinator, REPLICAS, ReplicaAssignment.from_bytes) or ReplicaAssignment({})
    names = sorted({each for held in assigned.replicas.values() for each in held})
    if name not in names:
        advice = "if the node is new, assign replicas to it with `waltz cluster replica`; if the name is wrong, stop the node and correct --name"
        log.warning("no replica is assigned to this storage node", name=name, assigned=",".join(names), advice=advice)
