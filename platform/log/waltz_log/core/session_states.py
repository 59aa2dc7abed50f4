"""The states of the owner's sessions and every transition between them: of one replica, of the store session, of one mount.

A machine refuses a transition that its table does not declare. docs/reference/states.md is generated from these tables. A transition happens when
a replica connects or fails, when a session opens or ends: never for each block or transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Generic, TypeVar

from waltz_log.core.replica_status import ReplicaStatus
from waltz_log.errors import UndeclaredTransition

__all__ = ["MOUNT", "REPLICA_SESSION", "STORE_SESSION", "MountState", "StateMachine", "StateTable", "StoreState"]


class StoreState(StrEnum):
    """The states of a store session."""

    OPENING = "opening"
    OPEN = "open"
    CLOSING = "closing"
    REOPENING = "reopening"
    ENDED = "ended"

    @property
    def opened(self) -> bool:
        """Whether the session that has the current number was opened, and nothing ended it."""
        return self in (StoreState.OPEN, StoreState.CLOSING)

    @property
    def renewing(self) -> bool:
        """Whether it is between two sessions of one owner."""
        return self in (StoreState.CLOSING, StoreState.REOPENING)


class MountState(StrEnum):
    """The states of a mount."""

    CATCHING_UP = "catching up"
    READY = "ready"
    FAILED = "failed"


S = TypeVar("S", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class StateTable(Generic[S]):
    """`transitions`: from each state to those that may follow it, each with the event that causes the transition. A state that is no key is final."""

    machine: str
    initial: S
    meanings: Mapping[S, str]
    transitions: Mapping[S, Mapping[S, str]]


class StateMachine(Generic[S]):
    """The current state of one session."""

    __slots__ = ("_current", "_table")

    def __init__(self, table: StateTable[S]) -> None:
        self._table = table
        self._current = table.initial

    @property
    def current(self) -> S:
        return self._current

    def move(self, target: S) -> None:
        """Raises `UndeclaredTransition`, and the state stays."""
        if target not in self._table.transitions.get(self._current, {}):
            raise UndeclaredTransition(machine=self._table.machine, source=str(self._current), target=str(target))
        self._current = target


_FAILURE: Final[Mapping[ReplicaStatus, str]] = {
    ReplicaStatus.FAILED: "a call or the stream fails",
    ReplicaStatus.CORRUPT: "the same, and the node refuses to open the partition: its data is damaged",
}
_AGAIN: Final[Mapping[ReplicaStatus, str]] = {ReplicaStatus.CONNECTING: "the store session is renewed"}

REPLICA_SESSION: Final = StateTable(
    machine="replica session",
    initial=ReplicaStatus.CONNECTING,
    meanings={
        status: status.meaning
        for status in (
            ReplicaStatus.CONNECTING,
            ReplicaStatus.RECOVERING,
            ReplicaStatus.COPYING,
            ReplicaStatus.LIVE,
            ReplicaStatus.CATCHING_UP,
            ReplicaStatus.FAILED,
            ReplicaStatus.CORRUPT,
        )
    },
    transitions={
        ReplicaStatus.CONNECTING: {ReplicaStatus.CONNECTING: "a new store session begins", ReplicaStatus.RECOVERING: "connected", **_FAILURE},
        ReplicaStatus.RECOVERING: {
            ReplicaStatus.COPYING: "it ends below the mark that the vote decided",
            ReplicaStatus.LIVE: "clean at the mark, and the session is open",
            **_AGAIN,
            **_FAILURE,
        },
        ReplicaStatus.COPYING: {ReplicaStatus.LIVE: "clean at the mark, and the session is open", **_AGAIN, **_FAILURE},
        ReplicaStatus.LIVE: {ReplicaStatus.CATCHING_UP: "its next block is no longer in the owner's memory", **_AGAIN, **_FAILURE},
        ReplicaStatus.CATCHING_UP: {ReplicaStatus.LIVE: "its next block is in the owner's memory", **_AGAIN, **_FAILURE},
        ReplicaStatus.FAILED: {ReplicaStatus.CONNECTING: "the pause is over, or the node is back"},
        ReplicaStatus.CORRUPT: {ReplicaStatus.CONNECTING: "the pause is over, or the node is back"},
    },
)

_ENDS: Final = "fenced or closed, or a defect"

STORE_SESSION: Final = StateTable(
    machine="store session",
    initial=StoreState.OPENING,
    meanings={
        StoreState.OPENING: "The replicas recover. Nothing can be appended.",
        StoreState.OPEN: "A majority of the assigned replicas is clean, and the metadata says so. Blocks are appended and committed.",
        StoreState.CLOSING: "The owner records the closing mark of an idle session, to go on under the next number. Nothing is appended.",
        StoreState.REOPENING: "The replicas recover under the next session number. Blocks in memory, reads and mounts stay.",
        StoreState.ENDED: "The session accepts no more blocks. What was in flight is decided by the next session.",
    },
    transitions={
        StoreState.OPENING: {StoreState.OPEN: "a majority is clean", StoreState.ENDED: _ENDS},
        StoreState.OPEN: {StoreState.CLOSING: "the owner renews the session, for other replicas or a checkpoint", StoreState.ENDED: _ENDS},
        StoreState.CLOSING: {StoreState.REOPENING: "the metadata has the closing mark and the next number", StoreState.ENDED: _ENDS},
        StoreState.REOPENING: {StoreState.OPEN: "a majority is clean", StoreState.ENDED: _ENDS},
    },
)

MOUNT: Final = StateTable(
    machine="mount",
    initial=MountState.CATCHING_UP,
    meanings={
        MountState.CATCHING_UP: "The client is fed up to the high-water mark that the mount began with. It may not append yet.",
        MountState.READY: "The client may append. Every older request of it is decided.",
        MountState.FAILED: "The mount ends, and the client receives the error.",
    },
    transitions={
        MountState.CATCHING_UP: {MountState.READY: "fed up to the mark", MountState.FAILED: "fenced, moved, or the feed fails"},
        MountState.READY: {MountState.FAILED: "fenced, moved, or a request fails"},
    },
)
