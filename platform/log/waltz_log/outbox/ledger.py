"""The state of an outbox: the intents on disk, the attempts to send them, the dead letters. Decides what is written to the journal, and what its
records mean when they are read. Touches no disk and no network.

An intent is in one of four places:

    READY ──run or offered──► BUSY ──put into a frame──► SENT ──► gone (in the log), or a dead letter
      ▲                        │                          │
      └──── retry, nothing sent ◄──── not in the log ─────┘

SENT begins before the frame is sent: an attempt record (sequences, `since`, intents) is on disk first. A later process reads it as *in doubt*, and
only the log can resolve it. These rules keep the state correct, whichever of the last writes survive a crash:

- An attempt record outlives its intents: it is deleted only after the deletes of all its intents are on disk, or a newer attempt of theirs is.
- The newest attempt record of each partition stays, so that sequences continue from it, and a copy of the directory can be detected.
- The newest attempt of an intent determines its place: it was sent again only because the older attempt was known not to be in the log.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any, NamedTuple  # Any: the journal's records, and those of other stores

from waltz_log.core.formats.traces import is_context
from waltz_log.errors import CorruptData, WaltzError
from waltz_log.outbox.intent import Intent, decode_intent, encode_intent

__all__ = ["ENTRY_OVERHEAD_BYTES", "Attempt", "Change", "DeadLetter", "Entry", "Identity", "Kind", "Ledger", "Outcome", "Place", "Ticket"]

ENTRY_OVERHEAD_BYTES = 64
"""The bytes of an intent besides its own data, on disk and about as many in memory."""

ATTEMPT_ENTRIES_MAX = 4096
"""In one record, so that it fits into the smallest journal file."""

REASON_BYTES_MAX = 1000
"""For a dead letter, which must fit into a journal file with its intent."""

_ATTEMPT = struct.Struct(">iiqqI")
_DEAD = struct.Struct(">qqiH")
_TRIES = struct.Struct(">i")


class Kind(IntEnum):
    """The user types of the journal's records."""

    IDENTITY = 1
    INTENT = 2
    TRIES = 3
    """An update of an intent: how often its handler was run. Replaceable."""
    ATTEMPT = 4
    DEAD = 5
    TRACE = 6
    """An update of an intent that was submitted in a traced span: its trace context. Versions that do not know it skip it."""


class Place(Enum):
    READY = "ready"
    BUSY = "busy"
    SENT = "sent"
    GONE = "gone"


class DeadLetter(NamedTuple):
    """An intent that was given up. `intent` is None if its bytes cannot be read; `body` has them."""

    dead_id: int
    intent_id: int
    intent: Intent | None
    tries: int
    reason: str
    at_ms: int
    body: bytes


class Outcome(NamedTuple):
    """The end of an intent: in the log under `transaction_id`, or `dead`, or neither: its handler had nothing to append."""

    transaction_id: int | None
    dead: DeadLetter | None


class Ticket:
    """The outcome that a receipt refers to, and the future that waits for it."""

    __slots__ = ("failed", "outcome", "waiter")

    def __init__(self) -> None:
        self.outcome: Outcome | None = None
        self.failed: WaltzError | None = None
        self.waiter: asyncio.Future[Outcome] | None = None

    def resolve(self, outcome: Outcome) -> None:
        if self.outcome is None:
            self.outcome = outcome
            if self.waiter is not None and not self.waiter.done():
                self.waiter.set_result(outcome)

    def fail(self, error: WaltzError) -> None:
        """The outcome will not become known in this process."""
        if self.outcome is None:
            self.failed = error
            if self.waiter is not None and not self.waiter.done():
                self.waiter.set_exception(error)
                self.waiter.exception()  # marks the error as retrieved: the waiter may have been cancelled


class Entry:
    """An intent that is owed."""

    __slots__ = ("attempt", "entry_id", "intent", "place", "size", "submitted_ms", "ticket", "trace", "tries")

    def __init__(self, entry_id: int, intent: Intent, submitted_ms: int, size: int) -> None:
        self.entry_id = entry_id
        self.intent = intent
        self.submitted_ms = submitted_ms
        self.size = size
        self.tries = 0
        self.place = Place.READY
        self.attempt: Attempt | None = None
        self.ticket = Ticket()
        self.trace: bytes | None = None
        """The context of the span that submitted it (`core.formats.traces`)."""


