"""Which stored segments of a node are known to be corrupt, and when the next repair of each is due.

Every code that finds corruption reports it here: the scrub, a read, an index that cannot be rebuilt when the partition opens. A segment stays listed
until a repair succeeds, a second check finds it intact, or the segment is gone. The first attempt is due at once. While attempts fail, because no
peer is up or no session is settled, the pauses between them double. Does not decide how a segment is repaired (`scrub`).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from waltz_log.core.formats.segment_format import DATA, INDEX, TIMES, first_id_of
from waltz_log.errors import CorruptData
from waltz_log.loggers import get_logger

__all__ = ["CorruptSegment", "Corruption", "segment_name"]

log = get_logger(__name__)


def segment_name(partition: int, first: int) -> str:
    return f"{partition}/{first:019d}"


@dataclass(slots=True)
class CorruptSegment:
    """`reason`: what is wrong, or why the last attempt failed. `due_s`: on the event loop's clock; `pause_s`: after the next failure."""

    partition: int
    first: int
    reason: str
    due_s: float
    pause_s: float


class Corruption:
    """The corruption of one node. `retry_s`: after the first failed attempt; `retry_max_s`: the longest pause."""

    def __init__(self, retry_s: float, retry_max_s: float) -> None:
        self._retry_s = retry_s
        self._retry_max_s = retry_max_s
        self._segments: dict[str, CorruptSegment] = {}
        self.reported = asyncio.Event()
        """Set when an attempt becomes due earlier than before."""

    def partitions(self) -> set[int]:
        return {each.partition for each in self._segments.values()}

    def reasons(self) -> dict[str, str]:
        """By the name of the segment."""
        return {name: each.reason for name, each in sorted(self._segments.items())}

    def knows(self, partition: int, first: int) -> bool:
        return segment_name(partition, first) in self._segments

    def report(self, error: CorruptData) -> None:
        """Corruption was found. An attempt is due at once, or soon if attempts have failed already. An error outside of a segment is ignored."""
        directory, _, name = error.where.rpartition("/")
        firsts = [first for kind in (DATA, INDEX, TIMES) if (first := first_id_of(name, kind)) is not None]
        if directory.isdecimal() and firsts:
            self.add(int(directory), firsts[0], str(error))

    def add(self, partition: int, first: int, reason: str) -> None:
        name, now_s = segment_name(partition, first), asyncio.get_running_loop().time()
        known = self._segments.get(name)
        if known is None:
            log.error("corruption reported", partition=partition, segment=first, reason=reason)
            self._segments[name] = CorruptSegment(partition, first, reason, now_s, self._retry_s)
        elif known.due_s > now_s + self._retry_s:
            known.due_s = now_s + self._retry_s
        else:
            return
        self.reported.set()

    def postpone(self, partition: int, first: int, reason: str) -> None:
        """An attempt failed."""
        self.add(partition, first, reason)
        known = self._segments[segment_name(partition, first)]
        known.reason = reason
        known.due_s = asyncio.get_running_loop().time() + known.pause_s
        known.pause_s = min(2 * known.pause_s, self._retry_max_s)

    def forget(self, partition: int, first: int) -> bool:
        """The segment is intact or gone. Returns whether it was listed as corrupt."""
        return self._segments.pop(segment_name(partition, first), None) is not None

    def forget_all_but(self, partition: int, firsts: set[int]) -> None:
        """The other segments of the partition were truncated or trimmed."""
        self._segments = {name: each for name, each in self._segments.items() if each.partition != partition or each.first in firsts}

    def next_due_s(self) -> float | None:
        return min((each.due_s for each in self._segments.values()), default=None)

    def due(self) -> list[CorruptSegment]:
        now_s = asyncio.get_running_loop().time()
        return sorted((each for each in self._segments.values() if each.due_s <= now_s), key=lambda each: (each.partition, each.first))
