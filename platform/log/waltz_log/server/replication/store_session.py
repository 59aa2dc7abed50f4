"""A store session: one owner writing one partition to its replicas (Waltz Server, Store Partition Object, Recovery Procedure).

`open` raises the session number by compare-and-set, recovers, and returns once a majority of the assigned replicas is clean at the resolved mark and
the metadata records it. If the previous session must be voted, its replicas count instead (`core.recovery.opening_replicas`). Blocks that are
appended reach every replica in order; a block is committed when a majority of the *assigned* replicas has it on disk. The session ends only when it
is fenced or closed. While no majority answers, blocks wait, and replicas that return get what they lack. `renew` continues under the next session
number; its callers notice only a pause. If the topic's policy allows it (`flushing`), replicas also acknowledge what they received and sync it later.
`received` is the mark of these acknowledgments; only answers to appends use it.

Invariants: ids are dense; the committed mark never falls; a replica's acknowledgment counts only after the metadata records it as clean.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import replace
from hashlib import blake2b

from waltz_log.background_tasks import TaskSet, is_expected
from waltz_log.coordination.followed import REPLICA_ASSIGNMENT
from waltz_log.coordination.subscribers import read_retained
from waltz_log.core.fill_pace import FillPace
from waltz_log.core.flushing import Flushing
from waltz_log.core.formats.block import Block
from waltz_log.core.metadata import ClusterParameters, PartitionMetadata, ReplicaState
from waltz_log.core.ports import Coordinator, Network
from waltz_log.core.recovery import closed_metadata, decided_metadata, majority, next_metadata, opening_replicas
from waltz_log.core.replica_status import ReplicaStatus
from waltz_log.core.session_states import STORE_SESSION, StateMachine, StoreState
from waltz_log.core.status.latency import Latency
from waltz_log.core.status.server_statistics import ReplicaStatistics
from waltz_log.errors import Fenced, OutOfRange, StorageFull, Unavailable, WaltzError
from waltz_log.loggers import get_logger
from waltz_log.server.base.node_probes import NodeProbes
from waltz_log.server.base.pulse import Pulse
from waltz_log.server.base.settings import ServerSettings
from waltz_log.server.base.topics import ServedTopics
from waltz_log.server.replication.acknowledgments import Acknowledgments
from waltz_log.server.replication.announcement import Announcement
from waltz_log.server.replication.block_stream import Encodings
from waltz_log.server.replication.block_window import BlockWindow
from waltz_log.server.replication.confirmation import confirmed_by_majority
from waltz_log.server.replication.fence_evidence import FenceEvidence
from waltz_log.server.replication.memory import PartitionMemory
from waltz_log.server.replication.owner_session import BlockSource
from waltz_log.server.replication.replica_reads import ReplicaReads
from waltz_log.server.replication.replica_session import ReplicaSession
from waltz_log.server.replication.session_reads import committed_runs
from waltz_log.server.replication.session_record import SessionRecord
from waltz_log.server.replication.session_recovery import Recovery

__all__ = ["StoreSession"]

log = get_logger(__name__)


class StoreSession:
    """Made for one generation of one partition. `failed` is set once with the error that ended it."""

    def __init__(
        self,
        partition: int,
        generation: int,
        cluster: ClusterParameters,
        coordinator: Coordinator,
        network: Network,
        settings: ServerSettings,
        memory: PartitionMemory,
        topics: ServedTopics,
        probes: NodeProbes,
        owner_secret: bytes,
        fill_pace: FillPace,
        replicate_latency: Latency,
    ) -> None:
        self.replicate_latency = replicate_latency
        self._owner_secret = owner_secret
        self.partition = partition
        self.generation = generation
        self.cluster = cluster
        self.network = network
        self.settings = settings
        self.coordinator = coordinator
        self.topics = topics
        self.probes = probes
        self.fill_pace = fill_pace
        self.session = -1
        self.assigned: tuple[str, ...] = ()
        self.resolved = -1
        self.memory = memory
        self.committed = -1
        self.received = -1
        """A majority of the assigned replicas has received everything up to here. Maintained if the topic's policy uses it."""
        self.wanted = -1
        """Up to here a client waits for the data to be on disk."""
        self.first_transaction_id = 0
        self.checkpoint_due = False
        """Retention waits for a higher low-water mark, which a new session sets."""
        self.encodings = Encodings()
        self.appended = Pulse()
        """Notified when a block was appended, for the replica tasks."""
        self.advanced = Pulse()
        """The committed mark rose, a replica's state changed, or the session failed."""
        self.announcement = Announcement(lambda: self.committed, self.appended.notify)
        self.failed: WaltzError | None = None
        self.before = PartitionMetadata(generation, -1, {})
        """The metadata that the opening found."""
        self._recorded = SessionRecord(partition, generation, coordinator)
        self.evidence = FenceEvidence(self, self._recorded)
        self._acknowledgments = Acknowledgments()
        self._flushing: Flushing | None = None
        self._flushing_of: int | None = None
        self._replicas: dict[str, ReplicaSession] = {}
        self._recovery: Recovery | None = None
        self._learners: dict[str, asyncio.Task[None]] = {}
        """Replicas that are filled before they are assigned: they follow like the others, and nothing they acknowledge counts."""
        self._tasks = TaskSet(self._replica_failed)
        self._state = StateMachine(STORE_SESSION)

    @property
    def owner_token(self) -> bytes:
        """Proves to storage nodes that a read comes from the server that opened this session: 16 bytes that cannot be computed without the server's
        secret."""
        return blake2b(b"%d %d" % (self.partition, self.session), key=self._owner_secret, digest_size=16).digest()

    # ---- opening -------------------------------------------------------------------------------------------------------------------------------

    async def open(self) -> int:
        """Recovers, and returns the high-water mark of the sessions before. Waits as long as the mark is undecidable. Raises `Fenced` if another
        owner was faster."""
        log.info("opening store session", partition=self.partition, generation=self.generation)
        # 1. new session id, by compare-and-set
        before = self.before = await self._recorded.begin()
        self.session = self._recorded.current.session
        self.first_transaction_id = (await read_retained(self.coordinator, self.partition, self.probes.known)).first
        await self._establish(before, opening_replicas(before, await self.wanted_replicas()))
        log.info("store session open", partition=self.partition, session=self.session, high_water_mark=self.committed)
        return self.committed

    async def wanted_replicas(self) -> tuple[str, ...]:
        """The replicas assigned now. Raises `Unavailable` if there are none."""
        node = await self.probes.known.get(self.coordinator, REPLICA_ASSIGNMENT)
        assigned = self.probes.known.expect(REPLICA_ASSIGNMENT, node)
        found = assigned.replicas.get(self.partition, ())
        if not found:
            raise Unavailable(reason=f"no replicas are assigned partition={self.partition}")
        return found

    async def _establish(self, before: PartitionMetadata, assigned: tuple[str, ...]) -> None:
        # 2.-4. a replica session for every assigned replica; each recovers by itself and meets the others in `session_recovery`
        self.assigned = assigned
        self.evidence.begin()
        recovery = self._recovery = Recovery(self.partition, before, assigned)
        for name in sorted(self._replicas.keys() - set(assigned)):
            await self._replicas.pop(name).close()
        self._tasks.start(self._lose_patience(recovery))
        for name in assigned:
            replica = self._replicas.setdefault(name, ReplicaSession(self, name))
            self._tasks.start(replica.run(recovery))
        # 5. each replica truncates, copies and becomes clean; a majority of them opens the session
        await self.advanced.wait_for(lambda: self.failed is not None or len(recovery.clean) >= majority(len(self.assigned)))
        self._raise_if_failed()
        assert recovery.resolved is not None
        # 6. the metadata says who is clean
        await self._record(recovery)
        self._raise_if_failed()  # it may have ended while the metadata was written
        self._state.move(StoreState.OPEN)
        self.advanced.notify()

    async def _lose_patience(self, recovery: Recovery) -> None:
        """Waits a limited time for absent replicas that may hold what others lost from memory."""
        await recovery.changed.wait_for(lambda: recovery.waits or recovery.resolved is not None)
        if recovery.resolved is None:
            log.warning("waiting for absent replicas after a loss of memory", partition=self.partition)
            await asyncio.sleep(self.settings.memory_wait_s)
            recovery.lose_patience()

    async def decide(self, recovery: Recovery) -> None:
        """Returns once the metadata records the mark that the recovery decided. Replicas receive it only afterwards, because a replica is never
        truncated below a mark that it received."""
        mark = recovery.resolved
        assert mark is not None
        async with self._recorded.turn:
            await self.write_metadata(decided_metadata(self._recorded.current, recovery.source(mark), mark))

    def resolved_at(self, high_water_mark: int) -> None:
        """The recovery decided the mark: the log continues from here."""
        self.resolved = self.committed = high_water_mark
        if self.window.last_transaction_id != high_water_mark:
            assert not self._state.current.renewing, "a session that was closed in order goes on where it closed"
            self.memory.begin(high_water_mark)
        self.announcement.committed_rose()
        self.advanced.notify()

    async def opened_with(self, name: str, recovery: Recovery) -> None:
        """A replica holds everything up to the resolved mark. Returns once a majority does."""
        recovery.clean.add(name)
        self.advanced.notify()
        await self.advanced.wait_for(lambda: self._state.current.opened or self.failed is not None)
        self._raise_if_failed()

    async def became_clean(self, name: str, recovery: Recovery, last_transaction_id: int) -> None:
        """Returns once the metadata records the replica as clean and its acknowledgments count."""
        await self._record(recovery)
        self._acknowledgments.forget_memory(name)
        self.acknowledge(name, last_transaction_id)
        self.advanced.notify()  # the replica can be read from now

    def forget(self, name: str, recovery: Recovery) -> None:
        """A replica lost its data: its acknowledgments do not count until it is clean again."""
        recovery.clean.discard(name)
        self._acknowledgments.forget(name)

    async def _record(self, recovery: Recovery) -> None:
        """Writes the replicas' states, if they changed."""
        assert recovery.resolved is not None
        async with self._recorded.turn:
            await self.write_metadata(next_metadata(self._recorded.current, self.assigned, recovery.clean, recovery.resolved))

    async def write_metadata(self, wanted: PartitionMetadata) -> None:
        """Records the metadata, within the turn of `_recorded`. Raises `Fenced` if another process wrote: the session is over then."""
        recorded = self._recorded.current
        if recorded.newer_session is not None or recorded.session > self.session:
            self._raise_if_failed()  # it was closed here, or left for a session above a fence
        try:
            await self._recorded.write(wanted, self.session)
        except Fenced as error:
            self.fail(error)
            raise

    @property
    def window(self) -> BlockWindow:
        """The newest blocks; what is not committed is among them."""
        return self.memory.window

    # ---- appending -----------------------------------------------------------------------------------------------------------------------------

    def append(self, block: Block) -> None:
        """Enqueues a block for all replicas. The caller bounds how many are in flight."""
        self._raise_if_failed()
        assert self._state.current is StoreState.OPEN, "between two sessions nothing is appended"
        self.memory.append(block)
        self.fill_pace.appended += block.count
        self.appended.notify()

    @property
    def open_for_appends(self) -> bool:
        return self._state.current.opened

    @property
    def reached(self) -> frozenset[str]:
        """The replicas whose nodes answered the last call."""
        return frozenset(name for name, replica in self._replicas.items() if replica.reached)

    @property
    def reaches_majority(self) -> bool:
        """Whether a majority of the replicas answered when they were asked last; so it counts before any is known."""
        return not self.assigned or sum(replica.reached for replica in self._replicas.values()) >= majority(len(self.assigned))

    @property
    def full(self) -> bool:
        """Whether so many replicas are full that an append cannot be committed before one has space again."""
        return bool(self.assigned) and len(self.assigned) - len(self._full()) < majority(len(self.assigned))

    def _full(self) -> list[ReplicaSession]:
        return [replica for name, replica in sorted(self._replicas.items()) if replica.full and name in self.assigned]

    def storage_full(self) -> StorageFull:
        """The error for clients while `full`."""
        found = self._full()
        reason = f"no majority of the replicas has room: full={','.join(replica.name for replica in found)}"
        return StorageFull(partition=self.partition, reason=reason, free_bytes=min((replica.free_bytes for replica in found), default=0))

    def acknowledge(self, name: str, last_transaction_id: int) -> None:
        """A clean replica has everything up to the id on disk."""
        if name not in self.assigned:
            self._acknowledgments.learned(name, last_transaction_id)
            return
        mark = self._acknowledgments.synced(name, last_transaction_id, len(self.assigned))
        if mark is not None and mark > self.committed:
            self.committed = min(mark, self.window.last_transaction_id)
            self.memory.committed(self.committed)
            self.announcement.committed_rose()
            self.advanced.notify()

    def receive(self, name: str, transaction_id: int) -> None:
        """A clean replica has everything up to the id in memory, and will sync it."""
        if name not in self.assigned:
            return
        mark = self._acknowledgments.received(name, transaction_id, len(self.assigned))
        if mark is not None and mark > self.received:
            self.received = min(mark, self.window.last_transaction_id)
            self.advanced.notify()

    @property
    def flushing(self) -> Flushing | None:
        """When replicas sync what they acknowledged from memory; None: they sync first."""
        if self._flushing_of != self.topics.version:
            found = self.topics.of(self.partition)
            policies = None if found is None else found[0].policies
            in_memory = policies is not None and policies.durability == "quorum_memory"
            self._flushing = Flushing(policies.flush_period_ms / 1000, policies.flush_bytes) if policies is not None and in_memory else None
            self._flushing_of = self.topics.version
        return self._flushing

    def hurry(self) -> None:
        """Requests a sync of everything that was appended, without waiting for the period to end."""
        if self.received > self.committed or self.flushing is not None:
            self.wanted = self.window.last_transaction_id
            self.appended.notify()

    async def wait_committed(self, transaction_id: int) -> None:
        """Returns when the id is committed. Raises the error that ended the session; the outcome is unknown then."""
        await self.advanced.wait_for(lambda: self.committed >= transaction_id or self.failed is not None)
        if self.committed < transaction_id:
            self._raise_if_failed()

    async def confirm(self) -> None:
        """Returns once a majority of the assigned replicas confirmed, after this call began, that no newer session has fenced this one."""
        while not await confirmed_by_majority(self, [replica for name, replica in self._replicas.items() if name in self.assigned]):
            await asyncio.sleep(self.settings.replica_retry_s)

    # ---- reading -------------------------------------------------------------------------------------------------------------------------------

    async def read(self, first: int, last: int, *, headers_only: bool = False) -> AsyncGenerator[Block, None]:
        """As `runs`, block by block."""
        async with aclosing(self.runs(first, last, headers_only=headers_only)) as runs:
            async for run in runs:
                for block in run:
                    yield block

    def runs(self, first: int, last: int, *, headers_only: bool = False) -> AsyncGenerator[list[Block], None]:
        """Committed records from any replica of this session, in runs of blocks, as `committed_runs`."""
        return committed_runs(self, first, last, headers_only=headers_only)

    async def sources(self, transaction_id: int) -> list[ReplicaReads]:
        """Replicas that have the id on disk, quick, living and idle ones first; waits until there is one. Raises what ended the session."""
        holding = self._acknowledgments.holding
        while not (found := holding(transaction_id)):
            await self.advanced.wait_for(lambda: self.failed is not None or bool(holding(transaction_id)))
            self._raise_if_failed()
        replicas = sorted(
            (self._replicas[name] for name in found),
            key=lambda replica: (replica.patience.strained, not replica.live, replica.reads.current, replica.name),
        )
        return [replica.reads for replica in replicas]

    def source(self, name: str) -> ReplicaReads:
        return self._replicas[name].reads

    def follows(self, reads: BlockSource) -> bool:
        """Whether they are the reads of a replica that this session has now."""
        return self.failed is None and any(replica.reads is reads for replica in self._replicas.values())

    def replica(self, name: str) -> ReplicaSession:
        return self._replicas[name]

    def members(self) -> list[ReplicaSession]:
        """Replicas that are clean in this session, as the metadata records."""
        return [self._replicas[name] for name in sorted(self._acknowledgments.on_disk)]

    def expect_retained(self, transaction_id: int) -> None:
        """Raises `OutOfRange`, with both bounds, for what was trimmed."""
        if transaction_id < self.first_transaction_id:
            raise OutOfRange(partition=self.partition, asked=transaction_id, first=self.first_transaction_id, last=self.committed)

    async def send_topic(self) -> bool:
        """Sends replicas the topic of the partition and its sync policy, if they changed. False if one does not answer."""
        self.appended.notify()
        return all(await asyncio.gather(*(replica.send_topic() for replica in list(self._replicas.values()))))

    # ---- the next session of the same owner ------------------------------------------------------------------------------------------------------

    @property
    def live(self) -> frozenset[str]:
        """The replicas that follow closely."""
        return frozenset(name for name, replica in self._replicas.items() if replica.live)

    @property
    def strained(self) -> frozenset[str]:
        """The replicas that were late lately, and are read last."""
        return frozenset(name for name, replica in self._replicas.items() if replica.patience.strained)

    async def fill(self, names: frozenset[str]) -> None:
        """Fills these replicas in addition to those assigned, and no others: their acknowledgments do not count until `renew` continues with
        them."""
        for name in sorted(self._learners.keys() - names):
            task = self._learners.pop(name)
            await self._tasks.end_one(task)
            self._acknowledgments.forget(name)
            if self._recovery is not None:
                self._recovery.withdraw(name)
            await self._replicas.pop(name).close()
        for name in sorted(names - self._replicas.keys()):
            assert self._recovery is not None, "the session is open"
            replica = self._replicas[name] = ReplicaSession(self, name)
            self._learners[name] = self._tasks.start(replica.run(self._recovery))

    @property
    def filling(self) -> bool:
        return bool(self._learners)

    def nearly_filled(self, names: Iterable[str]) -> frozenset[str]:
        """Which of those being filled lack at most what is in this owner's memory."""
        following = [name for name in names if name in self._learners and self._replicas[name].live]
        return frozenset(self._acknowledgments.learners_holding(following, self.window.first_transaction_id - 1))

    def _filled(self) -> list[str]:
        """Those being filled that said they have everything on disk."""
        return sorted(self._acknowledgments.learners_holding(self._learners, self.window.last_transaction_id))

    async def renew(self, assigned: tuple[str, ...]) -> bool:
        """Closes the session in order and continues in the next one, over `assigned`. Blocks in memory, reads and mounts stay. The caller must not
        append meanwhile. Returns False, without a change, if the session is not idle or no majority of `assigned` could continue at once. Raises the
        error that ended the session: then the next owner finds its mark."""
        if not self.idle:
            return False
        # Once the session is closed a majority of `assigned` must hold its end. Otherwise the next session could not open without the replicas that
        # it replaces.
        filled = [name for name in self._filled() if name in assigned]
        if len(self.live.intersection(self.assigned, assigned)) + len(filled) < majority(len(assigned)):
            return False
        began = asyncio.get_running_loop().time()
        self._state.move(StoreState.CLOSING)
        try:
            await self._end_replica_sessions()
            async with self._recorded.turn:
                closed = closed_metadata(self._recorded.current, self._complete(), self.committed)
                members = closed.replicas | {name: ReplicaState(self.session, self.committed) for name in filled}
                closed = PartitionMetadata(self.generation, self.session + 1, members)
                await self.write_metadata(closed)
            self._raise_if_failed()
            self._state.move(StoreState.REOPENING)
            self.session += 1
            self._acknowledgments.clear()
            await self._establish(closed, assigned)
        except WaltzError as error:
            self.fail(error)  # it may be closed in the metadata: nothing may be appended to it any more
            raise
        took_ms = round(1000 * (asyncio.get_running_loop().time() - began), 1)
        log.info("store session renewed", partition=self.partition, session=self.session, high_water_mark=self.committed, took_ms=took_ms)
        return True

    # ---- ending --------------------------------------------------------------------------------------------------------------------------------

    def fail(self, error: WaltzError) -> None:
        """Ends the session; the first reason stays."""
        if self.failed is None:
            log.warning("store session ended", partition=self.partition, session=self.session, error=str(error))
            self._end(error)

    def fenced(self, error: Fenced) -> None:
        """A replica has seen a newer session. Ends this one unless that is our own next one."""
        if error.newer > self.session:
            self.fail(error)

    def _end(self, error: WaltzError) -> None:
        if self.failed is None:
            self._state.move(StoreState.ENDED)
            self.failed = error
            self.announcement.close()
            self.appended.fail(error)
            self.advanced.notify()

    def _raise_if_failed(self) -> None:
        if self.failed is not None:
            raise self.failed

    def _replica_failed(self, error: BaseException) -> None:
        if is_expected(error):
            log.warning("replica session ended", partition=self.partition, error=str(error))
        else:
            log.error("replica session failed unexpectedly", partition=self.partition, error=repr(error), exc_info=error)
        self.fail(error if isinstance(error, WaltzError) else Unavailable(reason=f"unexpected error in the replica session: {error!r}"))

    @property
    def idle(self) -> bool:
        """Open, nothing in flight, and a majority known to hold it all."""
        return self._state.current is StoreState.OPEN and len(self._complete()) >= majority(len(self.assigned))

    def _complete(self) -> list[str]:
        """Replicas that said they have everything on disk."""
        return sorted(self._acknowledgments.holding(self.window.last_transaction_id))

    async def conclude(self) -> bool:
        """Ends an idle session and records where it closed, so that the next one needs no vote. False if it is not idle: then the next session finds
        the mark by a vote. Raises `Fenced`."""
        if not self.idle:
            return False
        # First stop appends, then write the mark. In the other order a block could be committed above the mark.
        self._end(Unavailable(reason=f"store session closed partition={self.partition} session={self.session}"))
        async with self._recorded.turn:
            await self.write_metadata(closed_metadata(self._recorded.current, self._complete(), self.committed))
        log.info("store session closed in order", partition=self.partition, session=self.session, high_water_mark=self.committed)
        return True

    async def close(self) -> None:
        """Ends every replica session. What is in flight stays undecided; the next session decides it."""
        self._end(Unavailable(reason=f"store session closed partition={self.partition} session={self.session}"))
        await self._end_replica_sessions()
        for replica in self._replicas.values():
            await replica.close()
        self.memory.close()

    async def _end_replica_sessions(self) -> None:
        tasks, self._tasks, self._learners = self._tasks, TaskSet(self._replica_failed), {}
        await tasks.end()

    def replica_statistics(self) -> dict[str, ReplicaStatistics]:
        """By the name of the replica's storage node."""
        return {name: self._replica_statistics(name, replica) for name, replica in self._replicas.items()}

    def _replica_statistics(self, name: str, replica: ReplicaSession) -> ReplicaStatistics:
        found = replica.statistics(self._acknowledgments.on_disk.get(name))
        if name not in self._learners:
            return found
        return replace(found, counts=False, state=ReplicaStatus.COPYING if found.state.follows else found.state)
