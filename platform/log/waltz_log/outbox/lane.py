"""Forwards the intents of one partition: settles what is in doubt, then passes intents to the producer and records their outcomes.

Before it sends anything, it resolves everything that an earlier process, or an earlier session of this one, sent to the partition. The mount fences
what is still on the wire, so what `Resolve` does not find then is not in the log and never will be (docs/internals/protocol.md, rules 6 to 8).

Data is handed to the producer in runs, without a task or a future for each intent (`data_run`); each running call has a task. Intents of one key are
sent in the order of submission (`key_order`). Data follows data of the same key at once, because the producer keeps their order.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from waltz_log.background_tasks import end_tasks, outcome_of, start_task
from waltz_log.client.append.append_window import STORAGE_FULL
from waltz_log.client.append.packing import pack_checked
from waltz_log.client.append.pending_append import FRAME_OVERHEAD_BYTES, PendingAppend
from waltz_log.client.append.producer import SEQUENCE_MAX, DurableClient, Producer
from waltz_log.client.append.sent_frame import SentFrame
from waltz_log.client.base.retry import Backoff
from waltz_log.client.base.settings import ClientSettings
from waltz_log.client.owners.owners import Owners
from waltz_log.client.transactions.transaction import Receipt
from waltz_log.errors import BelongsToTopic, InvalidRequest, LockConflict, NotAllowed, NotAppended, OutboxFenced, Unavailable, WaltzError
from waltz_log.loggers import get_logger
from waltz_log.outbox.calls import Calls
from waltz_log.outbox.data_run import DataRun, OutboxOutcome, entries_of
from waltz_log.outbox.journal_writer import JournalWriter
from waltz_log.outbox.key_order import KeyOrder
from waltz_log.outbox.ledger import Entry, Ledger, Outcome, Place
from waltz_log.outbox.settings import OutboxSettings
from waltz_log.outbox.settle import REFUSED_PAUSE_S, SettlingMount, settle

if TYPE_CHECKING:
    from waltz_log.client.append.traced_appends import TracedAppends

__all__ = ["IntentListener", "Lane", "SequencesUsedUp", "sequences_left"]

log = get_logger(__name__)

MOUNT_WAIT_S = 60.0
"""How long to wait for a mount before waiting for it again."""

SEQUENCES = SEQUENCE_MAX
"""The sequences of one client id in one partition."""

WINDOW_FULL_PAUSE_S = 0.005
"""How often a handler tries again to enqueue while data fills the window."""


def sequences_left(client_settings: ClientSettings) -> int:
    """How many sequences a partition needs before anything is sent to it: one for each pending append, twice, because a broken connection sends all
    of them again."""
    return 2 * client_settings.max_pending


class SequencesUsedUp(Exception):
    """The partition needs another client id. It is assigned between two sessions, when nothing is in doubt."""


class IntentListener(Protocol):
    """Receives the outcomes of a lane's intents."""

    def give_up(self, entry: Entry, reason: str) -> None: ...
    def expired(self, entry: Entry) -> bool: ...
    def done(self, entries: list[tuple[Entry, Outcome]]) -> None: ...


