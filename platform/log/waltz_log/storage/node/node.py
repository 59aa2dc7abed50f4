"""The storage node: a directory, its partitions, and the procedures it offers for them.

A partition opens with the node if it has files, and otherwise when a session first asks for it. If one does not open, every request for it fails with
the reason, and the other partitions are not affected. The node knows no coordinator and nothing of the cluster but its key: the process that starts
it passes in what else it needs.

Several processes may be one node: a supervisor holds the directory, counts its start and adds space in the control files. Each worker joins it and
touches only what belongs to its own partitions, in the control files too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from uuid import UUID

from waltz_log.background_tasks import BackgroundTask
from waltz_log.coordination.followed import KnownValues
from waltz_log.core.client_ids import CLIENT_ID_MAX
from waltz_log.core.formats.control_format import CONTROL_FILE
from waltz_log.core.metadata import PARTITIONS_MAX
from waltz_log.core.ports import Clock, Disk, Offload, Service
from waltz_log.core.status.latency import Latency
from waltz_log.core.status.storage_statistics import NodeStatistics
from waltz_log.core.topics.sharding import WHOLE, Shard
from waltz_log.errors import (
    ClusterKeyMismatch,
    CorruptData,
    InvalidRequest,
    InvalidSetting,
    NotOwner,
    StorageFailed,
    StorageFull,
    Unavailable,
    WaltzError,
)
from waltz_log.loggers import get_logger
from waltz_log.security.access import AccessControl
from waltz_log.security.certificates import earliest_expiry_s
from waltz_log.storage.base.corruption import Corruption
from waltz_log.storage.base.settings import StorageSettings
from waltz_log.storage.base.space import DiskSpace
from waltz_log.storage.control.client_ids import keep_client_ids
from waltz_log.storage.control.control import ControlFiles
from waltz_log.storage.integrity.peers import PeerReplicas
from waltz_log.storage.integrity.scrub import Scrub
from waltz_log.storage.node.read_access import ReadAccess
from waltz_log.storage.node.served_node import MeasureRoundTrips
from waltz_log.storage.node.service import service_of
from waltz_log.storage.replica.partition_store import PartitionStore, Shared
from waltz_log.storage.replica.range_reads import ReadShare
from waltz_log.storage.replica.shielded_tasks import ShieldedTasks
from waltz_log.storage.replica.writer_memory import WriterMemory
from waltz_log.storage.segments.open_files import OpenFiles
from waltz_log.storage.views.topic_metadata import TopicMetadata
from waltz_log.storage.views.views import Views
from waltz_log.telemetry.tracer import Tracer
from waltz_log.transport.unread import Unread

__all__ = ["StorageNode"]

log = get_logger(__name__)


class StorageNode:
    """Call `create` once for a directory, then `open`, `service`, `close`; a worker calls `join` instead of `open`. `shard`: the partitions it owns;
    `request_growth`: how a worker asks the supervisor for more partitions. `access`: decides what callers may read; None: everything."""

    def __init__(
        self,
        settings: StorageSettings,
        disk: Disk,
        clock: Clock,
        offload: Offload,
        *,
        shard: Shard = WHOLE,
        request_growth: Callable[[int], None] | None = None,
        tracer: Tracer | None = None,
        access: AccessControl | None = None,
    ) -> None:
        self._tracer = tracer
        self.settings = settings
        self._shard = shard
        self._request_growth = request_growth
        self._disk = disk
        self._clock = clock
        self._offload = offload
        self._reads = ReadShare(offload, max(1, settings.disk_threads // 2))
        self._files = OpenFiles(disk, settings.open_files_max)
        self._space = DiskSpace(disk, warn_free_bytes=settings.disk_warn_free_bytes, refuse_free_bytes=settings.disk_refuse_free_bytes)
        self.clock = clock
        self.corruption = Corruption(settings.repair_retry_s, settings.repair_retry_max_s)
        """The segments that are known to be corrupt."""
        self.views = Views(disk, clock, self._reads, settings, self._space, self.corruption.report)
        """The compacted views of topics' partitions."""
        self.topics = TopicMetadata(disk, clock, offload)
        self._control: ControlFiles | None = None
        self._holds = False
        """Whether the directory is held by this process, not by its supervisor."""
        self._control_turn = asyncio.Lock()
        self._write_latency = Latency()
        self._sync_latency = Latency()
        self._memory = WriterMemory(settings.writer_bytes_max)
        self._tasks = ShieldedTasks(lambda error: log.error("opening a partition failed unexpectedly", error=repr(error), exc_info=error))
        self._opening: dict[int, asyncio.Task[PartitionStore]] = {}
        """The partitions that are being opened. An opening goes on if the request that began it is cancelled, because its disk calls do: a second one
        beside it would remove files that the first one has just made."""
        self._partitions: dict[int, PartitionStore] = {}
        self._stopped: dict[int, WaltzError] = {}
        self.access = ReadAccess(access or AccessControl(enforced=False))
        """The readers of each partition, as its owner stated since this node was started."""
        self.unread = Unread(settings.unread_bytes_per_principal)
        """What readers do not read."""
        self.known = KnownValues()
        """What the process knows of the values of the coordinator. The process that starts the node follows them."""
        self.measure_round_trips: MeasureRoundTrips | None = None
        """Set by the process that starts the node, because the node knows no coordinator."""
        self._scrub: Scrub | None = None
        self._scrubbing: list[BackgroundTask] = []

    @staticmethod
    def exists(disk: Disk) -> bool:
        """Whether a node was created in the directory."""
        return disk.exists(CONTROL_FILE)

    @staticmethod
    def create(disk: Disk, clock: Clock, cluster_key: UUID, partitions: int) -> None:
        """Makes the directory that of an empty node of the cluster. Raises `InvalidSetting` if it is one already. Never done implicitly: a node whose
        directory is gone must not return as if it had never held anything."""
        ControlFiles.create(disk, clock, cluster_key, partitions)

    async def open(self, cluster_key: UUID | None = None, partitions: int | None = None, *, starts: int = -1) -> None:
        """Locks the directory and opens what is in it.

        `cluster_key`: another cluster's directory is refused (`ClusterKeyMismatch`). `partitions`: there is space for that many afterwards. `starts`:
        the start counter continues from it if that is more than the directory has. Raises `InvalidSetting` if no node was created here or another
        process holds it."""
        try:
            self._disk.lock()
        except OSError as error:
            raise InvalidSetting(name="directory", reason=f"is in use by another process: {error.strerror}", nearest=None) from None
        try:
            control = await self._offload(ControlFiles.open, self._disk)
            if cluster_key is not None and control.header.cluster_key != cluster_key:
                raise ClusterKeyMismatch(where="the storage directory")
            if partitions is not None:
                await self._offload(control.grow, partitions)
            await self._offload(control.count_start, starts)
        except OSError as error:
            self._disk.unlock()
            raise StorageFailed(partition=-1, reason=f"cannot open the control files: {error}") from None
        except WaltzError:
            self._disk.unlock()
            raise
        self._holds = True
        await self._open_present(control)

    async def join(self, cluster_key: UUID) -> None:
        """As a worker: opens its own partitions in a directory that the supervisor holds, and counts no start. Raises `ClusterKeyMismatch`."""
        try:
            control = await self._offload(ControlFiles.open, self._disk, self._shard.owns)
        except OSError as error:
            raise StorageFailed(partition=-1, reason=f"cannot open the control files: {error}") from None
        if control.header.cluster_key != cluster_key:
            raise ClusterKeyMismatch(where="the storage directory")
        await self._open_present(control)

    async def _open_present(self, control: ControlFiles) -> None:
        self._control = control
        present = set(self._disk.list(""))
        mine = [partition for partition in range(control.header.partitions) if self._shard.owns(partition) and str(partition) in present]
        await asyncio.gather(*(self._open(partition) for partition in mine))
        await self.views.open(self._shard.owns)
        await self.topics.open(self._shard.owns)
        if torn := sorted({partition for partition in control.damaged if self._shard.owns(partition)}):
            advice = "after a crash this is expected; otherwise run `waltz storage verify` and examine the disk"
            log.warning("control file has damaged structs, their other copies are used", partitions=torn, advice=advice)
        log.info("storage node open", name=self.settings.name, start=control.start, partitions=control.header.partitions)

    async def _open(self, partition: int) -> None:
        try:
            await self.partition(partition)
        except WaltzError as error:
            log.error("partition does not open", partition=partition, error=str(error))

    @property
    def control(self) -> ControlFiles:
        if self._control is None:
            raise StorageFailed(partition=-1, reason="the node is not open")
        return self._control

    @property
    def start(self) -> int:
        """How often this directory was started."""
        return self.control.start

    @property
    def cluster_key(self) -> UUID:
        return self.control.header.cluster_key

    async def partition(self, partition: int) -> PartitionStore:
        """The partition's store; opens it if necessary. Raises `InvalidRequest` if there is no such partition, or the reason why it does not open."""
        found = self._partitions.get(partition)
        if found is not None:
            return found
        control = self.control
        if not 0 <= partition < control.header.partitions:
            raise InvalidRequest(reason=f"no such partition partition={partition} partitions={control.header.partitions}")
        if not self._shard.owns(partition):
            raise NotOwner(partition=partition, reason=f"belongs to another worker than {self._shard.worker} of {self._shard.workers}")
        if partition in self._stopped:
            raise self._stopped[partition]
        opening = self._opening.get(partition)
        if opening is None:
            opening = self._opening[partition] = self._tasks.start(self._open_store(partition, control))
            opening.add_done_callback(lambda _: self._opening.pop(partition))
        return await asyncio.shield(opening)

    async def _open_store(self, partition: int, control: ControlFiles) -> PartitionStore:
        shared = Shared(
            self.settings,
            self._files,
            self._clock,
            control,
            self._space,
            self._offload,
            self._reads,
            self._control_turn,
            self._memory,
            self.corruption,
            self._write_latency,
            self._sync_latency,
            self._tracer,
        )
        try:
            found = self._partitions[partition] = await PartitionStore.open(partition, shared)
        except StorageFull:
            raise  # the next request tries again
        except WaltzError as error:
            self._stopped[partition] = error
            raise
        return found

    async def grow_control_file(self, partitions: int) -> None:
        """Adds space for this many partitions, if there was space for fewer. Raises `InvalidRequest` for more than a log can have,
        `StorageFailed`."""
        if partitions <= self.control.header.partitions:
            return
        if partitions > PARTITIONS_MAX:
            raise InvalidRequest(reason=f"a log has {PARTITIONS_MAX} partitions at most, not {partitions}")
        if self._request_growth is not None:
            self._request_growth(partitions)
            raise Unavailable(reason=f"the control file is being extended: partitions={partitions}")
        await self._tasks.whole(self._grow(partitions))

    async def _grow(self, partitions: int) -> None:
        async with self._control_turn:
            if partitions <= self.control.header.partitions:
                return  # added while this call waited
            await self._offload(self.control.grow, partitions)
        log.info("room for more partitions", name=self.settings.name, partitions=partitions)

    async def keep_client_ids(self, last: int) -> int:
        """Keeps the highest client id that a server has reserved, and returns the one that was kept before. Raises `InvalidRequest`,
        `StorageFailed`."""
        if not 0 <= last <= CLIENT_ID_MAX:
            raise InvalidRequest(reason=f"no client id: last={last}")
        return await self._tasks.whole(self._keep_client_ids(last))

    async def _keep_client_ids(self, last: int) -> int:
        async with self._control_turn:
            return await self._offload(keep_client_ids, self._disk, last)

    def service(self) -> Service:
        """The handlers that a network serves for this node."""
        return service_of(self)

    @property
    def full(self) -> bool:
        """Whether appends are refused until there is space on the disk."""
        return self._space.refusing

    def statistics(self) -> NodeStatistics:
        return NodeStatistics(
            name=self.settings.name,
            cluster_key=str(self.cluster_key),
            start=self.start,
            disk_free_bytes=self._disk.free_bytes(),
            open_files=self._files.count,
            disk_total_bytes=self._disk.total_bytes(),
            space=self._space.poll(),
            partitions=tuple(self._partitions[partition].statistics() for partition in sorted(self._partitions)),
            stopped={partition: str(self._stopped[partition]) for partition in sorted(self._stopped)},
            corrupt=tuple(sorted(partition for partition, error in self._stopped.items() if isinstance(error, CorruptData))),
            repairing=tuple(sorted(self.corruption.partitions() & self._partitions.keys())),
            scrub=None if self._scrub is None else self._scrub.statistics(),
            writer_bytes=self._memory.held,
            writer_bytes_highest=self._memory.highest,
            writer_bytes_max=self._memory.bytes_max,
            writable=self._disk.writable(),
            http=self.settings.http.address,
            write_latency=self._write_latency.statistics(),
            sync_latency=self._sync_latency.statistics(),
            time_ms=self._clock.now_ms(),
            certificate_expires_s=earliest_expiry_s(),
            rules=(self.access.control.label,) if self.access.control.enforced else (),
            refused_values=self.known.refused() or None,
            traces=None if self._tracer is None else self._tracer.statistics(),
        )

    def start_scrub(self, peers: PeerReplicas | None) -> Scrub | None:
        """Runs in the background until the node closes: repairs known corruption from peers, and reads stored data again to find more. Returns None,
        without the second part, if the settings disable it."""
        if self._scrub is None:
            settings = self.settings
            self._scrub = Scrub(
                self._open_stores,
                self.views,
                self._reads,
                peers,
                bytes_per_s=settings.scrub_bytes_per_s,
                pause_s=settings.scrub_pause_s,
                corruption=self.corruption,
                repair_bytes_per_s=settings.repair_bytes_per_s,
            )
            work = [self._scrub.run_repairs, *([self._scrub.run] if settings.scrub_bytes_per_s else [])]
            self._scrubbing = [BackgroundTask(f"scrub {each.__name__}", each) for each in work]
        return self._scrub if self.settings.scrub_bytes_per_s else None

    def _open_stores(self) -> list[PartitionStore]:
        return [self._partitions[partition] for partition in sorted(self._partitions)]

    async def close(self) -> None:
        """Writes what is queued and unlocks the directory. Close the listener first."""
        for task in self._scrubbing:
            await task.end()
        await self.views.close()
        await self._tasks.all_ended()
        partitions, self._partitions = self._partitions, {}
        control, self._control = self._control, None
        results: list[object] = await asyncio.gather(*(store.close() for store in partitions.values()), return_exceptions=True)
        for error in results:
            if isinstance(error, BaseException):
                log.error("partition did not close", error=repr(error))
        if control is not None:
            control.close()
        if self._holds:
            self._holds = False
            self._disk.unlock()
