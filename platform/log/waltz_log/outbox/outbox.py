"""The outbox: `submit` returns when the intents are on the local disk; each is appended to the log exactly once, when the log is available.

An intent is acknowledged only by a sync that succeeded, and leaves the journal only when the log has it or it became a dead letter.
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self, TypeVar

from waltz_log.client.base.settings import ClientSettings
from waltz_log.client.client import traced_appends
from waltz_log.client.owners.seeds import NamedServers, Seeds
from waltz_log.client.transactions.follow import Apply
from waltz_log.core.ports import Clock, Disk, Network, Offload
from waltz_log.errors import InvalidRequest, JournalFull, OutboxFull, TransactionTooLarge, WaltzError
from waltz_log.outbox.calls import Handler
from waltz_log.outbox.engine import Engine
from waltz_log.outbox.intent import Intent
from waltz_log.outbox.journal_writer import JournalWriter
from waltz_log.outbox.ledger import ENTRY_OVERHEAD_BYTES, Change, DeadLetter, Entry, Ledger
from waltz_log.outbox.receipt import IntentReceipt
from waltz_log.outbox.session import Followed, OutboxDependencies
from waltz_log.outbox.settings import OutboxSettings
from waltz_log.outbox.statistics import OutboxStatistics

__all__ = ["Outbox"]

H = TypeVar("H", bound=Handler)


FILE_MARGIN_BYTES = 4096
"""The bytes of a journal file that an intent may not use: they are for its record, and for the reason when it becomes a dead letter."""


class Outbox:
    """A durable outbox: accepts intents on the local disk, and forwards them to the log exactly once. `async with Outbox.open(directory,
    "host:port") as outbox:`. It belongs to one event loop; its directory belongs to one process."""

    def __init__(
        self,
        disk: Disk,
        offload: Offload,
        clock: Clock,
        seeds: Seeds,
        network: Network,
        settings: OutboxSettings | None = None,
        client_settings: ClientSettings | None = None,
        *,
        rng: random.Random | None = None,
    ) -> None:
        """Over any disk, addresses and network; `start` it, and `close` it."""
        self._clock = clock
        self._settings = settings or OutboxSettings()
        self._client_settings = client_settings or ClientSettings()
        self._handlers: dict[str, Handler] = {}
        self._followed: dict[int, Followed] = {}
        chance, chosen = rng or random.Random(), self._client_settings
        self._traced = traced_appends() if chosen.tracing else None
        dependencies = OutboxDependencies(seeds, network, chosen, self._settings, self._handlers, self._followed, chance, self._traced)
        self._engine = Engine(disk, offload, clock, dependencies)

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
        """Opens the outbox in a directory. It needs no cluster to start. `prepare` registers handlers and followers before anything runs. Raises
        `InvalidSetting` if another process holds the directory."""
        self = cls.over(directory, cluster, settings, client_settings)
        if prepare is not None:
            prepare(self)
        async with self:
            yield self

    @classmethod
    def over(cls, directory: Path | str, cluster: str, settings: OutboxSettings | None = None, client_settings: ClientSettings | None = None) -> Self:
        """An outbox that is not started, so that handlers can be registered first. Use it as a context manager, or `start` and `close` it."""
        from waltz_log.filesystem import FileSystemDisk, ThreadOffload
        from waltz_log.transport.grpc import GrpcNetwork

        chosen = client_settings or ClientSettings()

        return cls(
            FileSystemDisk(Path(directory)), ThreadOffload(1), _WallClock(), NamedServers(cluster), GrpcNetwork(tls=chosen.tls), settings, chosen
        )

    def handler(self, name: str) -> Callable[[H], H]:
        """Registers a function for `Intent.call(name, ...)`: `handler(tx, arguments)` appends through `tx`."""

        def register(function: H) -> H:
            if name in self._handlers:
                raise InvalidRequest(reason=f"two handlers have the same name: {name}")
            self._handlers[name] = function
            return function

        return register

    def follow(self, partition: int, apply: Apply, after: int = -1) -> None:
        """Feeds the partition to `apply` while the log is available. Handlers of the partition run on the state that `apply` builds. Call it before
        `start`."""
        if self._engine.started:
            raise InvalidRequest(reason="followers are registered before the outbox starts")
        self._followed[partition] = Followed(partition, apply, after)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Reads the journal. Does not wait for the cluster. Raises `InvalidSetting` if another process holds the directory."""
        await self._engine.start()

    async def close(self) -> None:
        """Stops forwarding immediately; what is owed stays on disk for the next start. Use `flush` before to wait for it."""
        await self._engine.close()

    async def abort(self) -> None:
        """Ends like a killed process: nothing more is written. The directory stays locked for this process."""
        await self._engine.abort()

    # ---- submitting ------------------------------------------------------------------------------------------------------------------------------

    async def submit(self, intents: Intent | Sequence[Intent], timeout_s: float | None = None) -> list[IntentReceipt]:
        """Returns when all of them are on the local disk: all or none, also across partitions. Concurrent submits share a sync.

        Raises `OutboxFull`: nothing was accepted; `InvalidRequest`, `TransactionTooLarge`: these intents can never be accepted; `OutboxFenced`:
        another copy of the directory forwards now; `JournalFailed`: not acknowledged, and only the next opening finds out whether they are on
        disk."""
        wanted = [intents] if isinstance(intents, Intent) else list(intents)
        if not wanted:
            return []
        engine = self._engine
        size = self._check(wanted)
        await engine.admission.reserve(size, self._settings.submit_timeout_s if timeout_s is None else timeout_s)
        try:
            writer, ledger = engine.writer, engine.ledger
            if not engine.reserved_space.held:
                raise OutboxFull(bytes=ledger.bytes, reason="the disk is full")
            entries, change = ledger.submit(wanted, self._clock.now_ms(), self._trace())

            def admit() -> None:
                engine.submitted += len(entries)
                self._admit(ledger, entries)

            await writer.write(change, admit)
        except JournalFull as error:
            raise OutboxFull(bytes=engine.ledger.bytes, reason=f"the disk is full: {error.reason}") from None
        finally:
            engine.admission.release(size)
        return [IntentReceipt(entry.entry_id, entry.intent.partition, entry.ticket) for entry in entries]

    def _admit(self, ledger: Ledger, entries: list[Entry]) -> None:
        """The entries are on disk and are now owed."""
        for entry in entries:
            ledger.admit(entry)
        self._engine.admission.update(ledger)
        if self._engine.session is not None:
            self._engine.session.arrive(entries)

    def _trace(self) -> bytes | None:
        return None if self._traced is None else self._traced.context

    def _check(self, intents: list[Intent]) -> int:
        _ = self._engine.writer  # raises if the outbox accepts nothing
        size, partitions = 0, self._engine.partitions
        limit, file_limit = self._client_settings.record_bytes_max, self._settings.file_bytes - FILE_MARGIN_BYTES
        for intent in intents:
            if partitions is not None and intent.partition >= partitions:
                raise InvalidRequest(reason=f"no such partition: partition={intent.partition} partitions={partitions}")
            if len(intent.payload) > limit:
                raise TransactionTooLarge(what="data", size=len(intent.payload), limit=limit)
            length = len(intent.payload) + (len(intent.handler.encode()) + len(intent.key.encode()) if intent.handler or intent.key else 0)
            if length > file_limit:
                raise TransactionTooLarge(what="intent", size=length, limit=file_limit)
            if intent.handler and self._handlers and intent.handler not in self._handlers:
                raise InvalidRequest(reason=f"no handler of this name: {intent.handler}")
            size += length + 2 * ENTRY_OVERHEAD_BYTES
        return size

    async def flush(self) -> None:
        """Returns when nothing is owed."""
        while self._engine.ledger.entries:
            entry = next(reversed(self._engine.ledger.entries.values()))
            await IntentReceipt(entry.entry_id, entry.intent.partition, entry.ticket).outcome()

    # ---- dead letters ------------------------------------------------------------------------------------------------------------------------------

    def dead_letters(self) -> list[DeadLetter]:
        """The intents that were given up, oldest first."""
        return list(self._engine.ledger.dead.values())

    async def resubmit(self, dead_id: int, intent: Intent | None = None) -> IntentReceipt:
        """Replaces a dead letter by a new intent, `intent` if it is given, atomically."""
        writer, ledger, dead = self._engine.writer, self._engine.ledger, self._dead(dead_id)
        again = intent or dead.intent
        if again is None:
            raise InvalidRequest(reason=f"this dead letter cannot be read, and needs an intent in its place: dead_id={dead_id}")
        self._check([again])
        (entry,), change = ledger.submit([again], self._clock.now_ms(), self._trace())
        change.deletes += ledger.forget(dead).deletes

        await self._forget(writer, change, dead, lambda: self._admit(ledger, [entry]))
        return IntentReceipt(entry.entry_id, entry.intent.partition, entry.ticket)

    async def drop(self, dead_id: int) -> None:
        """Removes a dead letter permanently."""
        writer, dead = self._engine.writer, self._dead(dead_id)
        await self._forget(writer, self._engine.ledger.forget(dead), dead, None)

    async def _forget(self, writer: JournalWriter, change: Change, dead: DeadLetter, on_disk: Callable[[], None] | None) -> None:
        ledger = self._engine.ledger
        try:
            await writer.write(change, on_disk)
        except (WaltzError, OSError):
            ledger.restore(dead)
            raise
        self._engine.admission.update(ledger)

    def _dead(self, dead_id: int) -> DeadLetter:
        dead = self._engine.ledger.dead.get(dead_id)
        if dead is None:
            raise InvalidRequest(reason=f"no such dead letter: dead_id={dead_id}")
        return dead

    # ---- facts -----------------------------------------------------------------------------------------------------------------------------------

    def statistics(self) -> OutboxStatistics:
        """A snapshot; its fields are documented at the class."""
        return self._engine.statistics()


class _WallClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000