@dataclass(slots=True, eq=False)
class Attempt:
    """A frame, or a part of one: `entry_ids` were sent under consecutive sequences. `owed`: how many of them still need the attempt, according to the
    disk."""

    attempt_id: int
    client_id: int
    partition: int
    first_sequence: int
    since: int
    entry_ids: tuple[int, ...]
    owed: int

    @property
    def next_sequence(self) -> int:
        return self.first_sequence + len(self.entry_ids)

    def encode(self) -> bytes:
        head = _ATTEMPT.pack(self.client_id, self.partition, self.first_sequence, self.since, len(self.entry_ids))
        return head + struct.pack(f">{len(self.entry_ids)}q", *self.entry_ids)

    @classmethod
    def decode(cls, attempt_id: int, body: bytes) -> Attempt:
        client_id, partition, first_sequence, since, count = _ATTEMPT.unpack_from(body)
        return cls(attempt_id, client_id, partition, first_sequence, since, struct.unpack_from(f">{count}q", body, _ATTEMPT.size), 0)


@dataclass(frozen=True, slots=True)
class Identity:
    """The client id of the outbox, and what proves that this directory is not a copy (`outbox_identity`)."""

    cluster_key: str
    client_id: int
    epoch: int
    nonce: str
    claim: str
    """A nonce that the coordinator may already hold as the next one; empty if no claim is in progress."""
    partitions: tuple[int, ...]
    ticket: str = ""
    """Proves that the client id is this outbox's principal's; empty in a directory that was made before there were tickets."""

    def encode(self) -> bytes:
        return json.dumps([self.cluster_key, self.client_id, self.epoch, self.nonce, self.claim, list(self.partitions), self.ticket]).encode()

    @classmethod
    def decode(cls, body: bytes) -> Identity:
        cluster_key, client_id, epoch, nonce, claim, partitions, *ticket = json.loads(body)
        return cls(cluster_key, client_id, epoch, nonce, claim, tuple(partitions), *ticket)


@dataclass(slots=True)
class Change:
    """An atomic change of the journal: all of it or nothing, whatever happens."""

    adds: list[tuple[int, int, bytes]] = field(default_factory=list)
    """(record id, kind, body)"""
    updates: list[tuple[int, int, bytes]] = field(default_factory=list)
    deletes: list[int] = field(default_factory=list)
    accepts: bool = False
    """Whether it only accepts new intents. All other changes help to empty the outbox."""

    @property
    def count(self) -> int:
        return len(self.adds) + len(self.updates) + len(self.deletes)


