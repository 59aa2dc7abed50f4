"""What `waltz topic describe` says of a topic's promises, without a cluster."""

from __future__ import annotations

from waltz_log.cli.topics.topics import acknowledged_means, loss_window, writer_memory
from waltz_log.core.topics.catalogue import Policies, Topic
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
