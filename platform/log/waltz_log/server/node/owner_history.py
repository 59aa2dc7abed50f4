"""Which servers owned the partitions of the cluster and since when, as one server read it in the assignment. For people who ask what moved.

Every server keeps the history of all partitions, so it survives the server that lost them. Bounded and in memory; a generation that came and went
between two reads of the assignment is missing.
"""

from __future__ import annotations

from waltz_log.core.metadata import Assignment
from waltz_log.core.status.server_statistics import OwnerStatistics

__all__ = ["OWNERS_KEPT", "OwnerHistory"]

OWNERS_KEPT = 512
"""Generations of all partitions together, the newest: some 50 KB in an answer to a status call, after as many changes of owner."""


class OwnerHistory:
    def __init__(self) -> None:
        self._kept: dict[tuple[int, int], OwnerStatistics] = {}
        self._newest: dict[int, tuple[int, int | None]] = {}
        self._started = False

    def observe(self, assignment: Assignment, now_ms: int) -> None:
        """An assignment that was read at `now_ms`."""
        for partition, owned in sorted(assignment.partitions.items()):
            generation, server_id = owned.generation, owned.server_id
            if self._newest.get(partition) == (generation, server_id):
                continue
            self._newest[partition] = (generation, server_id)
            key = (partition, generation)
            self._kept.pop(key, None)  # it comes last again
            self._kept[key] = OwnerStatistics(partition, generation, server_id, assignment.address_of(partition), now_ms, exact=self._started)
        while len(self._kept) > OWNERS_KEPT:
            del self._kept[next(iter(self._kept))]
        self._started = True

    def statistics(self) -> tuple[OwnerStatistics, ...]:
        """Ordered by partition and generation."""
        return tuple(self._kept[key] for key in sorted(self._kept))
