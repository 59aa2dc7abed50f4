"""What `waltz topic describe` shows about a topic's partitions besides the catalog: the first and last id of each, its size, its compacted view, its
subscribers and their lag."""

from __future__ import annotations

from typing import Any  # JSON values

from waltz_log.coordination.subscribers import read_retained, read_subscribers
from waltz_log.coordination.survey import Survey, survey
from waltz_log.core.ports import Coordinator, Network
from waltz_log.core.status.server_statistics import OpenPartitionStatistics, UpkeepStatistics
from waltz_log.core.topics.catalogue import Topic
from waltz_log.statistics import to_json

__all__ = ["partition_facts"]


async def partition_facts(coordinator: Coordinator, network: Network, address: str, topic: Topic) -> list[dict[str, Any]]:
    """One for each partition. A value is None if no owner reports it. Raises `ClusterUnavailable` if there is no cluster."""
    found = await survey(coordinator, network, address)
    subscribers = await read_subscribers(coordinator)
    facts = []
    for place, partition in enumerate(topic.partitions):
        high = next((each.high_water_mark for each in found.partitions if each.partition == partition), None)
        upkeep = _upkeep(found, partition)
        replicas = upkeep.replicas or {}
        lags = {
            each.name: {"mark": each.marks[partition], "lag_transactions": None if high is None else max(0, high - each.marks[partition])}
            for each in subscribers
            if partition in each.marks
        }
        facts.append(
            {
                "partition": place,
                "log_partition": partition,
                "first_retained": max((await read_retained(coordinator, partition)).first, upkeep.first or 0),
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


def _upkeep(found: Survey, partition: int) -> UpkeepStatistics:
    """As the partition's owner reported it after its last round."""
    reported = (server.statistics.partitions.get(partition) for server in found.servers)
    return next((each.upkeep for each in reported if isinstance(each, OpenPartitionStatistics)), UpkeepStatistics())
