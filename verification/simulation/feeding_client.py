"""A client that follows the communication document on the bare protocol: it mounts with a feed under its own client id and settles what was in flight
by the feed, without queries. At *ready*, whatever is not in the feed never will be. It deliberately violates rules on which the owner must not rely:
it sends a frame twice on one stream, and after a change of owner it sends one that was made for the previous generation. Both must be refused.
"""

from __future__ import annotations

import asyncio
import struct

from verification.simulation.clients import Actor, client_kind, ended_by_the_network, open_owners
from verification.simulation.history import Attempt, number_of
from waltz_log.client.feed.decode_feed import decode_feed
from waltz_log.client.owners.mounting import ranges
from waltz_log.client.owners.owners import Owners
from waltz_log.core.formats.records import encode_record
from waltz_log.errors import ConnectionLost, Unavailable, WaltzError
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.methods import MountStream

__all__ = ["settle_by_feed"]

STREAM_S = 0.6
"""The maximum time on one stream."""


class _Feeding:
    def __init__(self, actor: Actor, owners: Owners, client_id: int) -> None:
        self.actor = actor
        self.owners = owners
        self.client_id = client_id
        self.mount_sequence = 0
        self.position = -1
        self.generation = 0
        self.stale = 0
        self.next_sequence = 1
        self.in_flight: dict[int, Attempt] = {}
        self.doubled: set[int] = set()
        """Sent twice, so the refusal of one says nothing about the other."""
        self.stream_number = actor.stream()
        self.left = actor.operations

    def end(self, attempt: Attempt, outcome: str, transaction_id: int | None = None, winner: int | None = None) -> None:
        if attempt.outcome == "pending":
            attempt.outcome = outcome  # type: ignore[assignment]
            attempt.transaction_id, attempt.winner = transaction_id, winner
            attempt.ended_s, attempt.answers = self.actor.world.now_s, 1
            self.actor.announce(f"attempt {attempt.number} {outcome} by feed or answer {transaction_id}")

    def fed(self, frame: pb.FeedFrame) -> None:
        batch = decode_feed(frame, self.actor.partition, self.position + 1, data=True)
        self.actor.saw(self.stream_number, self.position, batch)
        self.position = batch[-1].transaction_id
        mine = {attempt.number: (sequence, attempt) for sequence, attempt in self.in_flight.items()}
        for transaction in batch:
            if transaction.client_id == self.client_id and number_of(transaction.data) in mine:
                sequence, attempt = mine[number_of(transaction.data)]
                self.end(attempt, "committed", transaction.transaction_id)
                self.in_flight.pop(sequence, None)

    async def mount(self, stream: MountStream) -> None:
        actor = self.actor
        self.mount_sequence += 1
        request = pb.MountRequest(
            protocol_version=methods.PROTOCOL_VERSION,
            cluster_key=self.owners.parameters.key.bytes,
            client_id=self.client_id,
            ticket=self.owners.ticket_of(self.client_id),
            partition=actor.partition,
            mount_sequence=self.mount_sequence,
            client_high_water_mark=self.position,
            feed=pb.FEED_RECORDS,
            topics=self.owners.topics,
        )
        await stream.send(pb.ClientMessage(mount=request))
        while True:
            message = await stream.receive()
            if message is None:
                raise ConnectionLost(address="owner", reason="stream finished")
            if message.WhichOneof("kind") == "feed":
                self.fed(message.feed)
            elif message.WhichOneof("kind") == "mounted":
                break
        if message.mounted.generation != self.generation:
            self.stale, self.generation = self.generation, message.mounted.generation
        # Ready: whatever was sent before and is not in the feed is not in the log and never will be.
        for attempt in self.in_flight.values():
            self.end(attempt, "not appended")
        self.in_flight.clear()

    async def send(self, stream: MountStream) -> None:
        actor = self.actor
        while self.left > 0 and not actor.over.is_set():
            self.left -= 1
            stale = self.stale > 0 and actor.rng.random() < 0.2
            attempt = actor.begin(timeout_s=1e9)
            sequence, self.next_sequence = self.next_sequence, self.next_sequence + 1
            self.in_flight[sequence] = attempt
            generation = self.stale if stale else self.generation
            record = encode_record(self.client_id, generation, actor.partition, sequence, 0, actor.data(attempt))
            frame = pb.AppendFrame(
                generation=generation, lengths=struct.pack(">i", len(record)), marks=struct.pack(">q", self.position), records=record
            )
            times = 2 if actor.rng.random() < 0.2 else 1
            if times > 1:
                self.doubled.add(sequence)
            for _ in range(times):
                await stream.send(pb.ClientMessage(append=frame))
            await actor.pause(0.04)
        await asyncio.get_running_loop().create_future()

    async def receive(self, stream: MountStream) -> None:
        while (message := await stream.receive()) is not None:
            kind = message.WhichOneof("kind")
            if kind == "feed":
                self.fed(message.feed)
            elif kind == "result":
                self.answered(message.result)
        raise ConnectionLost(address="owner", reason="stream finished")

    def answered(self, result: pb.AppendResult) -> None:
        for first, count, transaction_id in ranges(result.committed, 3):
            for place in range(count):
                if (attempt := self.in_flight.pop(first + place, None)) is not None:
                    attempt.in_memory = result.in_memory
                    self.end(attempt, "committed", transaction_id + place)
        for sequence, reason in ranges(result.refused, 2):
            # A duplicate says nothing of the first sending; nor does what a partition that is handed over answers to the second.
            certain = reason != pb.REFUSAL_DUPLICATE and sequence not in self.doubled
            if certain and (attempt := self.in_flight.pop(sequence, None)) is not None:
                self.end(attempt, "not appended")


@client_kind("feeding")
async def settle_by_feed(actor: Actor) -> None:
    """Breaks its streams repeatedly while appends are in flight."""
    async with open_owners(actor) as owners:
        feeding = _Feeding(actor, owners, actor.client_id)
        while feeding.in_flight or (feeding.left > 0 and not actor.over.is_set()):
            stream: MountStream | None = None
            tasks: list[asyncio.Task[None]] = []
            try:
                stream = owners.stream_channel(await owners.owner(actor.partition, 1.0)).open(methods.MOUNT)
                async with asyncio.timeout(1.0):
                    await feeding.mount(stream)
                tasks = [asyncio.ensure_future(feeding.send(stream)), asyncio.ensure_future(feeding.receive(stream))]
                done, _ = await asyncio.wait(tasks, timeout=actor.rng.uniform(0.02, STREAM_S), return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            except (TimeoutError, Unavailable):
                await actor.pause(0.05)
            except WaltzError as error:
                if not ended_by_the_network(actor, error) and not error.retriable and error.outcome != "unknown":
                    raise
                await actor.pause(0.05)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                if stream is not None:
                    await stream.cancel()
