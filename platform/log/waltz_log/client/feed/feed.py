"""The feed of one partition: every committed transaction once, in order, over any change of owner.

It uses its own stream with client id 0, which may not append and fences no other client. The caller pulls: only one frame, and what flow control
allows, is read ahead. A stream that ends is mounted again after the last transaction that the caller received.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator

from waltz_log.background_tasks import end_tasks, start_task
from waltz_log.client.base.retry import Backoff
from waltz_log.client.base.settings import ClientSettings
from waltz_log.client.feed.decode_feed import decode_feed
from waltz_log.client.owners.mounting import mount_request
from waltz_log.client.owners.owners import Owners
from waltz_log.client.transactions.transaction import Transaction
from waltz_log.core.topics.catalogue import TopicEpoch
from waltz_log.errors import ClusterKeyMismatch, ConnectionLost, CorruptData, OutOfRange, ProtocolViolation, QuotaExceeded, WaltzError
from waltz_log.transport import versions
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.methods import MOUNT, MountStream
from waltz_log.transport.versions import expect_spoken

__all__ = ["feed_batches"]

TRIES_MAX = 3
"""How often in a row, without a transaction between, a feed may meet what another owner might not show, before it is an error: a transport that
calls a cut connection a violation, an owner that was deposed and lags behind, a frame that was damaged in transit."""


async def feed_batches(
    partition: int, after: int, *, data: bool, owners: Owners, settings: ClientSettings, rng: random.Random, topic: TopicEpoch | None = None
) -> AsyncGenerator[list[Transaction], None]:
    """Non-empty lists of transactions from `after + 1` on, without end. Waits for an owner without a limit.

    Raises `OutOfRange` if `after` is beyond the log or before its first retained transaction, `CorruptData` and `ProtocolViolation` if the
    owner sends what it must not, `TopicDeleted` if the partition is not that topic's any more, `ClusterKeyMismatch` if it belongs to another
    cluster.
    """
    backoff = Backoff(settings.retry_base_s, settings.retry_cap_s, rng)
    position = after
    tries = 0
    while True:
        wait_s = 0.0
        stream: MountStream | None = None
        leaver: asyncio.Task[None] | None = None
        try:
            address = await owners.owner(partition, settings.request_timeout_s)
            generation = owners.generation(partition)
            stream = owners.stream_channel(address).open(MOUNT)
            leaver = start_task(_leave_when_moved(stream, owners, partition, address, generation))
            feed = pb.FEED_RECORDS if data else pb.FEED_HEADERS
            await stream.send(mount_request(owners, partition, 0, 0, position, feed, topic=topic))
            while True:
                frame = await _next_frame(stream, partition)
                batch = decode_feed(frame, partition, position + 1, data=data)
                position = batch[-1].transaction_id
                tries = 0
                backoff.reset()
                yield batch
        except ClusterKeyMismatch:
            raise
        except OutOfRange as error:
            tries += 1
            if position < error.first - 1 or tries >= TRIES_MAX:
                raise
        except (CorruptData, ProtocolViolation):
            # A frame that was damaged in transit is sent again; what arrives damaged time after time is damaged where it comes from.
            tries += 1
            if tries >= TRIES_MAX:
                raise
        except QuotaExceeded as error:
            wait_s = error.retry_after_s
        except WaltzError as error:
            if not error.retriable:
                raise
        finally:
            try:
                if leaver is not None:
                    await end_tasks([leaver])
            finally:
                if stream is not None:
                    await stream.cancel()
        await owners.wait_changed(max(wait_s, backoff.next_s()))


async def _next_frame(stream: MountStream, partition: int) -> pb.FeedFrame:
    while True:
        message = await stream.receive()
        if message is None:
            raise ConnectionLost(address=f"owner of partition {partition}", reason="stream finished")
        kind = message.WhichOneof("kind")
        if kind == "feed":
            frame: pb.FeedFrame = message.feed
            return frame
        if kind != "mounted":
            raise ProtocolViolation(reason=f"unexpected message on a feed: kind={kind}")
        expect_spoken(message.mounted.protocol_version, versions.SPOKEN, f"owner of partition {partition}")


async def _leave_when_moved(stream: MountStream, owners: Owners, partition: int, address: str, generation: int) -> None:
    """An owner that was replaced and does not know it would never feed anything again."""
    await owners.wait_moved(partition, address, generation)
    await stream.cancel()
