"""One mounted client of a partition: its answers and its feed, sent by one writer (seeds/client_server_communication.txt, Mounting a partition).

Answers go before feed, so that an append is not held up by a reader that lags behind. A client that does not read stops only its own writer; what can
pile up for it is bounded by what it has in flight itself.
"""

from __future__ import annotations

import struct
from collections import deque
from contextlib import aclosing

from waltz_log.core.block import Block
from waltz_log.core.columns import header_bytes, slice_block
from waltz_log.core.ports import Stream
from waltz_log.errors import OutOfRange, WaltzError
from waltz_log.rpc import waltz_pb2 as pb
from waltz_log.server.pulse import Pulse
from waltz_log.server.sequencer import Answers
from waltz_log.server.store import StoreSession

__all__ = ["Mount"]


class Mount:
    """`client_id` 0 is a reader: it may not append and fences nobody."""

    def __init__(self, request: pb.MountRequest, stream: Stream, store: StoreSession, generation: int, version: int) -> None:
        self.client_id = request.client_id
        self.mount_sequence = request.mount_sequence
        self.feed = request.feed
        self.last_sequence = -1
        self.failed: WaltzError | None = None
        self.ready = False
        self._fed = request.client_high_water_mark
        self._stream = stream
        self._store = store
        self._generation = generation
        self._version = version
        self._outgoing: deque[pb.ServerMessage] = deque()
        self._wake = Pulse()
        self._drained = Pulse()

    # ---- what others tell it -------------------------------------------------------------------------------------------------------------------

    def answer(self, answers: Answers, append_time_ms: int) -> None:
        message = pb.ServerMessage(
            result=pb.AppendResult(
                committed=_pack(answers.committed),
                rejected=_pack(answers.rejected),
                refused=_pack(answers.refused),
                append_time_ms=append_time_ms,
            )
        )
        self._outgoing.append(message)
        self._wake.notify()

    def flushed(self, flush_id: int, high_water_mark: int) -> None:
        self._outgoing.append(pb.ServerMessage(flushed=pb.FlushResponse(flush_id=flush_id, high_water_mark=high_water_mark)))
        self._wake.notify()

    def fail(self, error: WaltzError) -> None:
        """Ends the stream with the error, which the client receives."""
        if self.failed is None:
            self.failed = error
            self._wake.notify()

    def committed(self) -> None:
        """The committed mark rose: there may be something to feed."""
        if self.feed != pb.FEED_NONE:
            self._wake.notify()

    async def drained(self) -> None:
        """Returns when every answer was handed to the stream."""
        await self._drained.wait_for(lambda: not self._outgoing)

    # ---- the writer ----------------------------------------------------------------------------------------------------------------------------

    async def write(self, target: int) -> None:
        """Feeds up to `target`, says that the partition is ready, and goes on with answers and feed until it is cancelled."""
        store = self._store
        if not store.first_transaction_id - 1 <= self._fed <= target:
            raise OutOfRange(partition=store.partition, asked=self._fed + 1, first=store.first_transaction_id, last=target)
        if self.feed != pb.FEED_NONE:
            while self._fed < target:
                await self._feed(target)
        response = pb.MountResponse(
            partition_ready=True,
            generation=self._generation,
            session=store.session,
            high_water_mark=target,
            protocol_version=self._version,
            first_transaction_id=store.first_transaction_id,
        )
        await self._stream.send(pb.ServerMessage(mounted=response))
        self.ready = True
        while True:
            await self._wake.wait_for(self._has_work)
            if self.failed is not None:
                raise self.failed
            while self._outgoing:
                await self._stream.send(self._outgoing[0])
                self._outgoing.popleft()
            self._drained.notify()
            if self.feed != pb.FEED_NONE and self._fed < store.committed:
                await self._feed(store.committed)

    def _has_work(self) -> bool:
        return self.failed is not None or bool(self._outgoing) or (self.feed != pb.FEED_NONE and self._fed < self._store.committed)

    async def _feed(self, target: int) -> None:
        """One step of the feed: the next block from memory, or a run of blocks from a replica. Between two steps answers go out."""
        block = self._store.window.find(self._fed + 1)
        if block is not None:
            await self._send_block(slice_block(block, self._fed + 1, min(block.last_transaction_id, target)))
            return
        end = min(target, self._store.window.first_transaction_id - 1)
        async with aclosing(self._store.read(self._fed + 1, end, headers_only=self.feed == pb.FEED_HEADERS)) as blocks:
            async for older in blocks:
                await self._send_block(older, headers_cut=self.feed == pb.FEED_HEADERS)
                if self._outgoing:
                    return

    async def _send_block(self, block: Block, *, headers_cut: bool = False) -> None:
        if self.feed == pb.FEED_HEADERS:
            headers = block.records if headers_cut else header_bytes(block.records, block.lengths)
            frame = pb.FeedFrame(headers=headers, first_transaction_id=block.first_transaction_id, append_time_ms=block.append_time_ms)
        else:
            frame = pb.FeedFrame(
                block=pb.Block(
                    first_transaction_id=block.first_transaction_id,
                    lengths=block.lengths,
                    records=block.records,
                    append_time_ms=block.append_time_ms,
                ),
                first_transaction_id=block.first_transaction_id,
                append_time_ms=block.append_time_ms,
            )
        await self._stream.send(pb.ServerMessage(feed=frame))
        self._fed = block.last_transaction_id


def _pack(rows: list[tuple[int, int, int]] | list[tuple[int, int]]) -> bytes:
    flat = [value for row in rows for value in row]
    return struct.pack(f">{len(flat)}q", *flat)
