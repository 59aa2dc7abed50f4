"""A run of data intents that is handed to the producer as rows: one object for all of them, instead of a future and an append for each.

A run holds consecutive intents of a lane in the order in which they are sent. A frame may hold a part of it, and the owner's answers settle ranges of
it. The entries stay in the run, so that each frame says which intents it holds before it is sent (`entries_of`).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from waltz_log.client.append.pending_rows import PendingRows
from waltz_log.client.append.rows import ListedBodies, Rows
from waltz_log.client.append.sent_frame import SentAppends, SentFrame
from waltz_log.client.transactions.transaction import Receipt
from waltz_log.errors import WaltzError
from waltz_log.outbox.ledger import Entry

__all__ = ["DataRun", "OutboxOutcome", "OutcomeListener", "entries_of"]


class OutcomeListener(Protocol):
    """Hears what became of intents that were sent."""

    def decided(self, entry: Entry, outcome: Receipt | BaseException | None) -> None: ...
    def committed(self, entries: Sequence[Entry], transaction_id: int) -> None:
        """They are in the log under consecutive ids from `transaction_id`."""

    def failed(self, entries: Sequence[Entry], error: WaltzError) -> None:
        """All of them have this outcome."""


class OutboxOutcome(asyncio.Future[Receipt]):
    """Reports the outcome of an entry to its lane at once, without a callback of the loop. Only the lane reads its errors; it is never awaited."""

    __slots__ = ("entry", "lane")

    entry: Entry
    lane: OutcomeListener

    def set_result(self, result: Receipt) -> None:
        super().set_result(result)
        self.lane.decided(self.entry, result)

    def set_exception(self, exception: type | BaseException) -> None:
        super().set_exception(exception)
        self.lane.decided(self.entry, super().exception())


class DataRun:
    """Receives the outcomes of its rows (`RowOutcomes`)."""

    __slots__ = ("_listener", "entries")

    def __init__(self, entries: Sequence[Entry], listener: OutcomeListener) -> None:
        self.entries = entries
        self._listener = listener

    def pending(self) -> PendingRows:
        """The rows, without locks, a mark or a deadline."""
        headers = [entry.intent.header for entry in self.entries]
        rows = Rows(ListedBodies([entry.intent.payload for entry in self.entries]), headers if any(headers) else 0)
        return PendingRows(rows, 0, rows.count, 0, self, None, own_writes_known=True, deadline=math.inf)

    def rows_committed(self, position: int, count: int, transaction_id: int) -> None:
        self._listener.committed(self.entries[position : position + count], transaction_id)

    def rows_failed(self, position: int, count: int, error: WaltzError) -> None:
        self._listener.failed(self.entries[position : position + count], error)


def entries_of(frames: Iterable[SentFrame]) -> Iterator[Entry]:
    """The intents of frames that are about to be sent, in the order of their sequences."""
    for frame in frames:
        for part in frame.parts:
            if isinstance(part, SentAppends):
                yield from (each.future.entry for each in part.appends if each is not None and isinstance(each.future, OutboxOutcome))
            elif isinstance(part.outcomes, DataRun):
                yield from part.outcomes.entries[part.position : part.position + part.count]
