"""The errors of the platform: one tree, few classes, each with typed fields.

    WaltzError
    ├── InvalidRequest            the request can never succeed; nothing was sent       fix it
    │   ├── InvalidSetting        an option or setting is unknown or unusable
    │   ├── InvalidBatch          a row of a batch can never be appended                fix or leave out the row
    │   ├── TransactionTooLarge   one transaction is above a limit
    │   ├── UnknownRecord         the journal holds no such record or transaction
    │   ├── NoSuchTopic           the catalog has no topic of that name
    │   └── TopicDeleted          the topic was deleted while it was in use             resolve it again, or stop
    ├── LockConflict              decided: not in the log                               read up to `winner`, decide again
    │   └── GaveUpOnConflict      the same, after retries that met conflicts            raise the limit that was reached, or lock less
    ├── NotAppended               decided: not in the log                               append again if it still makes sense
    │   ├── QuotaExceeded         the same, as the principal's quota is used up         append again after `retry_after_s`
    │   └── GaveUp                the same, after retries                               raise the limit that was reached, or try later
    ├── OutcomeUnknown            may be in the log or not                              call `resolve`
    ├── Unavailable               no node answers; this call decided nothing            retry later
    │   ├── ClusterUnavailable    no coordinator or cluster at the address
    │   ├── ConnectionLost        one connection ended
    │   ├── NotOwner              this server does not own the partition                find the new owner
    │   └── OutboxFull            the outbox is at its limit; it accepted nothing       retry later, or report it to the caller
    ├── BelongsToTopic            the log partition belongs to a topic                  append through `client.topic(name)`
    ├── NotAllowed                the topic does not allow this to that principal       ask the topic's owner
    │   └── PermissionDenied      the client's certificate gives it no role for this    use one that has the role
    ├── Fenced                    a newer session or mount replaced this one            stop; open again
    │   ├── ReplicaFenced         the same, reported by one replica
    │   └── OutboxFenced          another copy of the outbox's directory replaced it    find the other copy
    ├── CoordinatorBehind         the coordinator was restored, its replicas were not   an operator adopts what the replicas hold
    ├── SessionTooOld             the replica's tail may not be committed               read from another replica
    ├── ClusterKeyMismatch        the node belongs to another cluster                   check the address
    ├── OutOfRange                the range is not in the log, or no longer             choose a position within it
    │   ├── NotCommittedYet       the log does not reach this transaction               check the id, or try again later
    │   └── Trimmed               retention removed the transaction                     search a table or a backup
    ├── CorruptData               bytes do not match their checksum                     read from another replica, repair this one
    ├── EnvelopeBroken            a transaction of a keyed topic has no key             find who appended it; read on past it
    ├── StorageFailed             this replica's disk failed                            repair the node
    │   └── StorageFull           this replica's disk is full                           make room; retry later
    ├── WorkerFailed              a worker process ends after each start                read its last log lines
    ├── JournalFull               a journal has no room; nothing was written            delete from it, then retry
    ├── JournalFailed             a journal's disk failed                               close it, repair the disk, open it again
    ├── UndeclaredTransition      a session changed its state as it never should        report it as a defect
    └── ProtocolViolation         the peer sent what the protocol does not allow        upgrade or fix the peer

`base` says how fields are declared and checked. Every error survives pickling and the wire (`encode`, `decode`). `outcome` says whether the failed
call may have had an effect, `retriable` whether the same call can succeed later, and `exit_code` how a command ends. docs/reference/errors.md is
generated from these classes.

A message is a sentence that says what happened and, where the class does not say it, what to do; then the fields as `key=value`. It begins in lower
case, because commands put their name before it and log events a key. A field that is prose is printed as prose.

A docstring says what happened, and after `To do:` what the caller should do.
"""

from __future__ import annotations

from waltz_log.errors.appends import GaveUp, GaveUpOnConflict, LockConflict, NotAppended, OutcomeUnknown, QuotaExceeded
from waltz_log.errors.availability import ClusterUnavailable, ConnectionLost, NotOwner, OutboxFull, ProtocolViolation, Unavailable
from waltz_log.errors.base import WaltzError, exit_code_of
from waltz_log.errors.data import CorruptData, EnvelopeBroken, NotCommittedYet, OutOfRange, Trimmed
from waltz_log.errors.defects import UndeclaredTransition
from waltz_log.errors.fencing import ClusterKeyMismatch, CoordinatorBehind, Fenced, OutboxFenced, ReplicaFenced, SessionTooOld
from waltz_log.errors.machine import JournalFailed, JournalFull, StorageFailed, StorageFull, WorkerFailed
from waltz_log.errors.requests import (
    BelongsToTopic,
    InvalidBatch,
    InvalidRequest,
    InvalidSetting,
    NoSuchTopic,
    NotAllowed,
    PermissionDenied,
    TopicDeleted,
    TransactionTooLarge,
    UnknownRecord,
)
from waltz_log.errors.wire import decode, encode

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
    "InvalidBatch",
    "InvalidRequest",
    "InvalidSetting",
    "JournalFailed",
    "JournalFull",
    "LockConflict",
    "NoSuchTopic",
    "NotAllowed",
    "NotAppended",
    "NotCommittedYet",
    "NotOwner",
    "OutOfRange",
    "OutboxFenced",
    "OutboxFull",
    "OutcomeUnknown",
    "PermissionDenied",
    "ProtocolViolation",
    "QuotaExceeded",
    "ReplicaFenced",
    "SessionTooOld",
    "StorageFailed",
    "StorageFull",
    "TopicDeleted",
    "TransactionTooLarge",
    "Trimmed",
    "Unavailable",
    "UndeclaredTransition",
    "UnknownRecord",
    "WaltzError",
    "WorkerFailed",
    "decode",
    "encode",
    "exit_code_of",
]

for _name in __all__:
    globals()[_name].__module__ = __name__  # the name that users import, and that tracebacks show
