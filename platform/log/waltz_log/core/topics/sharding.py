"""Which worker process of a node owns a partition (Partitioned WAL, High Level Architecture: requests are sharded).

The jump consistent hash of the partition's number. Every process of the node, and every peer that knows the number of workers, computes the same
worker without a request. With one more worker, only one partition in n moves. The number is first spread over 64 bits by the odd number nearest to
2^64 over the golden ratio, which distributes consecutive partitions more evenly than their hashes alone. Never changes, like the formats. Pure.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from waltz_log.core.topics.topic_names import jump_hash

__all__ = ["SUPERVISOR", "WHOLE", "Shard", "worker_of"]

_SPREAD: Final = 0x9E3779B97F4A7C15
_MASK: Final = (1 << 64) - 1


def worker_of(partition: int, workers: int) -> int:
    """0 to `workers` - 1. Defined for every number that a message can carry: an invalid partition also has a worker, which refuses it."""
    return jump_hash(partition * _SPREAD & _MASK, workers)


class Shard(NamedTuple):
    """One worker of several."""

    worker: int
    workers: int

    def owns(self, partition: int) -> bool:
        return worker_of(partition, self.workers) == self.worker


WHOLE: Final = Shard(0, 1)
"""The shard of a node with a single process."""

SUPERVISOR: Final = -1
"""The worker that owns nothing."""
