"""The observable events of a run: what clients asked and received, what readers saw, what storage acknowledged, what was written to the coordinator,
and at the end what the log and the replicas hold. Checkers are functions of this alone.

A transaction's data begins with the number of its attempt, so that a reader of the log knows the sender.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from verification.simulation.kept_evidence import KeptEvidence
from verification.simulation.lock_orders import LockOrder
from waltz_log.client import Transaction
from waltz_log.server.base.settings import QuotaSettings

__all__ = [
    "Acknowledgment",
    "Attempt",
    "ClientIdGiven",
    "Evidence",
    "History",
    "MarkSeen",
    "MemoryLost",
    "MetadataWrite",
    "OperationFailed",
    "ReplicaOpened",
    "Seen",
    "SessionOpened",
    "SyncFailed",
    "number_of",
]


def number_of(data: bytes) -> int:
    """The attempt that a transaction's data names."""
    return int(data.partition(b"|")[0])


@dataclass(slots=True)
class Attempt:
    """One append as its client made it. `mark`: the high-water mark that the application passed; None if it left that to the client."""

    number: int
    client: str
    kind: str
    partition: int
    started_s: float
    timeout_s: float
    mark: int | None = None
    write: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    append: tuple[str, ...] = ()
    ended_s: float | None = None
    outcome: Literal["pending", "committed", "rejected", "not appended", "unknown", "died"] = "pending"
    transaction_id: int | None = None
    winner: int | None = None
    resolved: Literal["no", "committed", "absent"] = "no"
    answers: int = 0
    in_memory: bool = False
    """Its receipt said that it was not on disk yet."""

    @property
    def checked(self) -> frozenset[str]:
        return frozenset((*self.write, *self.read))

    @property
    def in_log(self) -> bool | None:
        """The outcome that its client received; None if there is none."""
        if self.outcome == "committed" or self.resolved == "committed":
            return True
        if self.outcome in ("rejected", "not appended") or self.resolved == "absent":
            return False
        return None


@dataclass(frozen=True, slots=True)
class Seen:
    """A batch that a reader received. `stream`: its feed or read; ids are consecutive within one."""

    reader: str
    stream: int
    partition: int
    at_s: float
    after: int
    transactions: Sequence[Transaction]
    with_data: bool = True


@dataclass(frozen=True, slots=True)
class MarkSeen:
    """A committed mark that a client requested and received."""

    client: str
    partition: int
    at_s: float
    mark: int


@dataclass(frozen=True, slots=True)
class Acknowledgment:
    """A storage node reported to an owner that it has everything up to here on disk, and up to `received` at least in memory.
    `at_s` is when it said so, which may be before the owner had room for it."""

    at_s: float
    storage: str
    life: int
    partition: int
    last: int
    received: int = -1


@dataclass(frozen=True, slots=True)
class MetadataWrite:
    """`expected`: the version that was compared, None for a node that was created, -1 for a write that compared nothing."""

    at_s: float
    path: str
    data: bytes
    expected: int | None
    version: int


@dataclass(frozen=True, slots=True)
class MarkSent:
    """An owner sent a replica the mark of its session. `recorded`: the partition's metadata then."""

    at_s: float
    partition: int
    replica: str
    session: int
    mark: int
    recorded: bytes


@dataclass(frozen=True, slots=True)
class ReplicaOpened:
    """A storage node reported to the owner of `session` what its replica holds. `address`: another one for each life of the node; `clean_in`: the
    last session in which the replica was clean; `kept`: its local low-water mark; `last`: its last transaction."""

    at_s: float
    storage: str
    address: str
    partition: int
    session: int
    clean_in: int
    kept: int
    last: int


@dataclass(frozen=True, slots=True)
class SessionOpened:
    at_s: float
    partition: int
    session: int
    high_water_mark: int


@dataclass(frozen=True, slots=True)
class SyncFailed:
    at_s: float
    storage: str
    life: int
    partition: int


