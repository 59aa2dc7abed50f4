"""What runs inside an outbox: one journal and one session with the cluster at a time. Each is recreated when it fails: the session from the ledger,
the ledger from the journal. About a single intent the engine decides only whether it is too old or given up.
"""

from __future__ import annotations

import asyncio
import os

from waltz_log.background_tasks import BackgroundTask
from waltz_log.client.base.belonging import Belonging
from waltz_log.client.base.retry import Backoff
from waltz_log.core.ports import Clock, Disk, Offload
from waltz_log.errors import InvalidRequest, JournalFailed, OutboxFenced, WaltzError
from waltz_log.loggers import get_logger
from waltz_log.outbox.journal_writer import JournalWriter
from waltz_log.outbox.ledger import Entry, Ledger, Outcome, Place
from waltz_log.outbox.reserved_space import ReservedSpace
from waltz_log.outbox.session import OutboxDependencies, Session
from waltz_log.outbox.statistics import STATISTICS_FILE, OutboxStatistics
from waltz_log.outbox.store import open_journal, write_statistics
from waltz_log.outbox.submit_admission import Admission

__all__ = ["Engine"]

log = get_logger(__name__)


class Engine:
    """`start`, then `close` or `abort`. A failure of the journal replaces `ledger` and `writer`: read them again for each change."""

    def __init__(self, disk: Disk, offload: Offload, clock: Clock, dependencies: OutboxDependencies) -> None:
        self.ledger = Ledger()
        self.admission = Admission(dependencies.settings, clock)
        self.reserved_space = ReservedSpace(disk, dependencies.settings.file_bytes)
        self.session: Session | None = None
        self.partitions: int | None = None
        """For the cluster, once it is known."""
        self.submitted = 0
        self._disk = disk
        self._offload = offload
        self._clock = clock
        self._dependencies = dependencies
        self._settings = dependencies.settings
        self._writer: JournalWriter | None = None
        self._belonging: Belonging | None = None
        """From `start` on."""
        self._tasks: list[BackgroundTask] = []
        self._failure: WaltzError | None = None
        self._error = ""
        self._connected = False
        self._closed = False
        self._forwarded = 0
        self._connections = 0
        self._rate = 0.0

    @property
    def started(self) -> bool:
        return self._writer is not None

    @property
    def writer(self) -> JournalWriter:
        """The current writer. Raises the error that keeps the outbox from accepting changes."""
        if self._closed or self._writer is None:
            raise InvalidRequest(reason="the outbox is closed" if self._closed else "the outbox is not started")
        if self._belonging is not None:
            self._belonging.expect_here()
        if self._failure is not None:
            raise self._failure
        return self._writer

    async def start(self) -> None:
        self._belonging = Belonging()
        try:
            await self._open_journal()
        except BaseException:
            self._closed = True
            self._close_offload()
            raise
        self._tasks = [BackgroundTask("waltz outbox", self._keep_journal), BackgroundTask("waltz outbox ticks", self._tick)]

    async def close(self) -> None:
        """Stops forwarding immediately; what is owed stays on disk for the next start. Use `flush` before to wait for it."""
        if self._belonging is not None and self._belonging.ended():
            self._closed = True
            return
        await self._end()
        if self._writer is not None:
            await self._writer.close()
            try:
                await self._offload(write_statistics, self._disk, self.statistics())
                await self._offload(self._journal.close)
            except (WaltzError, OSError) as error:
                log.warning("outbox closed on a failed disk", error=str(error))
        self._close_offload()

    def _close_offload(self) -> None:
        closing = getattr(self._offload, "close", None)
        if closing is not None:
            closing()

    async def abort(self) -> None:
        """Ends like a killed process: nothing more is written. The directory stays locked for this process."""
        await self._end()
        if self._writer is not None:
            await self._writer.abort()

    async def _end(self) -> None:
        self._closed = True
        self.admission.refuse_all(InvalidRequest(reason="the outbox is closed"))
        await asyncio.gather(*(task.end() for task in self._tasks))
        self._fail_all(InvalidRequest(reason="the outbox is closed; the intent stays on disk"))

    def _fail_all(self, error: WaltzError) -> None:
        for entry in self.ledger.entries.values():
            entry.ticket.fail(error)

    # ---- facts -----------------------------------------------------------------------------------------------------------------------------------

    def statistics(self) -> OutboxStatistics:
        ledger, now_ms = self.ledger, self._clock.now_ms()
        oldest = ledger.oldest()
        identity = ledger.identity
        return OutboxStatistics(
            at_ms=now_ms,
            process_id=os.getpid(),
            client_id=None if identity is None else identity.client_id,
            epoch=0 if identity is None else identity.epoch,
            connected=self._connected,
            depth=len(ledger.entries),
            size_bytes=ledger.bytes,
            oldest_age_s=0.0 if oldest is None else max(0.0, (now_ms - oldest.submitted_ms) / 1000),
            in_doubt=ledger.in_doubt,
            dead=len(ledger.dead),
            submitted=self.submitted,
            forwarded=self._forwarded,
            forward_rate=self._rate,
            error=self._error,
            connections=self._connections,
        )

    # ---- reports of sessions ----------------------------------------------------------------------------------------------------------------------

    def connected(self, partitions: int) -> None:
        self.partitions, self._connected = partitions, True
        self._connections += 1
        self._error = ""

    def done(self, entries: list[tuple[Entry, Outcome]]) -> None:
        for entry, outcome in entries:
            if outcome.transaction_id is not None:
                self._forwarded += 1
            entry.ticket.resolve(outcome)
        self.admission.update(self.ledger)

    def give_up(self, entry: Entry, reason: str) -> None:
        if entry.place is Place.GONE or self._writer is None:
            return
        change, attempts, dead = self.ledger.give_up(entry, reason, self._clock.now_ms())
        ledger = self.ledger
        log.warning("intent given up", intent_id=entry.entry_id, partition=entry.intent.partition, handler=entry.intent.handler, reason=reason)
        self._writer.later(change, lambda: ledger.released(attempts))
        entry.ticket.resolve(Outcome(None, dead))
        self.admission.update(ledger)
        if self.session is not None:
            self.session.finished(entry)

    def expired(self, entry: Entry) -> bool:
        """Gives up an intent that is too old to be sent."""
        limit = self._settings.intent_age_max_s
        if limit is None or self._clock.now_ms() - entry.submitted_ms <= 1000 * limit:
            return False
        self.give_up(entry, f"older than {limit:g} s")
        return True

    # ---- tasks -----------------------------------------------------------------------------------------------------------------------------------

    async def _open_journal(self) -> None:
        tickets = {entry.entry_id: entry.ticket for entry in self.ledger.entries.values()}
        self._journal, ledger, changes = await self._offload(
            open_journal, self._disk, self._settings, self._clock.now_ms(), self._dependencies.rng.randbytes
        )
        for entry in ledger.entries.values():
            entry.ticket = tickets.get(entry.entry_id, entry.ticket)
        self.ledger = ledger
        await self._offload(self.reserved_space.reserve)
        self._writer = JournalWriter(self._journal, self._offload, self.reserved_space.release)
        self._writer.start()
        for change in changes:
            self._writer.later(change, lambda: None)
        self.admission.update(ledger)
        self._failure = None

    async def _keep_journal(self) -> None:
        """Forwards. After a failure of the journal, opens it again from disk."""
        backoff = Backoff(self._settings.retry_base_s, self._settings.retry_cap_s, self._dependencies.rng)
        while True:
            assert self._writer is not None
            forwarding = BackgroundTask("waltz outbox forwarding", self._forward)
            try:
                await asyncio.wait([self._writer.failed])
            finally:
                await forwarding.end()
            self._fail(self._writer.failed.result())
            while self._failure is not None:
                await asyncio.sleep(backoff.next_s())
                try:
                    await self._offload(self._journal.close)
                    await self._open_journal()
                except (WaltzError, OSError) as error:
                    self._error = str(error)

    def _fail(self, error: BaseException) -> None:
        log.error("outbox journal failed", error=str(error))
        self._error = str(error)
        self._failure = error if isinstance(error, WaltzError) else JournalFailed(reason=str(error))
        self.admission.refuse_all(self._failure)

    async def _forward(self) -> None:
        """Runs one session after the other, until another copy of the directory forwards."""
        backoff = Backoff(self._settings.retry_base_s, self._settings.retry_cap_s, self._dependencies.rng)
        while True:
            assert self._writer is not None
            began = asyncio.get_running_loop().time()
            self.session = Session(self._dependencies, self.ledger, self._writer, self)
            try:
                await self.session.run()
            except OutboxFenced as error:
                log.error("outbox fenced by a newer epoch", client_id=error.client_id, mine=error.mine, newer=error.newer)
                self._error, self._failure = str(error), error
                self.admission.refuse_all(error)
                self._fail_all(error)
                return
            except (WaltzError, OSError) as error:
                self._error = str(error)
                log.info("outbox session ended", error=str(error))
            except Exception as error:  # a defect of the outbox: report it, and keep forwarding
                self._error = f"defect in the outbox: {type(error).__name__}: {error}"
                log.error("outbox session failed", exc_info=error)
            finally:
                self.session, self._connected = None, False
            if asyncio.get_running_loop().time() - began > self._settings.retry_cap_s:
                backoff.reset()
            await asyncio.sleep(backoff.next_s())

    async def _tick(self) -> None:
        """Gives up intents that are too old, and writes the statistics file."""
        before = self._forwarded
        while True:
            await asyncio.sleep(self._settings.statistics_every_s)
            self._rate = (self._forwarded - before) / self._settings.statistics_every_s
            before = self._forwarded
            self._expire()
            self.admission.update(self.ledger)
            try:
                await self._offload(write_statistics, self._disk, self.statistics())
                if not self.reserved_space.held and self._failure is None:
                    await self._offload(self.reserved_space.reserve)
            except OSError as error:
                log.warning("statistics file not written", file=STATISTICS_FILE, error=str(error))

    def _expire(self) -> None:
        if self._settings.intent_age_max_s is None or self._failure is not None:
            return
        for entry in list(self.ledger.entries.values()):
            if entry.place is not Place.READY or entry.attempt is not None:
                continue
            if not self.expired(entry):
                return
