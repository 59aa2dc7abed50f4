"""A partition that this server owns: opens store sessions, serves the mounted clients, closes (Waltz Server, Partition Object).

`run` lives as long as the ownership. A store session that was fenced is followed by a new one with a higher number while the generation is ours.
Every mount belongs to one store session: when that ends, its clients are sent away with `NotOwner` and mount again.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import aclosing
from functools import partial

from waltz_log.background_tasks import BackgroundTask, end_tasks, outcome_of, start_task
from waltz_log.core.fill_pace import FillPace
from waltz_log.core.hand_over import Stranded
from waltz_log.core.metadata import ClusterParameters
from waltz_log.core.mount_sequences import may_resolve_at
from waltz_log.core.ports import Clock, Coordinator, Network, Receiver
from waltz_log.core.quotas import Meter
from waltz_log.core.recovery import closed_at
from waltz_log.core.status.server_statistics import (
    OpenPartitionStatistics,
    RecoveringPartitionStatistics,
    UpkeepStatistics,
)
from waltz_log.core.topics.access import CLUSTER_PRINCIPAL
from waltz_log.errors import (
    BelongsToTopic,
    Fenced,
    NotAllowed,
    NotOwner,
    OutOfRange,
    PermissionDenied,
    ProtocolViolation,
    QuotaExceeded,
    TopicDeleted,
    WaltzError,
)
from waltz_log.loggers import get_logger
from waltz_log.security.access import AccessControl
from waltz_log.server.base.caches import Caches
from waltz_log.server.base.node_probes import NodeProbes
from waltz_log.server.base.pulse import Pulse
from waltz_log.server.base.quotas import Quotas
from waltz_log.server.base.settings import ServerSettings
from waltz_log.server.base.topics import ServedTopics
from waltz_log.server.base.totals import Totals
from waltz_log.server.mounts.feed import Feed
from waltz_log.server.mounts.feed_frames import PartitionFrames
from waltz_log.server.mounts.mount import Mount, expect_mount
from waltz_log.server.ordering.append_traces import AppendTraces
from waltz_log.server.ordering.handed_locks import read_handed_locks, write_handed_locks
from waltz_log.server.ordering.sequencer import Sequencer
from waltz_log.server.partition.append_task import AppendTask
from waltz_log.server.partition.open_partition import OpenPartition, until_failed
from waltz_log.server.partition.renewal import Renewal
from waltz_log.server.replication.memory import PartitionMemory
from waltz_log.server.replication.store_session import StoreSession
from waltz_log.server.upkeep.upkeep import Upkeep
from waltz_log.telemetry.tracer import Tracer
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.methods import ServedMountStream
from waltz_log.uninterrupted import uninterrupted

__all__ = ["Partition"]

log = get_logger(__name__)

CLIENTS_REMEMBERED_MAX = 10_000
"""How many mount sequences of disconnected clients are kept, to detect a late connection as stale."""


class Partition:
    def __init__(
        self,
        server_id: int,
        partition: int,
        generation: int,
        cluster: ClusterParameters,
        coordinator: Coordinator,
        network: Network,
        clock: Clock,
        settings: ServerSettings,
        caches: Caches,
        topics: ServedTopics,
        probes: NodeProbes,
        owner_secret: bytes,
        fill_pace: FillPace,
        totals: Totals,
        quotas: Quotas,
        access: AccessControl,
        tracer: Tracer | None = None,
    ) -> None:
        self._access = access
        self._totals = totals
        self._quotas = quotas
        self._traces = None if tracer is None else AppendTraces(partition, tracer)
        self._owner_secret = owner_secret
        self._server_id = server_id
        self.partition = partition
        self.generation = generation
        self._cluster = cluster
        self._coordinator = coordinator
        self._network = network
        self._clock = clock
        self._settings = settings
        self._caches = caches
        self._topics = topics
        self._probes = probes
        self._fill_pace = fill_pace
        self._serving: OpenPartition | None = None
        self._store: StoreSession | None = None
        self._changed = Pulse()
        self._clients: OrderedDict[int, int] = OrderedDict()
        self._closing = False
        self._committed = -1
        self._error: str | None = None

    # ---- the life of the partition -------------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled or deposed. A deposed partition stays closed; the assignment will say so soon."""
        pause = self._settings.replica_retry_s
        while not self._closing:
            memory = PartitionMemory(self._caches.transactions)
            shared = (self._cluster, self._coordinator, self._network, self._settings, memory, self._topics, self._probes)
            store = StoreSession(self.partition, self.generation, *shared, self._owner_secret, self._fill_pace, self._totals.replicate)
            self._store = store
            watching = BackgroundTask(f"space of partition {self.partition}", partial(self._watch_space, store))
            began_s = self._totals.now_s()
            try:
                high_water_mark = await store.open()
                self._totals.recovery.observe(self._totals.now_s() - began_s)
                self._totals.sessions += 1
                # After the metadata of this session was written: what was closed by an owner before is closed here too.
                await self._topics.read(latest=True)
                pause = self._settings.replica_retry_s
                await self._serve(store, high_water_mark)
            except Fenced as error:
                self._totals.count_fenced(error.what)
                self._error = str(error)
                if error.what == "generation":
                    log.warning("partition is owned by a newer generation", partition=self.partition, error=str(error))
                    return
            except WaltzError as error:
                self._error = str(error)
                log.warning("partition closed", partition=self.partition, generation=self.generation, error=str(error))
            finally:
                await uninterrupted(_end_session(store, watching))
            await asyncio.sleep(pause)
            pause = min(2 * pause, self._settings.replica_retry_max_s)

    async def _watch_space(self, store: StoreSession) -> None:
        """Wakes mounts that wait for the partition to open when its replicas turn out to be full."""
        while True:
            await store.advanced.wait_for(lambda: store.full)
            self._changed.notify()
            await store.advanced.wait_for(lambda: not store.full)

    async def _serve(self, store: StoreSession, high_water_mark: int) -> None:
        sequencer = Sequencer(
            self.partition,
            self.generation,
            high_water_mark,
            lock_entries_max=self._settings.lock_entries_max,
            record_bytes_max=self._settings.record_bytes_max,
            lock_multiplier=secrets.randbits(64) | 1,
        )
        if closed_at(store.before) == high_water_mark:
            left = await read_handed_locks(self._coordinator, self.partition, store.before.session, high_water_mark)
            if left is not None:
                sequencer.locks.know(left.floor, left.writers)
        last_append_time_ms = await _last_append_time_ms(store, high_water_mark)
        append = AppendTask(store, sequencer, self._clock, self._settings, last_append_time_ms, self._totals, self._traces)
        feed = Feed(store, PartitionFrames(self._caches.frames), self._settings)
        upkeep = Upkeep(store, self._topics, self._clock, self._settings)
        serving = OpenPartition(self.generation, self._settings, store, append, feed, upkeep)
        self._serving, self._error = serving, None
        self._changed.notify()
        tasks = [
            start_task(append.order()),
            start_task(append.settle(serving.committed)),
            start_task(append.settle_received()),
            start_task(serving.sync_for_feeds()),
            start_task(append.answer_due()),
            start_task(append.watch_space()),
            start_task(append.refuse_marks()),
            start_task(Renewal(store, append, self._settings).run()),
            start_task(upkeep.run()),
            start_task(until_failed(store)),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task in done:
                    outcome_of(task)
        finally:
            self._serving = None
            await uninterrupted(self._end_service(serving, tasks))

    async def _end_service(self, serving: OpenPartition, tasks: Sequence[asyncio.Future[None]]) -> None:
        await end_tasks(tasks)
        for mount in list(serving.mounts):
            mount.fail(NotOwner(partition=self.partition, reason="store session ended"))
        serving.append.mount_failed()
        await serving.feed.close()

    async def drain(self, timeout_s: float) -> None:
        """Stops ordering, waits until what is in flight is decided and answered, or the time is over, and records where the session closed."""
        self._closing = True
        self._changed.notify()  # ends the waits for the partition to open
        serving = self._serving
        if serving is None:
            return
        serving.append.moving = True
        try:
            async with asyncio.timeout(timeout_s):
                await serving.decided()
                serving.append.answer_queued(None)
                for mount in list(serving.mounts):
                    await mount.drained()
        except TimeoutError:
            log.warning("partition handed over before all outcomes were sent", partition=self.partition)
        except NotOwner:
            return  # the session ended by itself
        await self._conclude(serving, timeout_s)

    async def _conclude(self, serving: OpenPartition, timeout_s: float) -> None:
        """Records where the session closed. A coordinator that does not answer must not delay the end: without the mark the next owner votes."""
        try:
            async with asyncio.timeout(timeout_s):
                store = serving.store
                if store.idle:
                    await write_handed_locks(self._coordinator, self.partition, store.session, store.committed, serving.append.lock_table)
                if not await store.conclude():
                    log.warning("partition handed over with appends in flight", partition=self.partition)
        except (TimeoutError, WaltzError) as error:
            log.warning("closing mark not recorded", partition=self.partition, error=str(error) or type(error).__name__)

    async def topics_changed(self) -> bool:
        """Ends the mounts of clients that may not continue, and sends the replicas the principals that may read. False: not every replica knows them
        yet."""
        serving = self._serving
        if serving is None:
            return True
        self._send_away(serving)
        return await serving.store.send_topic()

    def access_changed(self) -> None:
        """Ends the mounts of clients that have lost their right to them."""
        if self._serving is not None:
            self._send_away(self._serving)

    def _send_away(self, serving: OpenPartition) -> None:
        """Ends mounts that the catalog, or the rules of access, no longer allow."""
        for mount in list(serving.mounts):
            try:
                self._judge(mount)
            except (BelongsToTopic, NotAllowed, NotOwner, TopicDeleted) as error:
                mount.fail(error)
                serving.append.mount_failed()

    def _judge(self, mount: Mount) -> None:
        """Raises what the catalog and the rules of access have against the mount."""
        self._topics.expect_addressed(self.partition, mount.topic, appends=mount.appends, by_number=mount.topics)
        expect_mount(self._access, self.partition, mount.request, peer=mount.caller)
        if mount.client_id:
            self._topics.expect_allowed(self.partition, "append", mount.principal)
        if mount.feed != pb.FEED_NONE:
            self._topics.expect_allowed(self.partition, "read", mount.principal)

    def lacks_majority(self) -> Stranded | None:
        """What to publish if no majority of the replicas answers, or if blocks in flight have made no progress since the last call; None otherwise.
        Full disks are no reason: another owner would meet the same."""
        store = self._store
        if store is None or self._closing or store.full:
            self._committed = -1
            return None
        stuck = store.window.last_transaction_id > store.committed and store.committed == self._committed
        self._committed = store.committed
        if store.reaches_majority and not stuck:
            return None
        return Stranded(self._server_id, self.generation, store.assigned)

    # ---- calls of clients ------------------------------------------------------------------------------------------------------------------------

    async def mount(self, request: pb.MountRequest, stream: ServedMountStream, version: int, *, foreign: bool = False) -> None:
        """Serves one mounted client, in that protocol version, until it disconnects, is fenced, or the store session ends. `foreign`: the client id
        is another principal's, for which the caller resolves an outcome. Raises `StorageFull` if
        the client wants to append and would wait for space on the replicas, `QuotaExceeded` if its principal mounts too often."""
        serving = await self._open_for_service(appends=bool(request.client_id))
        store = serving.store
        meter = self._meter(request.principal)
        mount = Mount(request, stream, store, serving.feed, self.generation, version, meter, self._caches.unread)
        if store.committed < request.client_high_water_mark <= store.received:
            await serving.decided()  # the client knows the mark from its own receipts; it is on disk soon
        if request.client_high_water_mark > store.committed:
            raise OutOfRange(partition=self.partition, asked=request.client_high_water_mark, first=store.first_transaction_id, last=store.committed)
        # Checked after all waits: before a topic's first append, no client may remain that means another topic.
        self._judge(mount)
        if mount.topic is not None:
            self._send_away(serving)
        if meter is not None:
            meter.charge_mount(asyncio.get_running_loop().time())
        if mount.client_id:
            self._fence_older(serving, mount, foreign=foreign)
        serving.mounts[mount] = None
        if mount.feed != pb.FEED_NONE:
            store.hurry()
        tasks: list[asyncio.Task[None]] = []
        try:
            # Everything this client had in flight over earlier connections is decided first: at "ready" it is in the log or never will be.
            target = await serving.decided_or_full() if mount.client_id else store.committed
            if mount.failed is not None:
                raise mount.failed
            tasks = [start_task(mount.write(target)), start_task(self._receive(serving, mount, stream))]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task in done:
                    outcome_of(task)
        finally:
            serving.mounts.pop(mount, None)
            await end_tasks(tasks)

    def _meter(self, principal: str) -> Meter | None:
        """What the principal's mounts and appends are charged to. Raises `QuotaExceeded` if it mounts too often."""
        found, now_s = self._topics.of(self.partition), asyncio.get_running_loop().time()
        topic = "" if found is None else str(found[0].name)
        meter = None if principal == CLUSTER_PRINCIPAL else self._quotas.meter(principal, topic, now_s)
        refusal = None if meter is None else meter.mount_refusal(now_s)
        if refusal is None:
            return meter
        self._totals.mount_refusals += 1
        raise QuotaExceeded(
            partition=self.partition, quota=refusal.quota, principal=principal, topic=topic, retry_after_s=round(refusal.retry_after_s, 3)
        )

    def _fence_older(self, serving: OpenPartition, mount: Mount, *, foreign: bool) -> None:
        mounted = [other.mount_sequence for other in serving.mounts if other.client_id == mount.client_id]
        newest = max([self._clients.get(mount.client_id, -1), *mounted])  # a connected client may be missing in `_clients`, which is bounded
        if newest >= mount.mount_sequence:
            raise Fenced(what="mount", partition=self.partition, mine=mount.mount_sequence, newer=newest)
        if foreign and not may_resolve_at(mount.mount_sequence, newest):
            raise PermissionDenied(principal=mount.principal or None, operation="mount as", resource="the client id of another principal")
        self._clients[mount.client_id] = mount.mount_sequence
        self._clients.move_to_end(mount.client_id)
        while len(self._clients) > CLIENTS_REMEMBERED_MAX:
            self._clients.popitem(last=False)
        for other in serving.mounts:
            if other.client_id == mount.client_id:
                self._totals.count_fenced("mount")
                mount.last_sequence = max(mount.last_sequence, other.last_sequence)
                other.fail(Fenced(what="mount", partition=self.partition, mine=other.mount_sequence, newer=mount.mount_sequence))
        serving.append.mount_failed()

    async def _receive(self, serving: OpenPartition, mount: Mount, stream: Receiver[pb.ClientMessage]) -> None:
        while (message := await stream.receive()) is not None:
            await mount.wait_for_capacity(self._settings.answers_max)
            kind = message.WhichOneof("kind")
            if kind == "append":
                if not mount.appends or not mount.ready:
                    raise ProtocolViolation(reason="append on a stream that is not mounted for appends")
                await serving.append.submit(mount, message.append)
            elif kind == "flush":
                flush_id = message.flush.flush_id
                mount.flushing()
                serving.append.barrier(lambda mark, flush_id=flush_id: mount.flushed(flush_id, mark))  # type: ignore[misc]
            else:
                raise ProtocolViolation(reason=f"unexpected message on a mounted stream kind={kind}")
        if not mount.client_id:
            # A reader has nothing more to say; it continues to read.
            await asyncio.get_running_loop().create_future()
        await serving.decided()
        serving.append.answer_queued(mount)
        await serving.append.marks_refused()
        await mount.drained()

    async def _open_for_service(self, *, appends: bool = False) -> OpenPartition:
        def full() -> bool:
            return appends and self._serving is None and self._store is not None and self._store.full

        try:
            async with asyncio.timeout(self._settings.mount_wait_s):
                await self._changed.wait_for(lambda: self._serving is not None or self._closing or full())
        except TimeoutError:
            raise NotOwner(partition=self.partition, reason=f"recovering: {self._error or 'waiting for replicas'}") from None
        if full() and not self._closing and self._store is not None:
            raise self._store.storage_full()
        if self._closing or self._serving is None:
            raise NotOwner(partition=self.partition, reason="moving")
        return self._serving

    def bound(self) -> pb.Bound | None:
        """How far the log is committed, as this owner knows it: for readers, an older answer is harmless. None while the partition is opened or
        handed over: the next owner may have committed more, and a reader that has seen its mark must not see a lower one."""
        serving = self._serving
        if serving is None or self._closing:
            return None
        store = serving.store
        return pb.Bound(
            partition=self.partition,
            generation=self.generation,
            session=store.session,
            high_water_mark=store.committed,
            first_transaction_id=store.first_transaction_id,
            low_water_mark=store.resolved,
        )

    def upkeep(self) -> UpkeepStatistics:
        """The last round of upkeep; empty while nothing is served."""
        return UpkeepStatistics() if self._serving is None else self._serving.upkeep.statistics()

    async def closed_bound(self) -> pb.Bound:
        """The bound once no client remains whose appends the catalog refuses now, and all they sent is decided. Confirms that this server is still
        the owner."""
        serving = await self._open_for_service()
        self._send_away(serving)
        await serving.decided()
        await serving.store.confirm()
        found = self.bound()
        if found is None or self._serving is not serving:
            raise NotOwner(partition=self.partition, reason="store session ended")
        return found

    async def resolve(self, request: pb.ResolveRequest) -> pb.ResolveResponse:
        """As `OpenPartition.resolve`, once the partition is open. The time until then counts for the search."""
        began_s = asyncio.get_running_loop().time()
        return await (await self._open_for_service()).resolve(request, began_s)

    async def transactions(self, request: pb.TransactionRequest) -> pb.TransactionResponse:
        """As `OpenPartition.transactions`, once the partition is open."""
        return await (await self._open_for_service()).transactions(request)

    def traces(self, request: pb.TracesRequest) -> pb.TracesResponse:
        """The contexts of traced appends. None is known of those before this server owned the partition."""
        return pb.TracesResponse() if self._traces is None else self._traces.answer(request)

    def statistics(self) -> OpenPartitionStatistics | RecoveringPartitionStatistics:
        serving = self._serving
        if serving is None:
            return RecoveringPartitionStatistics(generation=self.generation, state="recovering", error=self._error)
        return serving.statistics()


async def _end_session(store: StoreSession, watching: BackgroundTask) -> None:
    await watching.end()
    await store.close()


async def _last_append_time_ms(store: StoreSession, high_water_mark: int) -> int:
    """The time of the newest block, below which no later one may be dated."""
    if high_water_mark < store.first_transaction_id:
        return 0
    async with aclosing(store.read(high_water_mark, high_water_mark)) as blocks:
        async for block in blocks:
            return block.append_time_ms
    return 0
