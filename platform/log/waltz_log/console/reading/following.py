"""Follows partitions for a live tail: the newest few of the transactions that were committed since the last poll, and how many it left out.

Every transaction that is committed after the first poll is returned or counted as skipped, once. A poll reads a bounded number of transactions and
bytes from a few partitions, those that were read least recently; the others wait for the next one. So a tail costs no more where the log is fast.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from waltz_log.console.reading.sampling import Sample
from waltz_log.console.reading.transaction_reader import Bounds, Entry

__all__ = ["BYTES_MAX", "PARTITIONS_MAX", "ROWS_MAX", "Arrived", "Follower"]

ROWS_MAX = 30
"""Transactions of one poll."""

PARTITIONS_MAX = 3
"""Partitions that one poll reads from. Each is a request to a storage node."""

BYTES_MAX = 64 * 1024
"""That one poll reads from a partition, or one transaction if it is larger. A row shows a few hundred bytes of a payload."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """What a poll found. `entries`: the newest first; `skipped`: transactions that were committed and are not shown."""

    entries: tuple[Entry, ...]
    skipped: int


class Reader(Protocol):
    async def bounds(self, sample: Sample, partitions: Collection[int]) -> Mapping[int, Bounds]: ...

    async def beginning(self, sample: Sample, partition: int, session: int, first: int, last: int, bytes_max: int) -> Sequence[Entry] | str: ...


class Follower:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._marks: dict[int, int] = {}
        """By partition the last transaction that is returned or skipped; the partition that was read least recently comes first."""

    async def poll(self, sample: Sample, partitions: Collection[int]) -> Arrived:
        """The first poll sets where the partitions begin, and returns nothing."""
        bounds = {each: bound for each, bound in (await self._reader.bounds(sample, partitions)).items() if bound.answered}
        for each, bound in bounds.items():
            self._marks.setdefault(each, bound.last)
        chosen = [each for each, mark in self._marks.items() if each in bounds and bounds[each].last > mark][:PARTITIONS_MAX]
        came = {each: bounds[each].last - self._marks[each] for each in chosen}
        counts = _shares(came, ROWS_MAX)
        reads = await asyncio.gather(*(self._newest(sample, each, bounds[each], counts[each]) for each in chosen))
        for each in chosen:
            del self._marks[each]
            self._marks[each] = bounds[each].last
        entries = sorted((entry for read in reads for entry in read), key=lambda entry: (entry.time_ms, entry.transaction_id), reverse=True)
        return Arrived(tuple(entries), sum(came.values()) - len(entries))

    async def _newest(self, sample: Sample, partition: int, bound: Bounds, count: int) -> Sequence[Entry]:
        """None where no replica returns any: then they count as skipped."""
        first = max(bound.first, bound.last - count + 1)
        if first > bound.last:
            return ()
        read = await self._reader.beginning(sample, partition, bound.session, first, bound.last, BYTES_MAX)
        return () if isinstance(read, str) else read


def _shares(came: Mapping[int, int], count: int) -> dict[int, int]:
    """How many of each to read, `count` in all: what a partition with few does not need goes to the others."""
    shares: dict[int, int] = {}
    for at, each in enumerate(sorted(came, key=lambda each: came[each])):
        shares[each] = min(came[each], (count - sum(shares.values())) // (len(came) - at))
    return shares
