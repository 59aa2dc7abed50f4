"""A storage node as its services see it: what they read of it and what they ask of it. `StorageNode` is the only one that the product has."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, TypeAlias
from uuid import UUID

from waltz_log.coordination.followed import KnownValues
from waltz_log.core.ports import Clock
from waltz_log.core.status.storage_statistics import NodeStatistics
from waltz_log.storage.base.settings import StorageSettings
from waltz_log.storage.node.read_access import ReadAccess
from waltz_log.storage.replica.partition_store import PartitionStore
from waltz_log.storage.views.topic_metadata import TopicMetadata
from waltz_log.storage.views.views import Views
from waltz_log.transport.unread import Unread

__all__ = ["MeasureRoundTrips", "ServedNode"]

MeasureRoundTrips: TypeAlias = Callable[[], Awaitable[Mapping[str, float | None]]]
"""Milliseconds to the other storage nodes, by name; None for one that does not answer."""


class ServedNode(Protocol):
    settings: StorageSettings
    clock: Clock
    views: Views
    topics: TopicMetadata
    access: ReadAccess
    unread: Unread
    measure_round_trips: MeasureRoundTrips | None
    known: KnownValues

    @property
    def cluster_key(self) -> UUID: ...
    @property
    def start(self) -> int:
        """How often the node was started."""
        ...

    @property
    def full(self) -> bool:
        """Whether appends are refused until there is room on the disk."""
        ...

    async def partition(self, partition: int) -> PartitionStore: ...
    async def keep_client_ids(self, last: int) -> int: ...
    async def grow_control_file(self, partitions: int) -> None: ...
    def statistics(self) -> NodeStatistics: ...