class Lane:
    """Lives as long as a session. `run` ends with the error that ends the whole session."""

    def __init__(
        self,
        partition: int,
        client_id: int,
        mount_sequence: int,
        owners: Owners,
        client_settings: ClientSettings,
        settings: OutboxSettings,
        ledger: Ledger,
        writer: JournalWriter,
        listener: IntentListener,
        calls: Callable[[Lane], Calls],
        rng: random.Random,
        entries: list[Entry],
        *,
        settle_only: bool = False,
        traced: TracedAppends | None = None,
    ) -> None:
        """`entries`: what is owed to the partition, in the order of submission."""
        self.partition = partition
        self.loop = asyncio.get_running_loop()
        self._client_id = client_id
        self._owners = owners
        self._settings = settings
        self._ledger = ledger
        self._writer = writer
        self._listener = listener
        durable = DurableClient(mount_sequence, ledger.next_sequence(partition, client_id), self._sending)
        self.producer = Producer(partition, client_id, owners, client_settings, rng, durable)
        self._sequences_left = sequences_left(client_settings)
        self._settle_only = settle_only
        self._traced = traced
        self._unsettled: list[Entry] | None = entries
        self._data: deque[Entry] = deque()
        self._calls: deque[Entry] = deque()
        self._order = KeyOrder(self._release)
        self._outcomes: list[tuple[Entry, Receipt | BaseException | None]] = []
        self._committed: list[tuple[Entry, Outcome]] = []
        self._work = asyncio.Event()
        self._refused: list[Entry] = []
        self._pauses = Backoff(settings.retry_base_s, settings.retry_cap_s, rng)
        mount_pauses = Backoff(client_settings.retry_base_s, client_settings.retry_cap_s, rng)
        self._settling = SettlingMount(self.producer, owners, client_settings.request_timeout_s, mount_pauses)
        self._held: asyncio.TimerHandle | None = None
        self._mounting: asyncio.Future[None] | None = None
        self._running = calls(self)
        self.settled = asyncio.Event()

    # ---- what comes in -------------------------------------------------------------------------------------------------------------------------

    def arrive(self, entry: Entry) -> None:
        """Accepts an intent that is READY, in the order of submission. It waits until what is in doubt is settled."""
        if self._unsettled is not None:
            self._unsettled.append(entry)
            return
        self._order.add(entry)

    def requeue(self, entry: Entry) -> None:
        """Accepts an intent that was released before and is READY again."""
        entry.place = Place.READY
        self._release(entry)

    def _release(self, entry: Entry) -> None:
        (self._calls if entry.intent.handler else self._data).append(entry)
        self._work.set()

    def finished(self, entry: Entry) -> None:
        """The intent is decided: the next ones of its key may be sent."""
        self._order.finished(entry)

    # ---- the lane's task -----------------------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Ends only with an error."""
        self.producer.start()
        waits: list[asyncio.Future[None]] = [start_task(work) for work in (self._forward(), self._running.run(), self._producer_ended())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for each in waits:
                if each.done():
                    outcome_of(each)
        finally:
            if self._held is not None:
                self._held.cancel()
            try:
                await end_tasks([*waits, *([] if self._mounting is None else [self._mounting])])
            finally:
                await self.producer.close()

    async def _producer_ended(self) -> None:
        raise await self.producer.ended()

    async def mounted(self) -> None:
        """Returns when the owner is ready for appends. Waits without a time limit."""
        while True:
            try:
                await self.producer.mounted(self.loop.time() + MOUNT_WAIT_S)
                return
            except Unavailable:
                continue
            except (BelongsToTopic, NotAllowed) as error:  # keep the intents until the topic's permissions or these settings are corrected
                log.warning("outbox may not append", partition=self.partition, error=str(error))
                await asyncio.sleep(REFUSED_PAUSE_S)

    async def _forward(self) -> None:
        await self._settle()
        if self._settle_only:
            await self.loop.create_future()
        while True:
            self._record_outcomes()
            self._offer()
            self._work.clear()
            if not self._outcomes and not self._committed:
                await self._work.wait()

    async def _settle(self) -> None:
        """Resolves what was sent before: it is in the log, or is sent again, ahead of all later intents."""
        attempts = self._ledger.attempts(self.partition)
        if attempts:
            known: dict[int, Entry] = {}
            for attempt in attempts:
                for sequence, entry_id in enumerate(attempt.entry_ids, attempt.first_sequence):
                    entry = self._ledger.entries.get(entry_id)
                    if entry is not None and entry.attempt is attempt:
                        known[sequence] = entry
            try:
                found = await settle(self._settling, self._owners, attempts, self._client_id, self._settings.resolve_timeout_s)
            finally:
                await self._settling.close()
            beyond = [sequence for sequence in found.committed if sequence >= attempts[-1].next_sequence]
            if beyond:
                raise OutboxFenced(
                    client_id=self._client_id, mine=attempts[-1].next_sequence - 1, newer=max(beyond), reason="the log holds more than this copy sent"
                )
            absent = [(sequence, entry) for sequence, entry in sorted(known.items()) if sequence not in found.committed]
            self._deliver([(entry, Outcome(found.committed[sequence], None)) for sequence, entry in known.items() if sequence in found.committed])
            for _, entry in absent:
                if not found.final:
                    self._listener.give_up(entry, "in doubt, and the log no longer reaches back to when it was sent: it may be in the log or not")
                    continue
                self._ledger.absent(entry)
                entry.place = Place.READY
        waiting, self._unsettled = self._unsettled or [], None
        for entry in waiting:
            if entry.place is Place.READY:
                self.arrive(entry)
        self.settled.set()

    def _offer(self) -> None:
        data = self._data
        if self._refused and not self.producer.window.pending:
            self._put_back()
        if self._refused or self._held is not None or (not data and not self._calls):
            return
        if not self.producer.ready:  # waiting intents can still become too old
            if self._mounting is None or self._mounting.done():
                self._mounting = start_task(self._mount())
            return
        if data and not self._has_sequences():
            return
        waiting = math.inf
        while len(data) < waiting:  # until nothing more has room
            waiting = len(data)
            self._offer_data()
        calls = self._calls
        while calls and self._running.has_capacity:
            entry = calls.popleft()
            if entry.place is Place.READY and not self._listener.expired(entry):
                entry.place = Place.BUSY
                self._running.start(entry)

    def _offer_data(self) -> None:
        """Hands over the next data that has room, as rows. An intent that is traced goes alone: rows have one trace context for all."""
        data, ages, traced = self._data, self._settings.intent_age_max_s is not None, self._traced is not None
        left, left_bytes = self.producer.room
        entries: list[Entry] = []
        while data and len(entries) < left:
            entry = data[0]
            if entry.place is Place.READY and not (ages and self._listener.expired(entry)):
                left_bytes -= len(entry.intent.payload) + FRAME_OVERHEAD_BYTES
                if (traced and entry.trace is not None) or (left_bytes < 0 and (entries or self.producer.window.pending)):
                    break
                entry.place = Place.BUSY
                entries.append(entry)
            data.popleft()
        if entries:
            self.producer.add_rows(DataRun(entries, self).pending())
        elif data:
            self._offer_alone(data[0])

    def _offer_alone(self, entry: Entry) -> None:
        outcome = self.outcome_of(entry)
        if self.producer.try_enqueue(pack_checked(outcome, entry.intent.payload, entry.intent.header)):
            self._resume_trace(outcome)
            entry.place = Place.BUSY
            self._data.popleft()

    async def _mount(self) -> None:
        await self.mounted()
        self._work.set()

    def _has_sequences(self) -> bool:
        """Whether there are sequences for everything that may be sent before the next check."""
        if self.producer.window.next_sequence + self._sequences_left < SEQUENCES:
            return True
        if self.producer.window.pending:
            return False
        raise SequencesUsedUp

    # ---- frames --------------------------------------------------------------------------------------------------------------------------------

    async def _sending(self, frames: list[SentFrame]) -> None:
        """The attempt is on disk before a byte of it is on the wire."""
        change, older = self._ledger.sending(self._client_id, self.partition, frames[0].first_sequence, frames[0].since, list(entries_of(frames)))
        await self._writer.write(change, lambda: self._ledger.released(older))

    def decided(self, entry: Entry, outcome: Receipt | BaseException | None) -> None:
        self._outcomes.append((entry, outcome))
        self._work.set()

    def committed(self, entries: Sequence[Entry], transaction_id: int) -> None:
        self._committed += [(entry, Outcome(found, None)) for found, entry in enumerate(entries, transaction_id)]
        self._work.set()

    def failed(self, entries: Sequence[Entry], error: WaltzError) -> None:
        self._outcomes += [(entry, error) for entry in entries]
        self._work.set()

    def _record_outcomes(self) -> None:
        outcomes, self._outcomes = self._outcomes, []
        committed, self._committed = self._committed, []
        for entry, what in outcomes:
            if entry.intent.handler:
                self._running.decided(isinstance(what, LockConflict))
            if isinstance(what, Receipt):
                committed.append((entry, Outcome(what.transaction_id, None)))
            elif isinstance(what, LockConflict | NotAppended | InvalidRequest):
                self._ledger.absent(entry)
                entry.place = Place.BUSY
                self._refused_by_log(entry, what)
            elif isinstance(what, WaltzError):
                raise what  # not decided, and the producer has ended: the next session resolves it
        if committed:
            self._pauses.reset()
        self._deliver(committed)

    def _refused_by_log(self, entry: Entry, error: LockConflict | NotAppended | InvalidRequest) -> None:
        full = isinstance(error, NotAppended) and error.reason == STORAGE_FULL
        if full and entry.intent.handler:
            entry.tries -= 1  # it ran, and the log was not there
        if full or (isinstance(error, NotAppended) and not entry.intent.handler):
            if full or self._running.count(entry, error):
                self._refused.append(entry)
        else:
            self._running.refused(entry, error)

    def _put_back(self) -> None:
        """Puts refused intents before all waiting ones, in the order of submission. Nothing later of their keys has been offered."""
        refused, self._refused = sorted(self._refused, key=lambda entry: entry.entry_id, reverse=True), []
        for entry in refused:
            if entry.place is Place.BUSY:
                entry.place = Place.READY
                (self._calls if entry.intent.handler else self._data).appendleft(entry)
        self._held = self.loop.call_later(self._pauses.next_s(), self._go_on)

    def _go_on(self) -> None:
        self._held = None
        self._work.set()

    def _deliver(self, outcomes: list[tuple[Entry, Outcome]]) -> None:
        if not outcomes:
            return
        change, attempts = self._ledger.decided([entry for entry, _ in outcomes])
        self._writer.later(change, lambda: self._ledger.released(attempts))
        self._listener.done(outcomes)
        for entry, _ in outcomes:
            if entry.intent.key:
                self._order.finished(entry)

    def outcome_of(self, entry: Entry) -> OutboxOutcome:
        """A new outcome for one sending of the entry."""
        outcome = OutboxOutcome(loop=self.loop)
        outcome.entry, outcome.lane = entry, self
        return outcome

    async def send(self, append: PendingAppend) -> None:
        """Enqueues what a handler computed. Its outcome is reported like that of data."""
        while not self._has_sequences() or not self.producer.try_enqueue(append):
            await asyncio.sleep(WINDOW_FULL_PAUSE_S)
        if isinstance(append.future, OutboxOutcome):
            self._resume_trace(append.future)

    def _resume_trace(self, outcome: OutboxOutcome) -> None:
        trace = outcome.entry.trace
        if trace is not None and self._traced is not None:
            self._traced.resume(self.producer.window, outcome, trace)

    def give_up(self, entry: Entry, reason: str) -> None:
        self._listener.give_up(entry, reason)

    def wake(self) -> None:
        """Wakes the lane: another call may start now."""
        self._work.set()

    def nothing_to_append(self, entry: Entry) -> None:
        """A handler returned without an append."""
        self._deliver([(entry, Outcome(None, None))])
