"""A replica session: the owner's side of one replica, from connecting through recovery to the stream of blocks
(Waltz Server, Recovery Procedure, step 5).

A replica that fails is retried with increasing pauses and returns by catching up; it never ends the store session. Only a fence does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import Any

from waltz_log.background_tasks import end_tasks, outcome_of, start_task
from waltz_log.core import metadata as paths
from waltz_log.core.flushing import Flushing
from waltz_log.core.formats.block import Block
from waltz_log.core.node_address import same_node
from waltz_log.core.ports import CallMethod, ReadMethod, Receiver, Request, Response, Stream, StreamMethod
from waltz_log.core.recovery import Classification, ReplicaReport, lost, majority
from waltz_log.core.replica_status import ReplicaStatus
from waltz_log.core.session_states import REPLICA_SESSION, StateMachine
from waltz_log.core.status.server_statistics import ReplicaStatistics
from waltz_log.errors import ConnectionLost, CoordinatorBehind, CorruptData, Fenced, StorageFull, Unavailable, UndeclaredTransition, WaltzError
from waltz_log.loggers import get_logger
from waltz_log.server.base.pulse import Pulse
from waltz_log.server.replication.block_stream import BlockStream
from waltz_log.server.replication.fill import Fill
from waltz_log.server.replication.owner_session import OwnerSession
from waltz_log.server.replication.patience import Patience
from waltz_log.server.replication.replica_calls import ReplicaCalls, flushing_message
from waltz_log.server.replication.replica_reads import ReplicaReads, is_answer
from waltz_log.server.replication.session_recovery import Recovery
from waltz_log.transport import waltz_pb2 as pb

__all__ = ["ReplicaSession"]

log = get_logger(__name__)


class ReplicaSession:
    """`run` belongs to one session number; the connection, and reads over it, outlive it."""

    def __init__(self, store: OwnerSession, name: str) -> None:
        self.name = name
        self.full = False
        """The disk had no space for the last blocks. The replica is not damaged. It is tried again with pauses, as after any failure."""
        self.free_bytes = 0
        """Free bytes on its disk when it refused the last block for lack of space."""
        self._store = store
        self._calls = ReplicaCalls(store, name)
        self.reads = ReplicaReads(store, self._calls)
        self._state = StateMachine(REPLICA_SESSION)
        self._error: str | None = None
        self._classification: Classification | None = None
        self._reached = -1
        self._reported_session: int | None = None
        self._fill: Fill | None = None
        """The progress of a fill, while the replica lacks what others hold. It is kept over several store sessions."""
        self._received = -1
        """The last id of this stream of blocks that the replica has, on disk or in memory."""
        self._acknowledging = Pulse()
        self._lost = False
        """It may have lost what it acknowledged in this session, and has not copied it again yet."""
        self._took_part = False
        """Its acknowledgments counted in this session, so others may have relied on them."""

    # ---- the procedure -------------------------------------------------------------------------------------------------------------------------

    async def run(self, recovery: Recovery) -> None:
        """Until the store session ends."""
        self._recovery = recovery
        self._classification = None
        self._took_part = False
        settings = self._store.settings
        loop = asyncio.get_running_loop()
        pause = settings.replica_retry_s
        while self._store.failed is None:
            began = loop.time()
            try:
                await self._connect()
                next_id = await self._recover()
                await self._replicate(next_id)
            except Fenced as error:
                await self._store.evidence.judge(self.name, error)
                if self._store.failed is not None:
                    return
                self._fail(error)
            except CoordinatorBehind as error:
                found = CoordinatorBehind(partition=error.partition, replica=self.name, recorded=error.recorded, found=error.found)
                await self._store.evidence.close_behind(found)
            except UndeclaredTransition:
                raise  # a defect: trying again would hide it
            except WaltzError as error:
                if self._store.failed is not None:
                    return
                self._fail(error)
            if loop.time() - began > settings.replica_retry_max_s:
                pause = settings.replica_retry_s
            if await self._pause(pause):
                pause = settings.replica_retry_s  # the node answers again: earlier failures do not count
                await self.close()  # gRPC would pause before it connects again
            else:
                pause = min(pause * 2, settings.replica_retry_max_s)

    def _fail(self, error: WaltzError) -> None:
        """Records the failure; the caller tries again."""
        if self._recovery.resolved is None:
            self._recovery.withdraw(self.name)
        self._calls.reached = is_answer(error)
        if isinstance(error, StorageFull):
            self.free_bytes = max(0, error.free_bytes)
        self.full = isinstance(error, StorageFull) or (self.full and isinstance(error, ConnectionLost))
        self._state.move(ReplicaStatus.CORRUPT if self._calls.corrupt else ReplicaStatus.FAILED)
        self._error = str(error)
        self._store.advanced.notify()
        log.warning("replica failed", partition=self._store.partition, replica=self.name, error=str(error))

    async def _pause(self, pause_s: float) -> bool:
        """Waits until the next try. True if the node registered or answered again before the time was over."""
        waits = [start_task(self._store.coordinator.wait_changed(f"{paths.STORAGE_NODES}/{self.name}", self._calls.entry_version))]
        if not self.reached:
            waits.append(start_task(self._store.probes.wait_back(self.name, self._store.partition)))
        deadline = asyncio.get_running_loop().time() + pause_s
        try:
            while waits and (left := deadline - asyncio.get_running_loop().time()) > 0:
                done, _ = await asyncio.wait(waits, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    return False  # timed out, even if rounding leaves some time
                waits = [wait for wait in waits if wait not in done]
                for wait in done:
                    try:
                        outcome_of(wait)
                    except WaltzError:
                        continue  # a coordinator that does not answer wakes no session
                    return True
            await asyncio.sleep(deadline - asyncio.get_running_loop().time())
            return False
        finally:
            await end_tasks(waits)

    async def _connect(self) -> None:
        self._state.move(ReplicaStatus.CONNECTING)
        address = await self._calls.find()
        if self._calls.address is None or not same_node(self._calls.address, address):
            await self.close()
            self._calls.connect(address)

    async def _recover(self) -> int:
        """Brings the replica to the resolved mark, clean, and returns the next id it needs."""
        store, recovery = self._store, self._recovery
        self._state.move(ReplicaStatus.RECOVERING)
        self._calls.stream_epoch += 1
        opened = await self._calls.open_session()
        self._calls.reached = True
        if opened.full and not self.full:
            self.full = True
            store.advanced.notify()
        store.first_transaction_id = max(store.first_transaction_id, opened.first_transaction_id)
        last = opened.last_transaction_id
        # A directory with fewer starts than were recorded is a copy of an earlier state, whatever else it says.
        session = opened.session if opened.start >= self._calls.started else min(opened.session, -1)
        report = ReplicaReport(session, opened.low_water_mark, last, opened.local_low_water_mark, opened.first_transaction_id, opened.grew_as_member)
        if store.evidence.made_clean.get(self.name) != store.session:
            recovery.expect_recorded(self.name, store.session, report)
        self._notice_loss(session, last)
        recovery.inspected(self.name)
        await self._wait_connected(recovery.majority_inspected(), last)
        if not self._lost and session == store.session and recovery.resolved is not None and last >= recovery.resolved:
            # It was clean in this very session before the connection broke: what it holds came from us, in order.
            return await self._take_part(last)
        # Classified once a session: what the replica holds after that came from us, and a broken connection must not make it copy all again.
        found = self._classification
        if found is None:
            found = lost(report) if self._lost else recovery.classify(self.name, report)
            if self._lost and session == store.session:
                # It does not know that it lost something, and would vote with what is left: first it must no longer count as clean.
                last = await self._truncate(last, lost=True)
                self._reported_session = None
            if found.truncate_to is not None:
                # A replica that started at a later id holds nothing below its first id, and all of that is committed.
                to = max(found.truncate_to, opened.first_transaction_id - 1)
                log.info("truncating replica", partition=store.partition, replica=self.name, last=last, to=to)
                last = await self._truncate(to)
            self._classification, self._reached = found, last
        if last < store.first_transaction_id - 1:
            last = self._reached = await self._calls.begin(store.first_transaction_id)
        recovery.report(self.name, last, found, may_lack=opened.may_lack)
        last = await self._copy_until_resolved(last)
        resolved = recovery.resolved
        assert resolved is not None
        await store.decide(recovery)
        if store.resolved != resolved:
            store.resolved_at(resolved)
        # Others may have relied on what it lost: it is clean when it holds all that was committed, not only what the session began with. One whose
        # acknowledgments never counted gets no more than the mark: it may be clean already, and a log that grows before the metadata records the
        # member looks like the work of an owner that the metadata does not know.
        mark = max(resolved, store.committed) if self._lost and self._took_part else resolved
        if last > mark:
            last = await self._truncate(mark)
        if last < mark:
            self._state.move(ReplicaStatus.COPYING)
            # From here on all that it holds and gets is committed, and the metadata says where the old session ended.
            await self._keep_progress(last)
            if last < resolved:
                last = await self._copy_up_to(last, resolved)
            if last < mark:
                last = await self._copy_committed(last, mark)
        recovery.lift(self.name, last)
        store.evidence.made_clean[self.name] = store.session
        self._calls.stream_epoch += 1
        if await self._calls.set_low_water_mark(mark) != last:
            # An earlier call that timed out arrived late. What it truncated must not count.
            raise Unavailable(reason=f"the replica does not hold what was copied to it: copied={last}")
        self._reported_session, self._lost = store.session, False
        return await self._take_part(last)

    async def _take_part(self, last: int) -> int:
        """The replica is clean: waits until the session is open, then its acknowledgments count. Returns the next id it needs."""
        store = self._store
        await self._wait_connected(store.opened_with(self.name, self._recovery), last)
        self._took_part = True
        await store.became_clean(self.name, self._recovery, last)
        return last + 1

    def _notice_loss(self, session: int, last: int) -> None:
        """Detects a loss of data. Within a session a replica's own session only rises and its log only grows, except for what this session truncates.
        A replica that has less was emptied or restored meanwhile: its acknowledgments no longer count, and it is classified again."""
        if (self._reported_session is not None and session < self._reported_session) or last < self._reached:
            log.warning("replica lost data", partition=self._store.partition, replica=self.name, session=session, last=last)
            self._lost, self._classification, self._reached = True, None, -1
            self._store.forget(self.name, self._recovery)
        self._reported_session = session

    async def _copy_until_resolved(self, last: int) -> int:
        """While the mark is undecided, copies from the nearest replica ahead. So two of three replicas can continue without the third."""
        recovery = self._recovery
        while recovery.resolved is None:
            next_source = recovery.next_source(self.name, last, self._store.strained)
            if next_source is None:
                await self._wait_connected(recovery.wait(self.name, last), last)
                continue
            name, reach = next_source
            last = await self._copy_from(name, last, reach)
            recovery.lift(self.name, last)
        return last

    async def _wait_connected(self, wait: Coroutine[Any, Any, None], last: int) -> None:
        """Waits, and checks regularly that the replica still answers and holds what it had. Others copy from it, and waiting for a node that
        restarted at another address would never end."""
        waiting = start_task(wait)
        try:
            while not (await asyncio.wait([waiting], timeout=self._store.settings.replica_retry_max_s))[0]:
                if (await self._calls.open_session()).last_transaction_id != last:
                    raise ConnectionLost(address=self.name, reason="storage node was restarted")
            outcome_of(waiting)
        finally:
            waiting.cancel()

    async def _copy_up_to(self, last: int, target: int) -> int:
        """Copies from replicas that hold the target, until this one does."""
        tried = 0
        while last < target:
            sources = [name for name in self._recovery.source(target, self._store.strained) if name != self.name]
            if not sources:
                raise Unavailable(reason=f"no replica that answers holds transaction {target}")
            source = sources[tried % len(sources)]
            try:
                last = await self._copy_from(source, last, target)
            except (ConnectionLost, CorruptData) as error:
                tried += 1
                if tried >= 2 * len(sources):
                    raise
                log.warning("copy interrupted", partition=self._store.partition, source=source, replica=self.name, error=str(error))
                self._calls.stream_epoch += 1
                last = (await self._calls.open_session()).last_transaction_id
        return last

    async def _copy_committed(self, last: int, target: int) -> int:
        """Copies what was committed in this session, from the replicas that acknowledged it."""
        return await self._copy(self._in_turns(self._store.runs(last + 1, target)), last)

    async def _copy(self, runs: AsyncGenerator[list[Block], None], last: int) -> int:
        """Sends them all and returns the last id that is on the replica's disk then. The stored bytes travel as they are; both nodes verify them."""
        reached = last

        def acknowledged(transaction_id: int) -> None:
            nonlocal reached
            reached = self._reached = transaction_id
            self._acknowledging.notify()

        await (await self._calls.open_stream(acknowledged)).copy(runs)
        return reached

    async def send_topic(self) -> bool:
        """Sends the topic to the node. False if it does not answer. A node that is not connected receives it when it connects."""
        return await self._calls.send_topic()

    async def _copy_from(self, source: str, last: int, target: int) -> int:
        """One pass of copying `last+1 .. target` from a peer through the owner."""
        runs = self._store.source(source).runs(last + 1, target, recovering=True)
        reached = await self._copy(runs if self._recovery.resolved is None else self._in_turns(runs), last)
        if reached == last:
            raise ConnectionLost(address=source, reason=f"nothing to copy above {last}")
        return reached

    # ---- filling ---------------------------------------------------------------------------------------------------------------------------------

    def _filling(self) -> Fill:
        if self._fill is None:
            self._fill = Fill(self._store.partition, self.name, self._store.fill_pace)
        return self._fill

    async def _in_turns(self, runs: AsyncGenerator[list[Block], None]) -> AsyncGenerator[list[Block], None]:
        """The same runs, alternating with the appends. The replica records its progress regularly. All runs are committed, and the metadata records
        it."""
        store, fill = self._store, self._filling()

        def has() -> int:
            # With `quorum_memory` a replica that catches up syncs once in a flush period. A turn that waits for the disk would last that long.
            return self._received if self._state.current is ReplicaStatus.CATCHING_UP else self._reached

        async def acknowledged(transaction_id: int) -> None:
            await self._acknowledging.wait_for(lambda: has() >= transaction_id)

        async with aclosing(fill.in_turns(runs, lambda: store.committed, acknowledged, self._yields)) as turns:
            async for run in turns:
                yield run
                if self._state.current is ReplicaStatus.COPYING and fill.keeps_now:
                    await self._keep_progress(self._reached)

    def _yields(self) -> bool:
        """Whether appends have precedence: not before the session is open, and not while they wait for this replica."""
        return self._store.open_for_appends and len(self._store.live) >= majority(len(self._store.assigned))

    async def _keep_progress(self, reached: int) -> None:
        """Makes the replica keep what it holds and receives up to the resolved mark, which is recorded by now: no session copies that again. For
        readers and votes it remains a replica that lacks the rest."""
        resolved = self._recovery.resolved
        assert resolved is not None
        kept = min(reached, resolved)
        self._filling().kept()
        await self._calls.keep_progress(resolved, kept)

    # ---- the stream of blocks --------------------------------------------------------------------------------------------------------------------

    async def _replicate(self, next_id: int) -> None:
        """Sends blocks as they come, older ones read from a peer, and counts the acknowledgments. Ends only with an error."""
        store = self._store
        self._state.move(ReplicaStatus.LIVE)
        self._error = None
        self._received = next_id - 1

        def acknowledged(transaction_id: int) -> None:
            self._reached = transaction_id
            self._received = max(self._received, transaction_id)
            self.full = False
            if self._fill is not None:
                self._acknowledging.notify()
            store.acknowledge(self.name, transaction_id)

        def received(transaction_id: int) -> None:
            self.full = False
            self._received = transaction_id
            if self._fill is not None:
                self._acknowledging.notify()
            store.receive(self.name, transaction_id)

        stream = await self._calls.open_stream(acknowledged, received)
        # It received everything and may have space again. Only a ping can show that, because refused appends are not sent.
        asking = start_task(self._ask_for_space()) if self.full and next_id > store.window.last_transaction_id else None
        try:
            await stream.run(self._send_on(stream, next_id), forever=True)
        finally:
            if asking is not None:
                await end_tasks([asking])

    async def _ask_for_space(self) -> None:
        """Returns once the replica is not full any more."""
        store = self._store
        while self.full:
            try:
                full = await self._calls.is_full()
            except WaltzError as error:
                log.info("replica not asked for free space", partition=store.partition, replica=self.name, error=str(error))
            else:
                if not full:
                    self.full = False
                    store.advanced.notify()
                    return
            await asyncio.sleep(store.settings.replica_retry_max_s)

    async def _send_on(self, stream: BlockStream, next_id: int) -> None:
        store = self._store
        flushing: Flushing | None = None
        flushed = next_id - 1
        announced = -1

        def has_more() -> bool:
            return store.window.last_transaction_id >= next_id or has_request()

        def has_request() -> bool:
            """Whether to send the node another policy, a request to sync what it has in memory, or what is committed."""
            return (
                store.announcement.mark > announced
                or flushing != store.flushing
                or (flushing is not None and flushed < min(store.wanted, next_id - 1))
            )

        while True:
            if next_id >= store.window.first_transaction_id:
                self._fill = None
            await store.appended.wait_for(has_more)
            if has_request():
                if store.announcement.mark > announced:
                    announced = store.announcement.mark
                    await stream.send_request(pb.ReplicateRequest(committed=announced))
                elif flushing != store.flushing:
                    flushing = store.flushing
                    await stream.send_request(pb.ReplicateRequest(flushing=flushing_message(flushing)))
                else:
                    flushed = next_id - 1
                    await stream.send_request(pb.ReplicateRequest(flush=pb.Flush()))
                continue
            blocks = store.window.blocks_from(next_id, store.window.last_transaction_id, store.settings.feed_bytes_max)
            if blocks:
                await stream.send(blocks)
                next_id = blocks[-1].last_transaction_id + 1
                continue
            self._state.move(ReplicaStatus.CATCHING_UP)
            async with aclosing(self._in_turns(store.runs(next_id, store.window.first_transaction_id - 1))) as runs:
                async for run in runs:
                    await stream.send(run)
                    next_id = run[-1].last_transaction_id + 1
            self._state.move(ReplicaStatus.LIVE)

    # ---- calls -----------------------------------------------------------------------------------------------------------------------------------

    @property
    def status(self) -> ReplicaStatus:
        return ReplicaStatus.FULL if self.full else self._state.current

    @property
    def reached(self) -> bool:
        """Whether the node answered the last call."""
        return self._calls.reached

    @property
    def patience(self) -> Patience:
        return self._calls.patience

    @property
    def live(self) -> bool:
        return self._state.current is ReplicaStatus.LIVE

    async def _truncate(self, last: int, *, lost: bool = False) -> int:
        self._reached = await self._calls.truncate(last, lost=lost)
        return self._reached

    async def ask(self, method: CallMethod[Request, Response], request: Request) -> Response:
        """One call, separate from the stream of blocks."""
        return await self._calls.call(method, request)

    def read(self, method: ReadMethod[Request, Response], request: Request) -> Receiver[Response]:
        """A stream of answers, separate from the stream of blocks. Raises `ConnectionLost` if there is no connection."""
        return self._calls.read(method, request)

    def open(self, method: StreamMethod[Request, Response]) -> Stream[Request, Response]:
        """A stream, separate from the stream of blocks. Raises `ConnectionLost` if there is no connection."""
        return self._calls.open(method)

    async def probe(self) -> None:
        """Asks whether this session is still the newest the replica has seen; `Fenced` if it is not."""
        await self._calls.open_session()

    async def close(self) -> None:
        await self.reads.close()
        await self._calls.close()

    def statistics(self, acknowledged: int | None) -> ReplicaStatistics:
        return ReplicaStatistics(
            state=self.status,
            acknowledged=acknowledged,
            holds=self._reached,
            filling=None if self._fill is None else self._fill.statistics(),
            error=self._error,
            corrupt_reads=self.reads.corrupt_reads,
        )
