"""Which worker process of a node owns a partition (Partitioned WAL, High Level Architecture: requests are sharded).

The jump consistent hash of the partition's number: every process of the node, and every peer that knows how many workers it has, finds the same owner
without asking, and with one worker more only one partition in so many moves. The number is spread over 64 bits first, by the odd number nearest to
2^64 over the golden ratio: neighbours then fall on different workers more evenly than their hashes do. Stable for ever, like the formats. Pure.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from waltz_log.core.topics.topic_names import jump_hash

__all__ = ["SUPERVISOR", "WHOLE", "Shard", "worker_of"]

_SPREAD: Final = 0x9E3779B97F4A7C15
_MASK: Final = (1 << 64) - 1


def worker_of(partition: int, workers: int) -> int:
    """0 to `workers` - 1. Defined for every number that a message can carry, so that the owner of nonsense refuses it as always."""
    return jump_hash(partition * _SPREAD & _MASK, workers)


class Shard(NamedTuple):
    """One worker of so many."""

    worker: int
    workers: int

    def owns(self, partition: int) -> bool:
        return worker_of(partition, self.workers) == self.worker


WHOLE: Final = Shard(0, 1)
"""What one process that does it all owns."""

SUPERVISOR: Final = -1
"""The worker that owns nothing."""
