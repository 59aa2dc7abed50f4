"""Signs that a topic should be another one (Partitioned WAL, Compaction Topics). Pure.

The document names two: an index that is nearly as large as its segment, and a tiny key space. A view has one entry in its indexes for each key, so
both follow from how many keys the transactions of a view have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final  # Any: JSON values

from waltz_log.core.topics.catalogue import Topic

__all__ = ["misuses"]

TRANSACTIONS_MIN: Final = 10_000
"""With fewer in its views, a topic is too young to judge."""
KEYS_OF_TRANSACTIONS: Final = 0.8
"""From this share of keys in the transactions on, compaction removes less than a fifth."""
KEYS_OF_PARTITION: Final = 100


def misuses(topic: Topic, facts: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence for each sign. `facts`: of the topic's partitions, as `partition_facts` returns them. Partitions without a view do not count."""
    views = [max(each["view"].values(), key=lambda view: int(view["bound"])) for each in facts if each["view"]]
    transactions = sum(view["bound"] - view["start"] for view in views)
    keys = sum(view["records"] for view in views)
    if topic.type != "compaction" or transactions < TRANSACTIONS_MIN:
        return []
    if keys >= KEYS_OF_TRANSACTIONS * transactions:
        saved = f"{keys:,} keys in {transactions:,} transactions, so the index is nearly as large as the data and compaction saves little"
        return [f"{topic.name} has {saved}; a regular topic fits better"]
    if keys < KEYS_OF_PARTITION * len(views):
        tiny = f"only {keys:,} keys in {len(views):,} partitions, and each partition costs memory and files"
        return [f"{topic.name} has {tiny}; combine several such topics into one, and filter by key in the client"]
    return []
