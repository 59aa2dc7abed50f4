"""What a query has landed, as of now: how far all of its tables hold the log, and how many transactions that were. Pure.

It changes with the commits, not with Spark's reports, which come after a batch: a batch that hangs has none. Transactions are counted by how far the
marks advance, so a batch counts once, however many tables it fills and however often it is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from waltz_delta.marks.marks import BatchRange

__all__ = ["LandingProgress"]

BATCHES_KEPT = 16
"""Spark reports a batch shortly after its end, when few others can have followed."""


@dataclass(frozen=True, slots=True)
class LandingProgress:
    """Counted since the query's start."""

    landed: Mapping[int, int] = field(default_factory=dict)
    """Log partition to the first transaction id that some table does not hold yet."""
    transactions: int = 0
    """Transactions of the log that every table is past: landed, dropped by a filter, or dead letters."""
    batches: Mapping[int, int] = field(default_factory=dict)
    """Spark's number of each of the last batches, and how many of `transactions` were its own."""
    dead_letters: int = 0

    def known(self, marks: Mapping[int, int]) -> Self:
        """The tables have these marks before the first batch."""
        return replace(self, landed={**self.landed, **{partition: mark + 1 for partition, mark in marks.items()}})

    def began(self, covered: BatchRange) -> Self:
        """A batch begins: nothing of a partition that it is the first to read is landed."""
        return replace(self, landed={**covered.starts, **self.landed})

    def ended(self, covered: BatchRange, batch_id: int | None) -> Self:
        """Every table holds the batch."""
        before = {**covered.starts, **self.landed}
        advanced = {partition: end for partition, end in covered.ends.items() if end > before.get(partition, end)}
        count = sum(end - before[partition] for partition, end in advanced.items())
        batches = dict(self.batches)
        if batch_id is not None:
            batches[batch_id] = count
        kept = dict(list(batches.items())[-BATCHES_KEPT:])
        return replace(self, landed={**self.landed, **advanced}, transactions=self.transactions + count, batches=kept)
