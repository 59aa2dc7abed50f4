"""What `waltz topic describe` says of a topic's promises, without a cluster."""

from __future__ import annotations

import pytest

from waltz_log.cli.topics.topics import acknowledged_means, default_partitions, loss_window, writer_memory
from waltz_log.core.topics.catalogue import Catalogue, Policies, Topic
from waltz_log.core.topics.topic_names import TopicName


def test_the_loss_window_is_the_policys_own() -> None:
    assert loss_window(Policies()) == "none"
    assert acknowledged_means(Policies()) == "on the disks of a majority of the replicas"
    fast = Policies(durability="quorum_memory", flush_period_ms=500, flush_bytes=4096)
    assert loss_window(fast).startswith("the last 500 ms or 4096 bytes")
    assert "in the memory of a majority" in acknowledged_means(fast)


def test_writers_memory_is_reported_with_the_keys_of_a_compaction_topic() -> None:
    regular = Topic(TopicName("n", "t"), "regular", (0,), False, {}, Policies(), 0)
    compaction = Topic(TopicName("n", "t"), "compaction", (0,), True, {}, Policies(), 0)
    assert writer_memory(regular) == "1 MiB and one block for each partition on a storage node, 64 MiB for all of a node"
    assert writer_memory(compaction) == f"{writer_memory(regular)}; while it is compacted 1 MiB more and 32 MiB of keys"


@pytest.mark.parametrize(("log_partitions", "used", "chosen"), [(4, 0, 2), (64, 0, 32), (64, 32, 16), (5, 2, 1), (1, 0, 1), (3, 3, 1)])
def test_a_topic_gets_half_of_the_free_partitions_by_default(log_partitions: int, used: int, chosen: int) -> None:
    """One where none is free: then the servers say what is in the way."""
    there = Topic(TopicName("n", "t"), "regular", tuple(range(used)), False, {}, Policies(), 0)
    catalogue = Catalogue({there.name: there} if used else {})
    count, reason = default_partitions(catalogue, TopicName("n", "new"), log_partitions)
    assert (count, reason) == (chosen, f"half of the {log_partitions - used} log partitions that no topic uses")


def test_a_topic_that_exists_keeps_its_number_of_partitions() -> None:
    there = Topic(TopicName("n", "t"), "regular", (0, 1, 2), False, {}, Policies(), 0)
    assert default_partitions(Catalogue({there.name: there}), there.name, 64)[0] == 3
