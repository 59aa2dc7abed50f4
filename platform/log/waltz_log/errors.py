"""The errors of the platform: one tree, few classes, each with its facts as fields.

    WaltzError
    ├── InvalidRequest            the caller's mistake; nothing was sent             fix it
    │   ├── InvalidSetting        unknown or unusable option or setting
    │   ├── TransactionTooLarge   one transaction above a limit
    │   ├── UnknownRecord         the journal holds no such record or transaction
    │   ├── NoSuchTopic           the catalogue has no topic of that name
    │   └── TopicDeleted          the topic was deleted while it was used          look it up again, or stop
    ├── LockConflict              decided: not in the log                            read up to `winner`, decide again
    │   └── GaveUpOnConflict      as above, after retries that met conflicts         raise the limit that was reached, or lock less
    ├── NotAppended               decided: not in the log                            append again if it still makes sense
    │   └── GaveUp                as above, after retries                            raise the limit that was reached, or try later
    ├── OutcomeUnknown            may be in the log or not                           ask `resolve`
    ├── Unavailable               nobody answers; nothing was decided by this call   retry later
    │   ├── ClusterUnavailable    no coordinator or cluster at the address
    │   ├── ConnectionLost        one connection ended
    │   ├── NotOwner              this server does not own the partition             look up the owner again
    │   └── OutboxFull            the outbox holds all it may; nothing was taken     retry later, or say so to the caller
    ├── BelongsToTopic            the log partition belongs to a topic               append through `client.topic(name)`
    ├── NotAllowed                the topic does not take this from that principal  ask who made the topic
    ├── Fenced                    somebody with a newer session or mount took over   stop; open again
    │   ├── ReplicaFenced         as one replica says                                as above
    │   └── OutboxTaken           another copy of the outbox's directory took over   find the other copy
    ├── CoordinatorBehind         the coordinator was set back, its replicas were not  an operator adopts what the replicas hold
    ├── SessionTooOld             the replica may hold a dirty tail                  read from another replica
    ├── ClusterKeyMismatch        the node belongs to another cluster                check the address
    ├── OutOfRange                the range is not (or no longer) there              choose a position within
    ├── CorruptData               bytes that do not match their checksum             read from another replica, repair this one
    ├── EnvelopeBroken            a transaction of a keyed topic has no key         find who appended it; read on past it
    ├── StorageFailed             this replica's disk failed                         the node must be looked after
    │   └── StorageFull           this replica takes nothing more until there is room  retry later; make room
    ├── WorkerFailed              a worker process ends whenever it is started       read its own last words above; mend that
    ├── JournalFull               no room in a journal; nothing was written          delete from it, then again
    ├── JournalFailed             a journal's disk failed                            close it, look after the disk, open again
    └── ProtocolViolation         the peer sent what the protocol does not allow     upgrade or fix the peer

Every error survives pickling and the wire (`encode`, `decode`), says in `outcome` whether something may have happened all the same, and in
`retriable` whether the same call can succeed later.

A message is a sentence that says what happened and, where the class does not say it, what to do; then the facts as `key=value`. It begins in lower
case, because commands put their name before it and logs a key. What is prose among the facts is printed as prose.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from typing import Any, ClassVar, Final, Literal, Self

__all__ = [
    "BelongsToTopic",
    "ClusterKeyMismatch",
    "ClusterUnavailable",
    "ConnectionLost",
    "CoordinatorBehind",
    "CorruptData",
    "EnvelopeBroken",
    "Fenced",
    "GaveUp",
    "GaveUpOnConflict",
    "InvalidRequest",
    "InvalidSetting",
    "JournalFailed",
    "JournalFull",
    "LockConflict",
    "NoSuchTopic",
    "NotAllowed",
    "NotAppended",
    "NotOwner",
    "OutOfRange",
    "OutboxFull",
    "OutboxTaken",
    "OutcomeUnknown",
    "ProtocolViolation",
    "ReplicaFenced",
    "SessionTooOld",
    "StorageFailed",
    "StorageFull",
    "TopicDeleted",
    "TransactionTooLarge",
    "Unavailable",
    "UnknownRecord",
    "WaltzError",
    "WorkerFailed",
    "decode",
    "encode",
]


class WaltzError(Exception):
    """Base of all. Facts are given by keyword and become attributes; a missing or foreign fact is a defect and raises `TypeError`."""

    text: ClassVar[str] = "failed"
    prose: ClassVar[str] = "reason"
    """The fact that is a sentence, or the rest of one; it follows `text`."""
    outcome: ClassVar[Literal["none", "unknown"]] = "none"
    retriable: ClassVar[bool] = False
    advice: ClassVar[str] = ""

    facts: dict[str, Any]

    def __init__(self, **facts: Any) -> None:
        # The class that says anything says it all: a refinement has its own facts, not its parent's as well.
        declared = next(set(found) for cls in type(self).__mro__ if (found := vars(cls).get("__annotations__")))
        if declared != set(facts):
            raise TypeError(f"{type(self).__name__} takes {sorted(declared)}, got {sorted(facts)}")
        self.facts = facts
        for name, value in facts.items():
            setattr(self, name, value)
        super().__init__(self._message())

    def _message(self) -> str:
        told = " ".join(f"{name}={value}" for name, value in self.facts.items() if value is not None and name != self.prose)
        parts = (self.text, str(self.facts.get(self.prose) or ""), told)
        return ": ".join(part for part in parts if part) + (f" ({self.advice})" if self.advice else "")

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.facts)


def _rebuild(cls: type[WaltzError], facts: dict[str, Any]) -> WaltzError:
    return cls(**facts)


class InvalidRequest(WaltzError):
    """The request can never succeed as it is. Nothing was sent; fix the call."""

    text = ""
    reason: str


class InvalidSetting(InvalidRequest):
    """A setting or option is unknown or unusable. Nothing was started; fix the configuration."""

    name: str
    reason: str
    nearest: str | None

    def _message(self) -> str:
        """`name` is the subject where the reason begins with a verb."""
        name, reason = str(self.facts["name"]), str(self.facts["reason"])
        link = " " if reason.partition(" ")[0] in _VERBS else ": "
        near = f" (did you mean {self.facts['nearest']}?)" if self.facts["nearest"] else ""
        return (f"{name}{link}{reason}" if name else reason) + near

    @classmethod
    def unknown(cls, name: str, known: Iterable[str], *, what: str = "setting") -> Self:
        """The error for an unknown name, with the nearest of the known ones, if any is near."""
        near = difflib.get_close_matches(name.lower(), {k.lower(): k for k in known}, n=1, cutoff=0.5)
        original = {k.lower(): k for k in known}
        return cls(name=name, reason=f"no such {what}", nearest=original[near[0]] if near else None)


class TransactionTooLarge(InvalidRequest):
    """One transaction is above a limit. Nothing was sent; split it or raise the limit on clients and servers alike."""

    text = "the transaction is too large; split it, or raise the limit on clients and servers alike"
    reason = "above a limit"
    what: str
    size: int
    limit: int


class UnknownRecord(InvalidRequest):
    """The journal holds no living record or open transaction of that id, or an open transaction has the record. Nothing was written."""

    text = "the journal holds no such record or transaction"
    reason = "unknown"
    what: str
    id: int


class NoSuchTopic(InvalidRequest):
    """The catalogue has no topic of that name. Nothing was sent; correct the name or make the topic."""

    text = "no such topic"
    reason = "unknown"
    topic: str
    nearest: str | None

    def _message(self) -> str:
        hint = f"did you mean {self.facts['nearest']}?" if self.facts["nearest"] else "`waltz topic list` shows those that there are"
        return f"{self.text}: {self.facts['topic']} ({hint})"

    @classmethod
    def among(cls, topic: str, known: Iterable[str]) -> Self:
        """With the nearest of the known names, if any is near."""
        near = difflib.get_close_matches(topic, list(known), n=1, cutoff=0.5)
        return cls(topic=topic, nearest=near[0] if near else None)


class TopicDeleted(InvalidRequest):
    """The topic was deleted while it was in use; one of the same name that was made since is another one. What was not sent is not in the log. Look
    the name up again, or stop."""

    text = "the topic was deleted while it was in use; look its name up again, or stop"
    reason = "deleted"
    topic: str


class LockConflict(WaltzError):
    """Decided: not in the log. Apply the feed up to `winner`, look again, and decide again."""

    text = "lock conflict: a newer transaction wrote one of the locks; read up to the winner and decide again"
    retriable = True
    partition: int
    winner: int


class NotAppended(WaltzError):
    """Decided: not in the log, for a reason that is not a lock. Append it again if it still makes sense."""

    text = "not appended"
    retriable = True
    partition: int
    reason: str


class GaveUpOnConflict(LockConflict):
    """A transactional function, a context or an intent met a conflict at its last attempt. Not in the log.

    `winner`: the transaction that won last. `limit`: what ended the retries, `attempts`, `timeout_s` or `closed` (the client). If `attempts` is high
    and `elapsed_s` short, many clients write the same locks: lock less, or give them turns. Otherwise raise the limit."""

    text = "gave up: newer transactions wrote the locks at each attempt; raise the limit, or name fewer locks that others write"
    partition: int
    winner: int
    attempts: int
    elapsed_s: float
    limit: str


class GaveUp(NotAppended):
    """A transactional function, a context or an intent was not appended. Not in the log; `reason` is of the last attempt.

    `attempts`: how often it was sent. `winner`: the transaction that won the last conflict; None if there was none. `limit`: what ended the retries,
    `attempts`, `timeout_s`, `retry_budget` or `closed` (the client). Append it again if it still makes sense."""

    text = "gave up: not appended"
    partition: int
    reason: str
    attempts: int
    elapsed_s: float
    winner: int | None
    limit: str


class OutcomeUnknown(WaltzError):
    """The transaction may be in the log or not. `client.resolve(error.request)` settles it from the log; do not guess."""

    text = "outcome unknown"
    outcome = "unknown"
    advice = "ask resolve, which reads it from the log"
    partition: int
    client_id: int
    sequence: int
    since: int
    reason: str

    def searched(self, transaction_id: int) -> None:
        """The log was searched up to there in vain: the next search begins above it."""
        self.since = self.facts["since"] = max(self.since, transaction_id)


class Unavailable(WaltzError):
    """Nobody could serve the call in time. Retry later."""

    text = "unavailable"
    retriable = True
    reason: str


class ClusterUnavailable(Unavailable):
    """No coordinator answers at the address, or no cluster is there. Check the address; retry later."""

    text = "cluster unavailable"
    retriable = True
    address: str
    reason: str


class ConnectionLost(Unavailable):
    """One connection could not be made or ended. Retry, here or at another node."""

    text = "connection lost"
    outcome = "unknown"
    retriable = True
    address: str
    reason: str


class NotOwner(Unavailable):
    """This server does not own the partition, or not yet. Look up the owner again."""

    text = "not the owner"
    retriable = True
    partition: int
    reason: str


class OutboxFull(Unavailable):
    """The outbox holds as much, or waits as long, as its settings allow. Nothing was taken. Retry later, or tell your own caller to."""

    text = "outbox full"
    retriable = True
    bytes: int
    reason: str


class Fenced(WaltzError):
    """A newer session, generation or mount took over. Stop writing; open again if you should."""

    text = "fenced: a newer one took over"
    prose = "what"
    outcome = "unknown"
    what: str
    partition: int
    mine: int
    newer: int


class ReplicaFenced(Fenced):
    """A replica refuses the store session: it has seen `newer`, or the same session of another owner. `clean_session`: the newest session in which
    the replica was made clean."""

    what: str
    partition: int
    mine: int
    newer: int
    clean_session: int


class CoordinatorBehind(WaltzError):
    """A replica has been in a store session that the coordinator's metadata does not know: the coordinator was restored to an older state. Nothing
    was truncated or appended, and the partition stays closed until an operator adopts what the replicas hold (docs/guides/operations.md, A restored
    coordinator)."""

    text = "the coordinator is older than the replicas"
    advice = "stop the cluster's nodes and run `waltz cluster adopt --restored`"
    partition: int
    replica: str | None
    recorded: int
    found: int


class BelongsToTopic(WaltzError):
    """The log partition belongs to a topic, and the append addressed it by its number. Nothing of it is in the log. Append through
    `client.topic(name)`, or to a partition of no topic; a client that has to address a topic's partitions by number names the topic in its setting
    `topics`."""

    text = "the log partition is a topic's"
    advice = "append through client.topic(name), or to a partition of no topic"
    partition: int
    topic: str


class NotAllowed(WaltzError):
    """The topic's properties do not allow this to that principal, or to nobody in particular. Nothing was done. Name the right principal in the
    settings, or ask whoever made the topic."""

    text = "not allowed"
    action: str
    topic: str
    principal: str | None

    def _message(self) -> str:
        who = f"principal {self.facts['principal']}" if self.facts["principal"] else "a client without a principal"
        return f"{self.text}: {who} may not {self.facts['action']}, its properties say who may: topic={self.facts['topic']}"


class OutboxTaken(Fenced):
    """Another copy of this outbox's directory forwards now. Nothing more leaves this one; what it still holds can be exported. Find the other."""

    text = "outbox taken over"
    prose = "reason"
    client_id: int
    mine: int
    newer: int
    reason: str


