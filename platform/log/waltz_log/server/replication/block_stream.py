"""A stream of blocks to one replica: they are sent ahead of the acknowledgments up to a bound in bytes, several small ones in a message.

The bound limits what a slow replica can delay: no more is sent before the replica acknowledges it, on disk or, if the policy allows it, in memory.
The caller decides what is sent.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import Any

from waltz_log.background_tasks import end_tasks, outcome_of, start_task
from waltz_log.core.formats.block import Block
from waltz_log.core.messages import Encoded
from waltz_log.core.status.latency import Latency
from waltz_log.errors import ConnectionLost
from waltz_log.server.base.pulse import Pulse
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.block_messages import replicated_message_of
from waltz_log.transport.large_messages import replicate_message
from waltz_log.transport.methods import ReplicateStream

__all__ = ["BlockStream", "Encodings"]

ENCODINGS_KEPT = 4
"""Encoded blocks that are kept. Replicas that keep up are at most this many blocks apart."""

SMALL_BYTES = 64 * 1024
"""Blocks below this are sent together where several wait: a message costs more than copying them once for each replica."""


class Encodings:
    """The newest blocks as replicas are sent them, encoded once for all replicas of a partition."""

    def __init__(self) -> None:
        self._kept: deque[tuple[Block, Encoded[pb.ReplicateRequest]]] = deque(maxlen=ENCODINGS_KEPT)

    def of(self, block: Block) -> Encoded[pb.ReplicateRequest]:
        for kept, encoded in self._kept:
            if kept is block:
                return encoded
        encoded = replicate_message(block)
        self._kept.append((block, encoded))
        return encoded


class BlockStream:
    """Over a Replicate stream that is open. `acknowledged` is called with every answer: what is on disk; `received` with those that say that more is
    received. `latency` counts from sending to acknowledging, at least as received; `now_s` is for nothing else."""

    def __init__(
        self,
        name: str,
        stream: ReplicateStream,
        encodings: Encodings,
        *,
        bytes_max: int,
        acknowledged: Callable[[int], None],
        received: Callable[[int], None] | None = None,
        latency: Latency | None = None,
        now_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._encodings = encodings
        self._name = name
        self._stream = stream
        self._bytes_max = bytes_max
        self._acknowledged = acknowledged
        self._received = received
        self._latency = Latency() if latency is None else latency
        self._now_s = now_s
        self._sent: deque[tuple[int, int, float]] = deque()  # last id, bytes and time of what is not acknowledged
        self._changed = Pulse()
        self.bytes_in_flight = 0

    async def run(self, sending: Coroutine[Any, Any, None], *, forever: bool) -> None:
        """Counts acknowledgments while `sending` runs; then, unless it is to last `forever`, until all is acknowledged."""
        tasks = [start_task(self._receive()), start_task(sending if forever else self._send_all(sending))]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            # The receiver raises the error that the peer sent; the sender often only that the connection broke.
            for task in sorted(done, key=tasks.index):
                outcome_of(task)
        finally:
            try:
                await end_tasks(tasks)
            finally:
                await self._stream.cancel()

    async def copy(self, runs: AsyncGenerator[list[Block], None]) -> None:
        """Everything that `runs` gives; returns once it is acknowledged."""
        await self.run(self._send_runs(runs), forever=False)

    async def _send_runs(self, runs: AsyncGenerator[list[Block], None]) -> None:
        async with aclosing(runs) as found:
            async for run in found:
                await self.send(run)

    async def _send_all(self, sending: Coroutine[Any, Any, None]) -> None:
        await sending
        await self._changed.wait_for(lambda: not self._sent)

    async def send(self, blocks: Sequence[Block]) -> None:
        """Waits for capacity. One call sends at most one message with the blocks of one read."""
        if len(blocks) > 1 and sum(len(block.records) for block in blocks) < SMALL_BYTES * len(blocks):
            await self._send(pb.ReplicateRequest(blocks=pb.Blocks(blocks=[replicated_message_of(block) for block in blocks])), blocks)
        else:
            for block in blocks:
                await self._send(self._encodings.of(block), (block,))

    async def _send(self, message: pb.ReplicateRequest | Encoded[pb.ReplicateRequest], blocks: Sequence[Block]) -> None:
        await self._changed.wait_for(lambda: self.bytes_in_flight < self._bytes_max)
        size = sum(len(block.records) for block in blocks)
        self.bytes_in_flight += size
        self._sent.append((blocks[-1].last_transaction_id, size, self._now_s()))
        await self._stream.send(message)

    async def send_request(self, message: pb.ReplicateRequest) -> None:
        """Sends a request that is not a block, after everything that was sent before."""
        await self._stream.send(message)

    async def _receive(self) -> None:
        while (answer := await self._stream.receive()) is not None:
            reached = has = answer.last_transaction_id
            if answer.HasField("received_transaction_id"):
                has = max(reached, answer.received_transaction_id)
            while self._sent and self._sent[0][0] <= has:
                _, size, sent_s = self._sent.popleft()
                self.bytes_in_flight -= size
                self._latency.observe(self._now_s() - sent_s)
            self._changed.notify()
            self._acknowledged(reached)
            if has > reached and self._received is not None:
                self._received(has)
        raise ConnectionLost(address=self._name, reason="replica ended the stream")
