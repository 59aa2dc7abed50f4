"""Feed frames as they go out, encoded once for all readers that come by (seeds/waltz_server.md, the feed cache).

A frame holds what was appended at several times, up to a bound in bytes; peers of protocol version 1 get one append time a frame. `PartitionFrames`
is a partition's share of the server's feed budget: frames by what they begin with, and runs of headers that were read from replicas. A frame that
held all there was then is made anew where there is more by now, so that who lags is not fed in the small pieces of who does not.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from waltz_log.core.formats.block import Block
from waltz_log.core.formats.columns import header_bytes
from waltz_log.core.messages import Encoded
from waltz_log.server.base.budget import Budget
from waltz_log.server.replication.memory import Run, Runs
from waltz_log.transport import waltz_pb2 as pb

__all__ = ["Frame", "Kind", "PartitionFrames"]

SEVERAL_TIMES = 2
"""The protocol version from which on a frame may hold several blocks."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What a mount is fed: frames of one kind can be shared."""

    headers: bool
    several: bool

    @classmethod
    def of(cls, feed: pb.FeedMode.ValueType, version: int) -> Kind:
        return cls(feed == pb.FEED_HEADERS, version >= SEVERAL_TIMES)

    def encode(self, blocks: list[Block], target: int, *, headers_cut: bool = False) -> Frame:
        """All of the blocks, or of a kind that cannot have several the first. `target`: up to where there is something to send. `headers_cut`: their
        records are headers alone."""
        taken = blocks if self.several else blocks[:1]
        if self.headers and not headers_cut:
            taken = [Block(each.first_transaction_id, each.lengths, header_bytes(each.records, each.lengths), each.append_time_ms) for each in taken]
        first = taken[0]
        if self.several:
            frame = pb.FeedFrame(blocks=[_message(block, headers=self.headers) for block in taken], first_transaction_id=first.first_transaction_id)
        elif self.headers:
            frame = pb.FeedFrame(headers=first.records, first_transaction_id=first.first_transaction_id, append_time_ms=first.append_time_ms)
        else:
            block = _message(first, headers=False)
            frame = pb.FeedFrame(block=block, first_transaction_id=first.first_transaction_id, append_time_ms=first.append_time_ms)
        last = taken[-1].last_transaction_id
        return Frame(first.first_transaction_id, last, Encoded(pb.ServerMessage(feed=frame)), full=last < target)


def _message(block: Block, *, headers: bool) -> pb.Block:
    return pb.Block(
        first_transaction_id=block.first_transaction_id,
        lengths=b"" if headers else block.lengths,
        records=block.records,
        append_time_ms=block.append_time_ms,
    )


@dataclass(frozen=True, slots=True)
class Frame:
    """`full`: there was more to send, and it did not fit."""

    first: int
    last: int
    message: Encoded[pb.ServerMessage]
    full: bool

    @property
    def size(self) -> int:
        return len(self.message.data)


class PartitionFrames:
    """Of one store session; `close` it with that."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._frames: OrderedDict[tuple[Kind, int], Frame] = OrderedDict()
        self._headers = Runs()
        self.held_bytes = 0
        self.made = 0
        self.shared = 0
        """Frames that were sent once more without being made."""
        self._closed = False
        budget.join(self)

    def find(self, kind: Kind, first: int, last: int) -> Frame | None:
        """A frame that begins there and ends at `last` or before, unless a larger one could be made."""
        frame = self._frames.get((kind, first))
        if frame is None or frame.last > last or (frame.last < last and not frame.full):
            return None
        self._frames.move_to_end((kind, first))
        self.shared += 1
        return frame

    def make(self, kind: Kind, blocks: list[Block], target: int, *, headers_cut: bool = False) -> Frame:
        frame = kind.encode(blocks, target, headers_cut=headers_cut)
        self.made += 1
        if not self._closed:
            known = self._frames.pop((kind, frame.first), None)
            self._frames[kind, frame.first] = frame
            self._grew(frame.size - (0 if known is None else known.size))
        return frame

    def headers(self, transaction_id: int) -> Run | None:
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
