"""The outbox: `submit` returns when the intents are on the local disk; each is appended to the log exactly once, whenever the log is there.

One journal, one session with the cluster at a time. Both are made again when they fail: the session from the ledger, the ledger from the journal.
An intent is acknowledged only by a sync that succeeded, and leaves the journal only when the log has it or it became a dead letter.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self, TypeVar

import structlog

from waltz_log.client.follow import Apply
from waltz_log.client.outbox.ballast import Ballast
from waltz_log.client.outbox.calls import Handler
from waltz_log.client.outbox.intent import Intent
from waltz_log.client.outbox.ledger import ENTRY_OVERHEAD_BYTES, Change, DeadLetter, Entry, Ledger, Outcome, Place
from waltz_log.client.outbox.receipt import IntentReceipt
from waltz_log.client.outbox.room import Room
from waltz_log.client.outbox.session import Followed, Session, Surroundings
from waltz_log.client.outbox.settings import OutboxSettings
from waltz_log.client.outbox.statistics import STATISTICS_FILE, OutboxStatistics
from waltz_log.client.outbox.store import open_journal, write_statistics
from waltz_log.client.outbox.writer import JournalWriter
from waltz_log.client.owners import ConnectCoordinator
from waltz_log.client.retry import Backoff
from waltz_log.client.settings import ClientSettings
from waltz_log.core.ports import Clock, Coordinator, Disk, Network, Offload
from waltz_log.errors import InvalidRequest, JournalFailed, JournalFull, OutboxFull, OutboxTaken, TransactionTooLarge, WaltzError

__all__ = ["Outbox"]

log = structlog.get_logger(__name__)

H = TypeVar("H", bound=Handler)


class Outbox:
    """`async with Outbox.open(directory, "host:port/root") as outbox:`. Belongs to one event loop; its directory to one process."""

    def __init__(
        self,
        disk: Disk,
        offload: Offload,
        clock: Clock,
        connect: ConnectCoordinator,
        network: Network,
        settings: OutboxSettings | None = None,
        client_settings: ClientSettings | None = None,
        *,
        rng: random.Random | None = None,
    ) -> None:
        """Over any disk, coordinator and network; `start` it, and `close` it."""
        self._disk = disk
        self._offload = offload
        self._clock = clock
        self._settings = settings or OutboxSettings()
        self._handlers: dict[str, Handler] = {}
        self._followed: dict[int, Followed] = {}
        chosen = client_settings or ClientSettings()
        self._given = Surroundings(connect, network, chosen, self._settings, self._handlers, self._followed, rng or random.Random())
        self._ledger = Ledger()
        self._writer: JournalWriter | None = None
        self._session: Session | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._room = Room(self._settings, clock)
        self._ballast = Ballast(disk, self._settings.file_bytes)
        self._failure: BaseException | None = None
        self._error = ""
        self._connected = False
        self._partitions: int | None = None
        self._closed = False
        self._submitted = self._forwarded = 0
        self._rate = 0.0

    # ---- making and closing ----------------------------------------------------------------------------------------------------------------------

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        directory: Path | str,
        cluster: str,
        settings: OutboxSettings | None = None,
        client_settings: ClientSettings | None = None,
        *,
        prepare: Callable[[Self], None] | None = None,
    ) -> AsyncIterator[Self]:
        """The outbox in a directory, which needs no cluster to start; `prepare` registers handlers and followers before anything runs. Raises
        `InvalidRequest` where another process holds the directory."""
        self = cls.over(directory, cluster, settings, client_settings)
        if prepare is not None:
            prepare(self)
        async with self:
            yield self

    @classmethod
    def over(cls, directory: Path | str, cluster: str, settings: OutboxSettings | None = None, client_settings: ClientSettings | None = None) -> Self:
        """Made, not started: for who registers handlers first. Use it as a context manager, or `start` and `close` it."""
        from waltz_log.filesystem import FileSystemDisk, ThreadOffload
        from waltz_log.rpc.network import GrpcNetwork
        from waltz_log.zookeeper.coordinator import ZooKeeperCoordinator

        chosen = client_settings or ClientSettings()

        async def coordinator() -> Coordinator:
            return await ZooKeeperCoordinator.connect(cluster, session_timeout_s=chosen.session_timeout_s, timeout_s=chosen.connect_timeout_s)

        return cls(FileSystemDisk(Path(directory)), ThreadOffload(1), _WallClock(), coordinator, GrpcNetwork(), settings, chosen)

    def handler(self, name: str) -> Callable[[H], H]:
        """Registers a function for `Intent.call(name, ...)`: `handler(tx, arguments)` appends through `tx`."""

        def register(function: H) -> H:
            if name in self._handlers:
                raise InvalidRequest(reason=f"two handlers of one name: {name}")
            self._handlers[name] = function
            return function

        return register

    def follow(self, partition: int, apply: Apply, after: int = -1) -> None:
        """Feeds the partition to `apply` whenever the log is there. Handlers of the partition run on the state it built. Before `start`."""
        if self._writer is not None:
            raise InvalidRequest(reason="followers are registered before the outbox starts")
        self._followed[partition] = Followed(partition, apply, after)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Reads the journal. Returns without having met the cluster."""
        await self._open_journal()
        self._tasks = [
            asyncio.create_task(self._keep_journal(), name="waltz outbox"),
            asyncio.create_task(self._tick(), name="waltz outbox statistics"),
        ]

    async def close(self) -> None:
        """Stops forwarding at once; what is owed stays on disk for the next start. Use `flush` before to wait for it."""
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
        """Ends as a killed process does: nothing more is written. The directory stays locked for this process."""
        await self._end()
        if self._writer is not None:
            await self._writer.abort()

    async def _end(self) -> None:
        self._closed = True
        self._room.refuse_all(InvalidRequest(reason="the outbox is closed"))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tell_all(InvalidRequest(reason="the outbox is closed; the intent stays on disk"))

    def _tell_all(self, error: WaltzError) -> None:
        for entry in self._ledger.entries.values():
            entry.ticket.fail(error)

    # ---- submitting ------------------------------------------------------------------------------------------------------------------------------

    async def submit(self, intents: Intent | Sequence[Intent], timeout_s: float | None = None) -> list[IntentReceipt]:
        """Returns when all of them are on the local disk, all or none whatever happens, for whatever partitions. Concurrent submits share a sync.

        Raises `OutboxFull`: nothing was taken; `InvalidRequest`, `TransactionTooLarge`: nothing ever will be; `OutboxTaken`: another copy of the
        directory forwards now; `JournalFailed`: not acknowledged, and only the next opening knows whether it is on disk."""
        wanted = [intents] if isinstance(intents, Intent) else list(intents)
        if not wanted:
            return []
        size = self._check(wanted)
        await self._room.take(size, self._settings.submit_timeout_s if timeout_s is None else timeout_s)
        try:
            self._check_open()
            if not self._ballast.there:
                raise OutboxFull(bytes=self._ledger.bytes, reason="the disk is full")
            ledger, writer = self._ledger, self._writer
            assert writer is not None
            entries, change = ledger.submit(wanted, self._clock.now_ms())

            def admit() -> None:
                for entry in entries:
                    ledger.admit(entry)
                self._submitted += len(entries)
                self._room.hold(ledger)
                if self._session is not None:
                    self._session.arrive(entries)

            await writer.write(change, admit)
        except JournalFull as error:
            raise OutboxFull(bytes=self._ledger.bytes, reason=f"the disk is full: {error.reason}") from None
        finally:
            self._room.give_back(size)
        return [IntentReceipt(entry.entry_id, entry.intent.partition, entry.ticket) for entry in entries]

    def _check(self, intents: list[Intent]) -> int:
        self._check_open()
        size = 0
        for intent in intents:
            if self._partitions is not None and intent.partition >= self._partitions:
                raise InvalidRequest(reason=f"no such partition: partition={intent.partition} partitions={self._partitions}")
            if len(intent.payload) > self._given.client_settings.record_bytes_max:
                raise TransactionTooLarge(what="data", size=len(intent.payload), limit=self._given.client_settings.record_bytes_max)
            if intent.handler and self._handlers and intent.handler not in self._handlers:
                raise InvalidRequest(reason=f"no handler of this name: {intent.handler}")
            size += len(intent.payload) + 2 * ENTRY_OVERHEAD_BYTES
        return size

    def _check_open(self) -> None:
        if self._closed or self._writer is None:
            raise InvalidRequest(reason="the outbox is closed" if self._closed else "the outbox is not started")
        if self._failure is not None:
            raise self._failure

    async def flush(self) -> None:
        """Returns when nothing is owed."""
        while self._ledger.entries:
            entry = next(reversed(self._ledger.entries.values()))
            await IntentReceipt(entry.entry_id, entry.intent.partition, entry.ticket).outcome()

    # ---- dead letters ------------------------------------------------------------------------------------------------------------------------------

    def dead_letters(self) -> list[DeadLetter]:
        """The intents that were given up, oldest first."""
        return list(self._ledger.dead.values())

    async def resubmit(self, dead_id: int, intent: Intent | None = None) -> IntentReceipt:
        """Takes a dead letter back as a new intent, edited where `intent` is given; atomically."""
        self._check_open()
        writer, dead = self._writer, self._dead(dead_id)
        assert writer is not None
        again = intent or dead.intent
        if again is None:
            raise InvalidRequest(reason=f"this dead letter cannot be read, and needs an intent in its place: dead_id={dead_id}")
        self._check([again])
        ledger = self._ledger
        (entry,), change = ledger.submit([again], self._clock.now_ms())
        change.deletes += ledger.forget(dead).deletes

        def admit() -> None:
            ledger.admit(entry)
            if self._session is not None:
                self._session.arrive([entry])

        await self._forget(writer, change, dead, admit)
        return IntentReceipt(entry.entry_id, entry.intent.partition, entry.ticket)

    async def drop(self, dead_id: int) -> None:
        """Forgets a dead letter for good."""
        self._check_open()
        assert self._writer is not None
        dead = self._dead(dead_id)
        await self._forget(self._writer, self._ledger.forget(dead), dead, None)

    async def _forget(self, writer: JournalWriter, change: Change, dead: DeadLetter, told: Callable[[], None] | None) -> None:
        ledger = self._ledger
        try:
            await writer.write(change, told)
        except (WaltzError, OSError):
            ledger.restore(dead)
            raise
        self._room.hold(ledger)

    def _dead(self, dead_id: int) -> DeadLetter:
        dead = self._ledger.dead.get(dead_id)
        if dead is None:
            raise InvalidRequest(reason=f"no such dead letter: dead_id={dead_id}")
        return dead

    # ---- facts -----------------------------------------------------------------------------------------------------------------------------------

    def statistics(self) -> OutboxStatistics:
        ledger, now_ms = self._ledger, self._clock.now_ms()
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
            submitted=self._submitted,
            forwarded=self._forwarded,
            forward_rate=self._rate,
            error=self._error,
        )

    # ---- what sessions tell ----------------------------------------------------------------------------------------------------------------------

    def connected(self, partitions: int) -> None:
        self._partitions, self._connected = partitions, True
        self._error = ""

    def done(self, entries: list[tuple[Entry, Outcome]]) -> None:
        for entry, outcome in entries:
            if outcome.transaction_id is not None:
                self._forwarded += 1
            entry.ticket.tell(outcome)
        self._room.hold(self._ledger)

    def give_up(self, entry: Entry, reason: str) -> None:
        if entry.place is Place.GONE or self._writer is None:
            return
        change, attempts, dead = self._ledger.give_up(entry, reason, self._clock.now_ms())
        ledger = self._ledger
        log.warning("intent given up", intent_id=entry.entry_id, partition=entry.intent.partition, handler=entry.intent.handler, reason=reason)
        self._writer.later(change, lambda: ledger.released(attempts))
        entry.ticket.tell(Outcome(None, dead))
        self._room.hold(ledger)
        if self._session is not None:
            self._session.finished(entry)

    def expired(self, entry: Entry) -> bool:
        """Gives up an intent that is too old to be sent."""
        limit = self._settings.intent_age_max_s
        if limit is None or self._clock.now_ms() - entry.submitted_ms <= 1000 * limit:
            return False
        self.give_up(entry, f"older than {limit:g} s")
        return True

    # ---- tasks -----------------------------------------------------------------------------------------------------------------------------------

    async def _open_journal(self) -> None:
        tickets = {entry.entry_id: entry.ticket for entry in self._ledger.entries.values()}
        self._journal, ledger, changes = await self._offload(
            open_journal, self._disk, self._settings, self._clock.now_ms(), self._given.rng.randbytes
        )
        for entry in ledger.entries.values():
            entry.ticket = tickets.get(entry.entry_id, entry.ticket)
        self._ledger = ledger
        await self._offload(self._ballast.take)
        self._writer = JournalWriter(self._journal, self._offload, self._ballast.drop)
        self._writer.start()
        for change in changes:
            self._writer.later(change, lambda: None)
        self._room.hold(ledger)
        self._failure = None

    async def _keep_journal(self) -> None:
        """Forwards, and opens the journal again when it failed, from what is on disk."""
        backoff = Backoff(self._settings.retry_base_s, self._settings.retry_cap_s, self._given.rng)
        while True:
            assert self._writer is not None
            forwarding = asyncio.create_task(self._forward())
            try:
                await asyncio.wait([self._writer.failed])
            finally:
                forwarding.cancel()
                await asyncio.gather(forwarding, return_exceptions=True)
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
        self._room.refuse_all(self._failure)

    async def _forward(self) -> None:
        """One session after the other, until another copy of the directory has taken over."""
        backoff = Backoff(self._settings.retry_base_s, self._settings.retry_cap_s, self._given.rng)
        while True:
            assert self._writer is not None
            began = asyncio.get_running_loop().time()
            self._session = Session(self._given, self._ledger, self._writer, self)
            try:
                await self._session.run()
            except OutboxTaken as error:
                log.error("outbox taken over", client_id=error.client_id, mine=error.mine, newer=error.newer)
                self._error, self._failure = str(error), error
                self._room.refuse_all(error)
                self._tell_all(error)
                return
            except (WaltzError, OSError) as error:
                self._error = str(error)
                log.info("outbox session ended", error=str(error))
            finally:
                self._session, self._connected = None, False
            if asyncio.get_running_loop().time() - began > self._settings.retry_cap_s:
                backoff.reset()
            await asyncio.sleep(backoff.next_s())

    async def _tick(self) -> None:
        """Ages and the statistics file."""
        before = self._forwarded
        while True:
            await asyncio.sleep(self._settings.statistics_every_s)
            self._rate = (self._forwarded - before) / self._settings.statistics_every_s
            before = self._forwarded
            self._expire()
            self._room.hold(self._ledger)
            try:
                await self._offload(write_statistics, self._disk, self.statistics())
                if not self._ballast.there and self._failure is None:
                    await self._offload(self._ballast.take)
            except OSError as error:
                log.warning("statistics file not written", file=STATISTICS_FILE, error=str(error))

    def _expire(self) -> None:
        if self._settings.intent_age_max_s is None or self._failure is not None:
            return
        for entry in list(self._ledger.entries.values()):
            if entry.place is not Place.READY or entry.attempt is not None:
                continue
            if not self.expired(entry):
                return


class _WallClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000