@dataclass(frozen=True, slots=True)
class OperationFailed:
    """An operation on the log of a partition failed with an input/output error. `kind`: that of the disk's `Operation`."""

    at_s: float
    storage: str
    life: int
    partition: int
    kind: str


@dataclass(frozen=True, slots=True)
class MemoryLost:
    """A storage node lost unsynced data: its machine died, or a sync failed."""

    at_s: float
    storage: str


@dataclass(frozen=True, slots=True)
class QuotaEvent:
    """`meter`: the quota of one principal and topic at one server. `accepted`: the number of appends that were ordered, of `accepted_bytes`;
    None: a frame was refused. `at_s`: on the clock of the server's process."""

    meter: int
    at_s: float
    accepted: int | None
    accepted_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ClientIdGiven:
    """`host`: of the client that a server gave the id to."""

    host: str
    client_id: int
    ticket: str


@dataclass
class History:
    attempts: list[Attempt] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    marks: list[MarkSeen] = field(default_factory=list)
    acknowledgments: list[Acknowledgment] = field(default_factory=list)
    metadata: list[MetadataWrite] = field(default_factory=list)
    reported_marks: list[MarkSent] = field(default_factory=list)
    replicas_opened: list[ReplicaOpened] = field(default_factory=list)
    sessions: list[SessionOpened] = field(default_factory=list)
    lock_orders: list[LockOrder] = field(default_factory=list)
    """By the time at which each lock table began."""
    quota_events: list[QuotaEvent] = field(default_factory=list)
    syncs_failed: list[SyncFailed] = field(default_factory=list)
    operations_failed: list[OperationFailed] = field(default_factory=list)
    memory_lost: list[MemoryLost] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """Requests of strangers that were answered like those of members."""
    complaints: list[str] = field(default_factory=list)
    """Observations of clients and of the harness that must never happen; each names its invariant."""
    streams: int = 0
    client_ids: dict[int, ClientIdGiven] = field(default_factory=dict)

    def give_client_id(self, given: ClientIdGiven) -> None:
        """A server answers a client with an id."""
        before = self.client_ids.setdefault(given.client_id, given)
        if before is not given:
            self.complaints.append(f"34: a client id was given twice: client_id={given.client_id} hosts={before.host}, {given.host}")


@dataclass(frozen=True)
class Evidence:
    """`logs`: each partition as a client reads it in the end; `replicas`: as each storage node serves it, or the error it gives."""

    history: History
    replicas_assigned: dict[int, int]
    logs: dict[int, list[Transaction]]
    replicas: dict[int, dict[str, bytes | str]]
    healed_s: float
    first_append_s: dict[int, float]
    """For each partition how long after the last fault an append of a new client was committed."""
    heal_bound_s: float
    lock_entries_max: int = 1_000_000
    """Of every owner's lock table."""
    times_kept: bool = True
    """No machine crashed and no disk failed or was corrupted: append times are synced later than the transactions they are of."""
    longest_pause_s: float = 0.0
    """How long a client may have been stopped."""
    kept: Sequence[KeptEvidence] = ()
    """Of topics that are trimmed and compacted; their logs are not in `logs`."""
    clock_rate_min: float = 1.0
    """How fast the slowest clock of a client may have gone."""
    clocks_kept: bool = True
    """No node's date jumped."""
    quota: QuotaSettings | None = None
    """The quota of each principal and topic at each server; None: there is none."""
    loss_window_s: Mapping[int, float] = field(default_factory=dict)
    """For each partition that acknowledges from memory: how long after the acknowledgment a transaction may still be lost with a machine. Others are
    not listed."""

    def may_be_lost(self, attempt: Attempt) -> bool:
        """Whether the policy of its topic excuses that the log does not hold it: some machine lost its memory before it must have been synced."""
        window_s = self.loss_window_s.get(attempt.partition)
        if window_s is None or not attempt.in_memory or attempt.ended_s is None:
            return False
        return any(attempt.started_s <= each.at_s <= attempt.ended_s + window_s for each in self.history.memory_lost)
