"""Feed frames as they go out, encoded once for all readers that come by (Waltz Server, the feed cache).

A frame holds what was appended at several times, up to a bound in bytes. `PartitionFrames` is a partition's share of the server's feed budget: frames
by what they begin with, and runs of headers that were read from replicas. A frame that held everything there was is encoded again when there is more,
so that a reader that lags is not fed in the small pieces of one that does not.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from waltz_log.core.formats.block import Block
from waltz_log.core.formats.sealed_headers import seal_headers
from waltz_log.core.messages import Encoded
from waltz_log.server.base.budget import Budget
from waltz_log.server.replication.memory import Run, Runs
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.block_messages import message_of

__all__ = ["FRAME_BLOCKS_MAX", "FeedFrame", "PartitionFrames"]

FRAME_BLOCKS_MAX: Final = 256
"""Encoding a block costs microseconds, however small it is, and appends of a few records at a time make thousands of them in one MiB."""


@dataclass(frozen=True, slots=True)
class FeedFrame:
    """`full`: there was more to send, and it did not fit."""

    first: int
    last: int
    message: Encoded[pb.ServerMessage]
    full: bool

    @property
    def size(self) -> int:
        return len(self.message)


def _encode(blocks: list[Block], target: int, *, headers: bool, headers_cut: bool) -> FeedFrame:
    """`headers`: only sealed headers. `headers_cut`: the blocks hold nothing else. `target`: up to where there is something to send."""
    cut = [Block(each.first_transaction_id, b"", _headers(each, headers_cut), each.append_time_ms) for each in blocks] if headers else blocks
    frame = pb.FeedFrame(blocks=[message_of(block) for block in cut])
    first, last = blocks[0].first_transaction_id, blocks[-1].last_transaction_id
    return FeedFrame(first, last, Encoded(pb.ServerMessage(feed=frame)), full=last < target)


def _headers(block: Block, headers_cut: bool) -> bytes:
    return block.records if headers_cut else seal_headers(block.records, block.lengths)


class PartitionFrames:
    """The partition frames of one store session; `close` it with that."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._frames: OrderedDict[tuple[bool, int], FeedFrame] = OrderedDict()
        self._headers = Runs()
        self.held_bytes = 0
        self.made = 0
        self.shared = 0
        """Frames that were sent once more without being made."""
        self._closed = False
        budget.join(self)

    def find(self, headers: bool, first: int, last: int) -> FeedFrame | None:
        """A frame that begins there and ends at `last` or before, unless a larger one could be made."""
        frame = self._frames.get((headers, first))
        if frame is None or frame.last > last or (frame.last < last and not frame.full):
            return None
        self._frames.move_to_end((headers, first))
        self.shared += 1
        return frame

    def make(self, headers: bool, blocks: list[Block], target: int, *, headers_cut: bool = False) -> FeedFrame:
        """`headers`: of headers alone. `headers_cut`: the blocks hold nothing else. Of the blocks, as many as one frame may have."""
        frame = _encode(blocks[:FRAME_BLOCKS_MAX], target, headers=headers, headers_cut=headers_cut)
        self.made += 1
        if not self._closed:
            known = self._frames.pop((headers, frame.first), None)
            self._frames[headers, frame.first] = frame
            self._grew(frame.size - (0 if known is None else known.size))
        return frame

    def headers_from(self, transaction_id: int) -> Run | None:
        return self._headers.find(transaction_id)

    def remember(self, run: Run) -> None:
        """A run of headers that was read."""
        if not self._closed:
            self._grew(self._headers.add(run))

    def _grew(self, difference: int) -> None:
        self.held_bytes += difference
        self._budget.changed(difference)

    def evict(self) -> int:
        if 2 * self._headers.held_bytes > self.held_bytes or not self._frames:
            return self._headers.evict()
        _, frame = self._frames.popitem(last=False)
        return frame.size

    @property
    def share(self) -> int:
        return self._budget.share

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._budget.leave(self)
            self._frames.clear()
            self._headers = Runs()
