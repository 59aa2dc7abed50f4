"""What `waltz topic describe` shows about a topic's partitions besides the catalog: the first and last id of each, its size, its compacted view, its
subscribers and their lag."""

from __future__ import annotations

import json
from typing import Any, Final  # Any: JSON values

from waltz_log.client.feed.subscriber_entries import subscriber_entries
from waltz_log.client.inspection.usable_bounds import bounds_with_upkeep
from waltz_log.client.owners.owners import Owners
from waltz_log.core.status.server_statistics import UpkeepStatistics
from waltz_log.core.topics.catalogue import Topic
from waltz_log.core.topics.subscribers import Subscriber
from waltz_log.errors import PermissionDenied, WaltzError
from waltz_log.statistics import from_json, to_json

__all__ = ["partition_facts"]

SUBSCRIBERS_S: Final = 2.0
"""For the subscribers, which log servers read from the coordinator."""


async def partition_facts(owners: Owners, topic: Topic, timeout_s: float) -> list[dict[str, Any]]:
    """One for each partition. A value is None if no owner reports it. Of the subscribers, those of this principal; for an operator all."""
    bounds = await bounds_with_upkeep(owners, topic.partitions)
    subscribers = await _subscribers(owners, timeout_s)
    facts = []
    for place, partition in enumerate(topic.partitions):
        bound = bounds.get(partition)
        high = None if bound is None else bound.high_water_mark
        upkeep = UpkeepStatistics()
        if bound is not None and bound.upkeep:
            upkeep = from_json(UpkeepStatistics, json.loads(bound.upkeep), unknown="ignore", missing="empty")
        replicas = upkeep.replicas or {}
        lags = (
            None
            if subscribers is None
            else {
                each.name: {"mark": each.marks[partition], "lag_transactions": None if high is None else max(0, high - each.marks[partition])}
                for each in subscribers
                if partition in each.marks
            }
        )
        facts.append(
            {
                "partition": place,
                "log_partition": partition,
                "first_retained": None if bound is None else max(bound.first_transaction_id, upkeep.first or 0),
                "high_water_mark": high,
                "bytes": max((each.bytes for each in replicas.values()), default=None),
                "held_by": upkeep.held_by or None,
                "view": {name: to_json(each.view) for name, each in replicas.items() if each.view is not None}
                if topic.type == "compaction"
                else None,
                "wrong": {name: each.view_error for name, each in replicas.items() if each.view_error},
                "subscribers": lags,
            }
        )
    return facts


async def _subscribers(owners: Owners, timeout_s: float) -> list[Subscriber] | None:
    """Empty for a principal that may read nothing: it can have none. None: not known, because the log servers do not reach the coordinator."""
    try:
        return (await subscriber_entries(owners, min(timeout_s, SUBSCRIBERS_S)))[0]
    except PermissionDenied:
        return []
    except WaltzError as error:
        if not error.retriable:
            raise
        return None