class SessionTooOld(WaltzError):
    """This replica was last made clean in an older session than asked for: its tail may be dirty. Read from another."""

    text = "replica of an older session, whose tail may not be committed: it is not read; read from another one"
    retriable = True
    partition: int
    asked: int
    session: int


class ClusterKeyMismatch(WaltzError):
    """The two sides belong to different clusters. Check addresses and directories."""

    text = "cluster key mismatch: the two sides belong to different clusters, so check the address and the directory"
    expected: str
    got: str


class OutOfRange(WaltzError):
    """The range is not, or no longer, in the log. `first` and `last` bound what is."""

    text = "out of range: the log does not hold this transaction, only those from first to last"
    partition: int
    asked: int
    first: int
    last: int


class CorruptData(WaltzError):
    """Stored or received bytes do not match their checksum or their place. Read from another replica; repair this one."""

    text = "corrupt data"
    where: str
    offset: int
    transaction_id: int
    reason: str


class EnvelopeBroken(WaltzError):
    """A transaction of a keyed topic does not begin with a key: somebody appended it to the log partition and not to the topic. It is whole, and the
    same on every replica. Read on above its id to leave it out; `client.feed` of the log partition shows who appended it."""

    text = "the data does not begin with a key: somebody appended it to the log partition and not to the topic; read on above its id to leave it out"
    topic: str
    partition: int
    transaction_id: int


