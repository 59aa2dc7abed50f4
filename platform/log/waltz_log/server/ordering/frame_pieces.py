"""Cuts a received frame into pieces that are ordered one after the other, so that no frame holds the event loop for long.

A frame may have the locks and transactions that fit into 16 MiB: two million locks take seconds. Each piece becomes part of a block of its own, and
other partitions and other clients are served between two. A piece is cut when it is about to be queued. The outcome is the same, because the
transactions of a frame are decided one by one, in order. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from waltz_log.core.formats.columns import offsets_array
from waltz_log.core.formats.traces import pack_traces, unpack_traces
from waltz_log.core.locks.lock_columns import ONE_WRITE
from waltz_log.server.ordering.sequencer import ReceivedFrame
from waltz_log.transport.large_messages import AppendColumns

__all__ = ["PIECE_LOCKS", "PIECE_TRANSACTIONS", "UNUSUAL_WEIGHT", "LockWeights", "is_long", "pieces_of"]

PIECE_LOCKS: Final = 4096
"""For one block, in the usual frame, where each transaction has one write lock: 2 ms. More blocks cost throughput."""

UNUSUAL_WEIGHT: Final = 4
"""A lock that is judged by itself costs as much as this many usual ones. One transaction can have 765 of them."""

MANY: Final = 256

PIECE_TRANSACTIONS: Final = 8192
"""For one block: up to 8 ms if each is refused, or answered as a range of its own."""


def is_long(transactions: int, locks: int) -> bool:
    """Whether this is too much for one block. `locks`: as `LockWeights` counts them."""
    return transactions > PIECE_TRANSACTIONS or locks > PIECE_LOCKS


class LockWeights:
    """What the locks of a partition's frames cost, in usual ones. Locks of any other frame are always judged by themselves. Those of the usual frame
    are if one transaction of it conflicts, which shows only when they are judged: so after many such locks the next ones count as
    much, until many were judged together."""

    def __init__(self) -> None:
        self._usual = 1

    def cost(self, frame: ReceivedFrame) -> int:
        return len(frame.locks) // 8 * self.of(frame)

    def of(self, frame: ReceivedFrame) -> int:
        return self._usual if not frame.locks or frame.lock_counts == ONE_WRITE * frame.count else UNUSUAL_WEIGHT

    def judged(self, locks: int, singly: int) -> None:
        """A block with that many locks was sequenced. `singly`: those that were judged by themselves."""
        if singly >= MANY:
            self._usual = UNUSUAL_WEIGHT
        elif locks >= MANY:
            self._usual = max(1, self._usual // 2)


def pieces_of(frame: ReceivedFrame, weights: LockWeights) -> Iterator[ReceivedFrame]:
    """The frame itself if it is short, or if its columns do not fit each other: then the sequencer fails it at once. Later pieces `follow` the first,
    and share its verdict on quotas."""
    count = frame.count
    if not is_long(count, weights.cost(frame)):
        yield frame
        return
    per_transaction = np.frombuffer(frame.lock_counts, dtype=np.uint8).astype(np.int64)
    if len(per_transaction) not in (0, 3 * count) or int(per_transaction.sum()) * 8 != len(frame.locks):
        yield frame
        return
    if len(frame.lengths) != 4 * count or len(frame.marks) != 8 * count or len(frame.own) not in (0, count):
        yield frame
        return
    records = offsets_array(frame.lengths)
    if int(records[-1]) != len(frame.records) or bool((np.diff(records) < 0).any()):
        yield frame
        return
    before = np.zeros(count + 1, dtype=np.int64)
    if len(per_transaction):
        before[1:] = per_transaction.reshape(-1, 3).sum(axis=1).cumsum()
    start = 0
    while start < count:
        locks_max = PIECE_LOCKS // weights.of(frame)
        stop = min(count, start + PIECE_TRANSACTIONS, int(np.searchsorted(before, before[start] + locks_max, side="right")) - 1)
        piece = _piece(frame, start, max(stop, start + 1), before, records)
        piece.follows = start > 0
        yield piece
        start += piece.count


def _piece(frame: ReceivedFrame, start: int, stop: int, locks: np.typing.NDArray[np.int64], records: np.typing.NDArray[np.int64]) -> ReceivedFrame:
    """Transactions `start` to `stop`. `locks` and `records`: where those of each transaction begin."""
    traces = frame.traces
    if traces:
        traces = pack_traces([(position - start, context) for position, context in unpack_traces(traces, frame.count) if start <= position < stop])
    columns = AppendColumns(
        frame.generation,
        frame.lengths[4 * start : 4 * stop],
        frame.marks[8 * start : 8 * stop],
        frame.lock_counts[3 * start : 3 * stop],
        frame.locks[8 * int(locks[start]) : 8 * int(locks[stop])],
        memoryview(frame.records)[int(records[start]) : int(records[stop])],
        frame.own[start:stop],
        frame.quota_refusals,
        traces,
    )
    piece = ReceivedFrame(frame.appender, columns)
    piece.received_s = frame.received_s
    return piece
