"""What a client counts of itself: frozen snapshots, for an application's own metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from waltz_log.statistics import ByKey, Highest, Newest, Summed, snapshot

__all__ = ["ClientPartitionStatistics", "ClientStatistics"]


@snapshot
@dataclass(frozen=True, slots=True)
class ClientPartitionStatistics:
    """Appends of one client to one partition. Counts begin with the client."""

    mounted: Highest[bool]
    """Whether an owner accepts appends now, as far as the client knows."""
    pending: Summed[int]
    """Appends without an outcome yet: in the queue or sent. Bounded by `max_pending`."""
    pending_bytes: Summed[int]
    """Their size; bounded by `max_pending_bytes`."""
    in_flight: Summed[int]
    """Those of them that were sent."""
    appended: Summed[int]
    rejected: Summed[int]
    """Appends that ended with `LockConflict`."""
    not_appended: Summed[int]
    """Appends that ended with `NotAppended`: never sent, or refused because storage was full."""
    unknown: Summed[int]
    """Appends that ended with `OutcomeUnknown`."""
    frames: Summed[int]
    """Messages with appends. Appends that share a frame share what it costs: their mean number is `appended` divided by `frames`."""
    mounts: Summed[int]
    """Connections to an owner that became ready."""
    disconnects: Summed[int]
    """Connections to an owner that ended by an error, also because the partition moved."""


@snapshot
@dataclass(frozen=True, slots=True)
class ClientStatistics:
    """`partitions`: those that the client has appended to. `max_pending`, `max_pending_bytes`: the bounds of each partition. `retries`: executions of
    transactions that were repeated after a conflict or a `NotAppended`."""

    client_id: Newest[int]
    partitions: ByKey[Mapping[int, ClientPartitionStatistics]]
    max_pending: Newest[int]
    max_pending_bytes: Newest[int]
    retries: Summed[int]