class StorageFailed(WaltzError):
    """This replica cannot write: its disk failed. Nothing was acknowledged; the node must be looked after."""

    text = "storage failed"
    outcome = "unknown"
    partition: int
    reason: str


class WorkerFailed(WaltzError):
    """A worker process of a node ended soon after each of its starts, and the node with it. What it met is there at the next start too: it told it
    before it ended. `ended` says how it did, the last time."""

    text = "a worker does not stay up; what it logged before it ended says why"
    prose = "ended"
    worker: int
    lives: int
    ended: str


class JournalFull(WaltzError):
    """The journal has as many files as it may, or its disk no more space, and nothing can be reclaimed. Nothing of this call was written. Delete
    what is done with; deletes have room of their own."""

    text = "journal full"
    retriable = True
    reason: str


class JournalFailed(WaltzError):
    """A write or sync of the journal failed. What was not acknowledged may be there or not, and nothing is written any more: the same data is never
    synced twice. Close the journal, look after its disk, and open it again: loading tells what is there."""

    text = "journal failed"
    outcome = "unknown"
    reason: str


class StorageFull(StorageFailed):
    """This replica is read-only until there is room on its disk again. Nothing is broken: it reads, and appends anew by itself. Retry later."""

    text = "storage full"
    outcome = "none"  # type: ignore[assignment]  # annotated it would be a fact
    retriable = True
    partition: int
    reason: str
    free_bytes: int


