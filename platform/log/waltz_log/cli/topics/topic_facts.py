"""What `waltz topic describe` tells of a topic's partitions beside what was agreed: where each begins and ends, its size, its compacted view, and who
reads it how far behind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from waltz_log.coordination.subscribers import read_retained, read_subscribers
from waltz_log.coordination.survey import Survey, survey
from waltz_log.core.ports import Coordinator, Network
from waltz_log.core.topics.catalogue import Topic

__all__ = ["partition_facts"]


async def partition_facts(coordinator: Coordinator, network: Network, address: str, topic: Topic) -> list[dict[str, Any]]:
    """One for each partition. What no owner tells is None. Raises `ClusterUnavailable` where no cluster is there."""
    found = await survey(coordinator, network, address)
    subscribers = await read_subscribers(coordinator)
    facts = []
    for place, partition in enumerate(topic.partitions):
        high = next((each.high_water_mark for each in found.partitions if each.partition == partition), None)
        upkeep = _upkeep(found, partition)
        replicas: Mapping[str, Any] = upkeep.get("replicas", {})
        lags = {
            each.name: {"mark": each.marks[partition], "lag_transactions": None if high is None else max(0, high - each.marks[partition])}
            for each in subscribers
            if partition in each.marks
        }
        facts.append(
            {
                "partition": place,
                "log_partition": partition,
                "first_retained": max((await read_retained(coordinator, partition)).first, upkeep.get("first", 0)),
                "high_water_mark": high,
                "bytes": max((each["bytes"] for each in replicas.values()), default=None),
                "held_by": upkeep.get("held_by"),
                "view": {name: each["view"] for name, each in replicas.items() if each["view"] is not None} if topic.type == "compaction" else None,
                "wrong": {name: each["view_error"] for name, each in replicas.items() if each["view_error"]},
                "subscribers": lags,
            }
        )
    return facts


def _upkeep(found: Survey, partition: int) -> Mapping[str, Any]:
    """As the partition's owner told it after its last round."""
    for server in found.servers:
        told = server.status.get("partitions", {}).get(str(partition), {})
        if told.get("state") == "open":
            upkeep: Mapping[str, Any] = told.get("upkeep", {})
            return upkeep
    return {}
