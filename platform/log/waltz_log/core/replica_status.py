"""The state of one replica in one word: the words, their meanings, and when a partition can accept appends.

The owner reports the first eight, which follow its session with the replica. `surveyed_status` adds those that only a survey of every node can
know. Each word means one state only; docs/guides/operations.md lists the same table.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Final

from waltz_log.core.recovery import majority

__all__ = ["ReplicaStatus", "can_commit", "surveyed_status"]


class ReplicaStatus(StrEnum):
    """Only those that `counts` says count towards a majority that can accept appends."""

    LIVE = "live"
    CATCHING_UP = "catching up"
    COPYING = "copying"
    RECOVERING = "recovering"
    CONNECTING = "connecting"
    FULL = "full"
    FAILED = "failed"
    CORRUPT = "corrupt"
    REPAIRING = "repairing"
    UNREACHABLE = "unreachable"
    NEVER_STARTED = "never started"
    WAITING = "waiting"

    @property
    def meaning(self) -> str:
        """The word explained to an operator."""
        return _MEANINGS[self]

    @property
    def counts(self) -> bool:
        """Whether an append that it acknowledges counts now."""
        return self in (ReplicaStatus.LIVE, ReplicaStatus.REPAIRING)

    @property
    def follows(self) -> bool:
        """Whether it is connected and receives what it lacks or what is appended."""
        return self in (ReplicaStatus.LIVE, ReplicaStatus.CATCHING_UP, ReplicaStatus.COPYING)


_MEANINGS: Final[Mapping[ReplicaStatus, str]] = {
    ReplicaStatus.LIVE: "It receives each block as it is appended, and its acknowledgments count.",
    ReplicaStatus.CATCHING_UP: "It belongs to the session but is behind: the owner sends it blocks that are no longer in the owner's memory.",
    ReplicaStatus.COPYING: "It is being filled from other replicas and does not count until it holds everything that was committed.",
    ReplicaStatus.RECOVERING: "The owner compares it with the other replicas, and truncates it where they decide so.",
    ReplicaStatus.CONNECTING: "The owner is opening a connection to its storage node.",
    ReplicaStatus.FULL: "Its disk has no room: it refuses appends and serves reads. Make room; the owner tries again by itself.",
    ReplicaStatus.FAILED: "The owner's last attempt, or a write to the disk, failed; the error says why. After a failed write restart the node.",
    ReplicaStatus.CORRUPT: "Its stored data is damaged and the storage node refuses to serve it. Replace the replica or restore a backup.",
    ReplicaStatus.REPAIRING: "Some of its segments are corrupt. It accepts appends, serves its valid data, and repairs itself from other replicas.",
    ReplicaStatus.UNREACHABLE: "Its storage node, or the worker that holds the partition, does not answer. Start the node.",
    ReplicaStatus.NEVER_STARTED: "It is assigned to a storage node of a name that has never been started. Start it, or correct the name.",
    ReplicaStatus.WAITING: "Its storage node answers, and no owner reports on it: the partition has no owner, or the owner does not answer.",
}


def surveyed_status(
    *, started: bool, answers: bool, stopped: ReplicaStatus | None, owner: ReplicaStatus | None, repairing: bool = False
) -> ReplicaStatus:
    """The status of a replica after a survey of all nodes.

    `started`: its node has ever been started; `answers`: the node answers, for this partition; `stopped`: why the node serves nothing of the
    partition, `FAILED` or `CORRUPT`; `owner`: the status that the partition's owner reports. A node that does not answer now outweighs an owner that
    has not noticed yet. `repairing`: the node knows of corrupt segments, so the replica is not reported as live."""
    if not started:
        return ReplicaStatus.NEVER_STARTED
    if not answers:
        return ReplicaStatus.UNREACHABLE
    if stopped is not None:
        return stopped
    if repairing and owner is ReplicaStatus.LIVE:
        # Its acknowledgments still count: they state that new blocks are on its disk, which is true.
        return ReplicaStatus.REPAIRING
    return ReplicaStatus.WAITING if owner is None else owner


def can_commit(*, served: bool, replicas: Collection[ReplicaStatus]) -> bool:
    """Whether an append to the partition can be committed now: an owner serves it, and a majority of its session's replicas is live. `replicas`: one
    word for each replica of the session."""
    return served and sum(status.counts for status in replicas) >= majority(len(replicas))
