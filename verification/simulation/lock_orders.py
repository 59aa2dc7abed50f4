"""What one lock table of an owner judged, in that order, and which rejections its owner sent to clients.

`locks_seen.py` records it while a run goes on, and `lock_checkers.py` replays it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["JudgedAppend", "JudgedFrame", "LockOrder", "RejectionSent"]


@dataclass(frozen=True, slots=True)
class JudgedAppend:
    """One transaction as its frame carries it. Locks are the hashes on the wire. `number`: the attempt that its data names, None if it names none.
    Accepted: it has a transaction id. Rejected: it has a winner, and `holder` is the lock that it lost."""

    sequence: int
    number: int | None
    mark: int
    own: bool
    write: tuple[int, ...] = ()
    read: tuple[int, ...] = ()
    append: tuple[int, ...] = ()
    transaction_id: int | None = None
    winner: int | None = None
    holder: int | None = None


@dataclass(frozen=True, slots=True)
class JudgedFrame:
    """The transactions of a frame that came to the locks, without those that the owner refused before. `locking`: the frame has a column of lock
    counts."""

    client_id: int
    mount_sequence: int
    locking: bool
    appends: tuple[JudgedAppend, ...]


@dataclass(frozen=True, slots=True)
class RejectionSent:
    """The owner passed a rejection to the stream of the mount."""

    at_s: float
    client_id: int
    mount_sequence: int
    sequence: int
    winner: int


@dataclass
class LockOrder:
    """One lock table. `session`, `high_water_mark`: those that the partition opened with; the table outlasts a renewal of the session. `floor`,
    `writers`: what the table holds before the first frame."""

    partition: int
    high_water_mark: int
    session: int = -1
    floor: int = -1
    writers: dict[int, int] = field(default_factory=dict)
    events: list[JudgedFrame | RejectionSent] = field(default_factory=list)