class Ledger:
    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self.dead: dict[int, DeadLetter] = {}
        self.identity: Identity | None = None
        self.bytes = 0
        self.in_doubt = 0
        """How many intents are SENT, or were sent and are not resolved."""
        self._identity_id = 0
        self._last_id = 0
        self._attempts: dict[int, list[Attempt]] = {}
        self._needless: list[int] = []

    # ---- reading -------------------------------------------------------------------------------------------------------------------------------

    @classmethod
    def load(cls, records: Iterable[Any], record_id_max: int, now_ms: int) -> tuple[Ledger, list[Change]]:
        """The ledger from the records, and the changes to write: intents that cannot be read become dead letters. Raises `CorruptData` if any other
        record cannot be read: the journal is not an outbox's."""
        self = cls()
        self._last_id = record_id_max
        tries: dict[int, int] = {}
        traces: dict[int, bytes] = {}
        attempts: list[Attempt] = []
        unreadable: list[tuple[int, bytes, str]] = []
        for record in records:
            body = bytes(record.body)
            if record.user_type == Kind.INTENT:
                try:
                    intent, submitted_ms = decode_intent(body)
                except CorruptData as error:
                    unreadable.append((record.record_id, body, error.reason))
                    continue
                self.admit(Entry(record.record_id, intent, submitted_ms, len(body) + ENTRY_OVERHEAD_BYTES))
                continue
            try:
                if record.user_type == Kind.TRIES:
                    tries[record.record_id] = _TRIES.unpack(body)[0]
                elif record.user_type == Kind.TRACE:
                    traces[record.record_id] = body
                elif record.user_type == Kind.ATTEMPT:
                    attempts.append(Attempt.decode(record.record_id, body))
                elif record.user_type == Kind.DEAD:
                    self._add_dead(_decode_dead(record.record_id, body), len(body))
                elif record.user_type == Kind.IDENTITY and (record.is_update or self.identity is None):
                    # Of the updates the journal keeps the last; it may come before the add it replaces.
                    self.identity, self._identity_id = Identity.decode(body), record.record_id
            except (struct.error, ValueError, TypeError):
                reason = f"record {record.record_id} is none of an outbox: user_type={record.user_type} bytes={len(body)}"
                raise CorruptData(where="outbox journal", offset=-1, transaction_id=-1, reason=reason) from None
        self.entries = dict(sorted(self.entries.items()))
        for entry_id, count in tries.items():
            if entry_id in self.entries:
                self.entries[entry_id].tries = count
        for entry_id, context in traces.items():
            if entry_id in self.entries and is_context(context):  # a trace that cannot be read costs the trace, never the intent
                self.entries[entry_id].trace = context
        for attempt in sorted(attempts, key=lambda each: each.attempt_id):
            self._attempts.setdefault(attempt.partition, []).append(attempt)
            for entry_id in attempt.entry_ids:
                entry = self.entries.get(entry_id)
                if entry is None:
                    continue
                if entry.attempt is None:
                    self.in_doubt += 1
                else:
                    entry.attempt.owed -= 1
                entry.attempt, entry.place = attempt, Place.SENT
                attempt.owed += 1
        return self, [self.give_up_unreadable(entry_id, body, reason, now_ms) for entry_id, body, reason in unreadable]

    def next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    # ---- intents -------------------------------------------------------------------------------------------------------------------------------

    def submit(self, intents: Sequence[Intent], now_ms: int, trace: bytes | None = None) -> tuple[list[Entry], Change]:
        """Entries that are owed once the change is on disk: give them to `admit` then. `trace`: the context of the span that submits them."""
        entries, change = [], Change(accepts=True)
        for intent in intents:
            body = encode_intent(intent, now_ms)
            entry = Entry(self.next_id(), intent, now_ms, len(body) + ENTRY_OVERHEAD_BYTES)
            entries.append(entry)
            change.adds.append((entry.entry_id, Kind.INTENT, body))
            if trace is not None:
                entry.trace = trace
                change.updates.append((entry.entry_id, Kind.TRACE, trace))
        return entries, change

    def admit(self, entry: Entry) -> None:
        self.entries[entry.entry_id] = entry
        self.bytes += entry.size

    def oldest(self) -> Entry | None:
        return next(iter(self.entries.values()), None)

    def tried(self, entry: Entry) -> Change:
        """Its handler is about to run once more."""
        entry.tries += 1
        return Change(updates=[(entry.entry_id, Kind.TRIES, _TRIES.pack(entry.tries))])

    def decided(self, entries: Sequence[Entry]) -> tuple[Change, list[Attempt]]:
        """They are in the log, or had nothing to append. The attempts are to be given to `released` once the change is on disk."""
        attempts = []
        for entry in entries:
            del self.entries[entry.entry_id]
            self.bytes -= entry.size
            entry.place = Place.GONE
            if entry.attempt is not None:
                attempts.append(entry.attempt)
        self.in_doubt -= len(attempts)
        return Change(deletes=[entry.entry_id for entry in entries]), attempts

    def absent(self, entry: Entry) -> None:
        """It is certain that its attempt is not in the log and never will be."""
        if entry.attempt is not None:
            self.released([entry.attempt])
            self.in_doubt -= 1
            entry.attempt = None

    # ---- attempts ------------------------------------------------------------------------------------------------------------------------------

    def sending(self, client_id: int, partition: int, first_sequence: int, since: int, entries: Sequence[Entry]) -> tuple[Change, list[Attempt]]:
        """What may be sent once the change is on disk. The older attempts of its intents are to be given to `released` then."""
        older = [entry.attempt for entry in entries if entry.attempt is not None]
        self.in_doubt += len(entries) - len(older)
        needless, self._needless = self._needless, []
        change = Change(deletes=needless)
        for start in range(0, len(entries), ATTEMPT_ENTRIES_MAX):
            part = entries[start : start + ATTEMPT_ENTRIES_MAX]
            ids = tuple(entry.entry_id for entry in part)
            attempt = Attempt(self.next_id(), client_id, partition, first_sequence + start, since, ids, len(ids))
            for entry in part:
                entry.attempt, entry.place = attempt, Place.SENT
            self._attempts.setdefault(partition, []).append(attempt)
            change.adds.append((attempt.attempt_id, Kind.ATTEMPT, attempt.encode()))
        return change, older

    def released(self, attempts: Iterable[Attempt]) -> None:
        """One intent less needs each of the attempts. Attempts that no intent needs are deleted with the next frame, except the newest of the
        partition."""
        for attempt in attempts:
            attempt.owed -= 1
            of_partition = self._attempts.get(attempt.partition, [])
            while len(of_partition) > 1 and of_partition[0].owed == 0:
                self._needless.append(of_partition.pop(0).attempt_id)

    def attempts(self, partition: int) -> list[Attempt]:
        return self._attempts.get(partition, [])

    def next_sequence(self, partition: int, client_id: int) -> int:
        of_partition = self._attempts.get(partition)
        return of_partition[-1].next_sequence if of_partition and of_partition[-1].client_id == client_id else 1

    @property
    def partitions(self) -> list[int]:
        """The partitions to which something was ever sent."""
        return sorted(self._attempts)

    # ---- dead letters --------------------------------------------------------------------------------------------------------------------------

    def give_up(self, entry: Entry, reason: str, now_ms: int) -> tuple[Change, list[Attempt], DeadLetter]:
        change, attempts = self.decided([entry])
        reason = reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore")
        dead = DeadLetter(self.next_id(), entry.entry_id, entry.intent, entry.tries, reason, now_ms, encode_intent(entry.intent, entry.submitted_ms))
        self._dead_record(dead, change)
        return change, attempts, dead

    def give_up_unreadable(self, entry_id: int, body: bytes, reason: str, now_ms: int) -> Change:
        change = Change(deletes=[entry_id])
        self._dead_record(DeadLetter(self.next_id(), entry_id, None, 0, f"cannot be read: {reason}", now_ms, body), change)
        return change

    def _dead_record(self, dead: DeadLetter, change: Change) -> None:
        reason = dead.reason.encode()
        body = _DEAD.pack(dead.at_ms, dead.intent_id, dead.tries, len(reason)) + reason + dead.body
        change.adds.append((dead.dead_id, Kind.DEAD, body))
        self._add_dead(dead, len(body))

    def _add_dead(self, dead: DeadLetter, size: int) -> None:
        self.dead[dead.dead_id] = dead
        self.bytes += size + ENTRY_OVERHEAD_BYTES

    def restore(self, dead: DeadLetter) -> None:
        """Undoes `forget`: the change could not be written."""
        self._add_dead(dead, _DEAD.size + len(dead.reason.encode()) + len(dead.body))

    def forget(self, dead: DeadLetter) -> Change:
        """The dead letter is dropped or resubmitted."""
        del self.dead[dead.dead_id]
        self.bytes -= _DEAD.size + len(dead.reason.encode()) + len(dead.body) + ENTRY_OVERHEAD_BYTES
        return Change(deletes=[dead.dead_id])

    # ---- identity ------------------------------------------------------------------------------------------------------------------------------

    def identify(self, identity: Identity) -> Change:
        """Another identity; one with another client id has sent nothing yet."""
        change = Change()
        if self.identity is None:
            self._identity_id = self.next_id()
            change.adds.append((self._identity_id, Kind.IDENTITY, identity.encode()))
        else:
            change.updates.append((self._identity_id, Kind.IDENTITY, identity.encode()))
            if identity.client_id != self.identity.client_id:
                change.deletes += [attempt.attempt_id for attempts in self._attempts.values() for attempt in attempts]
                self._attempts.clear()
                self._needless.clear()
        self.identity = identity
        return change


def _decode_dead(dead_id: int, body: bytes) -> DeadLetter:
    at_ms, intent_id, tries, length = _DEAD.unpack_from(body)
    start = _DEAD.size + length
    reason, left = body[_DEAD.size : start].decode(errors="replace"), body[start:]
    try:
        intent = decode_intent(left)[0]
    except CorruptData:
        intent = None
    return DeadLetter(dead_id, intent_id, intent, tries, reason, at_ms, left)
