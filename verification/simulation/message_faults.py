"""Messages that arrive with other bytes than were sent. TCP's checksum of 16 bits lets some through, and memory of network cards and switches has no
checksum at all.

The fault flips one bit of the records in a message on any path: to an owner, to replicas, between replicas, to readers. Their own checksums must show
it. Then the message counts as not received: it is sent again, and nothing of it is stored or returned. Other parts of messages are not protected
(docs/decisions/0032), so they are not changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Final

from verification.simulation.faults import fault
from waltz_log.core.messages import Encoded
from waltz_log.transport import waltz_pb2 as pb

if TYPE_CHECKING:
    from verification.simulation.world import World

__all__ = ["VIEW_COLUMNS", "Corruption", "corrupt_messages", "records_of"]

VIEW_COLUMNS: Final = ("transaction_ids", "times_ms", "headers", "key_lengths", "value_lengths", "keys", "values", "checksums")
"""Of the records in a page of a compacted view."""


def records_of(message: Any) -> Iterator[tuple[Any, str]]:
    """Where in a message there are records with checksums: submessage and field."""
    if isinstance(message, pb.ClientMessage):
        if message.WhichOneof("kind") == "append":
            yield message.append, "records"
    elif isinstance(message, pb.ServerMessage):
        if message.WhichOneof("kind") == "feed":
            yield from _blocks(message.feed.blocks)
    elif isinstance(message, pb.ReplicateRequest):
        if message.WhichOneof("kind") == "block":
            yield message.block, "records"
        elif message.WhichOneof("kind") == "blocks":
            yield from _blocks(message.blocks.blocks)
    elif isinstance(message, pb.ReadResponse | pb.TransactionResponse):
        yield from _blocks(message.blocks)
    elif isinstance(message, pb.ReadViewResponse):
        yield from ((message, column) for column in VIEW_COLUMNS)
    elif isinstance(message, pb.LoadViewRequest) and message.WhichOneof("kind") == "page":
        yield from ((message.page, column) for column in VIEW_COLUMNS)


def _blocks(blocks: Sequence[Any]) -> Iterator[tuple[Any, str]]:
    """Whole records and sealed headers alike."""
    for block in blocks:
        yield block, "records"


class Corruption:
    """Flips a bit in a share of the messages that hold records."""

    def __init__(self, share: float, rng: Random) -> None:
        self.turned = 0
        self._share = share
        self._rng = rng
        self._spared: set[tuple[str, str]] = set()

    def __call__(self, way: tuple[str, str], message: Any, data: bytes) -> bytes:
        """The bytes that arrive. `way`: from which host to which. The message after a corrupted one is not changed, so that a retry helps. `data`:
        the bytes that were sent."""
        if way not in self._spared and self._rng.random() >= self._share:
            return data
        copy = (message.kind if isinstance(message, Encoded) else type(message)).FromString(data)
        places = [(part, field) for part, field in records_of(copy) if getattr(part, field)]
        if not places:
            return data
        if way in self._spared:
            self._spared.remove(way)
            return data
        self._spared.add(way)
        part, field = self._rng.choice(places)
        content = bytearray(getattr(part, field))
        content[self._rng.randrange(len(content))] ^= 1 << self._rng.randrange(8)
        setattr(part, field, bytes(content))
        self.turned += 1
        found: bytes = copy.SerializeToString()
        return found


@fault("corrupt-messages", chance=0.3)
async def corrupt_messages(world: World, rng: Random) -> None:
    """Between any two processes, for a while."""
    if world.network.corrupts is not None:
        return
    corruption = world.network.corrupts = Corruption(rng.choice((0.02, 0.1, 0.2)), Random(rng.random()))
    world.trace.add("network", "begins to corrupt messages")
    await asyncio.sleep(rng.choice((0.2, 0.5, 1.5)))
    world.network.corrupts = None
    world.trace.add("network", f"has corrupted {corruption.turned} messages, and corrupts no more")