class ProtocolViolation(WaltzError):
    """The peer sent what the protocol does not allow. The connection ends; fix or upgrade the peer."""

    text = "protocol violation"
    reason: str


# fmt: off
_VERBS: Final = frozenset({
    "are", "cannot", "contains", "does", "expected", "has", "have", "holds", "is", "lies", "may", "must",
    "names", "needs", "points", "saves", "says", "sets", "takes", "want", "wanted", "wants", "was", "were",
})
# fmt: on

_CLASSES: dict[str, type[WaltzError]] = {
    cls.__name__: cls
    for cls in (
        InvalidRequest,
        InvalidSetting,
        TransactionTooLarge,
        UnknownRecord,
        NoSuchTopic,
        TopicDeleted,
        LockConflict,
        GaveUpOnConflict,
        NotAppended,
        GaveUp,
        OutcomeUnknown,
        Unavailable,
        ClusterUnavailable,
        ConnectionLost,
        NotOwner,
        OutboxFull,
        BelongsToTopic,
        NotAllowed,
        Fenced,
        ReplicaFenced,
        OutboxTaken,
        CoordinatorBehind,
        SessionTooOld,
        ClusterKeyMismatch,
        OutOfRange,
        CorruptData,
        EnvelopeBroken,
        StorageFailed,
        StorageFull,
        WorkerFailed,
        JournalFull,
        JournalFailed,
        ProtocolViolation,
    )
}


def encode(error: WaltzError) -> str:
    """The error as one line of JSON, for the detail field of an rpc status."""
    return json.dumps({"error": type(error).__name__, "facts": error.facts}, separators=(",", ":"))


def decode(text: str) -> WaltzError | None:
    """The error that `encode` wrote, or None where `text` is something else."""
    try:
        found = json.loads(text)
        cls = _CLASSES[found["error"]]
        return cls(**found["facts"])
    except (ValueError, KeyError, TypeError):
        return None
