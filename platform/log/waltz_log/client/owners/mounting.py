"""Mounting a partition for appends: the first message of a stream and the owner's answer (Client-Server Communication)."""

from __future__ import annotations

import asyncio
import struct
from typing import Any  # keyword arguments of a protobuf message

from waltz_log.client.owners.owners import Owners
from waltz_log.core.topics.catalogue import TopicEpoch
from waltz_log.errors import ConnectionLost, NotOwner, ProtocolViolation
from waltz_log.transport import versions
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.methods import MOUNT, MountStream
from waltz_log.transport.versions import expect_spoken

__all__ = ["mount_for_appends", "mount_request", "ranges"]


def mount_request(
    owners: Owners,
    partition: int,
    client_id: int,
    mount_sequence: int,
    mark: int,
    feed: pb.FeedMode.ValueType,
    *,
    on_disk: bool = False,
    topic: TopicEpoch | None = None,
    appends_nothing: bool = False,
) -> pb.ClientMessage:
    return pb.ClientMessage(
        mount=pb.MountRequest(
            protocol_version=versions.SPOKEN.highest,
            lowest_protocol_version=versions.SPOKEN.lowest,
            cluster_key=owners.parameters.key.bytes,
            client_id=client_id,
            ticket=owners.ticket_of(client_id),
            partition=partition,
            mount_sequence=mount_sequence,
            client_high_water_mark=mark,
            feed=feed,
            principal=owners.principal,
            on_disk=on_disk,
            topic="" if topic is None else topic.name,
            topic_epoch=0 if topic is None else topic.epoch,
            topics=owners.topics,
            appends_nothing=appends_nothing,
        )
    )


async def mount_for_appends(
    owners: Owners,
    address: str,
    partition: int,
    client_id: int,
    mount_sequence: int,
    mark: int,
    timeout_s: float,
    *,
    on_disk: bool = False,
    topic: TopicEpoch | None = None,
    appends_nothing: bool = False,
) -> tuple[MountStream, pb.MountResponse]:
    """A stream without feed that the owner said is ready: everything this client sent to the partition before is decided. `on_disk`: nothing is
    answered before. `topic`: of which the partition is, for a topic's handle; `appends_nothing`: only to fence and to ask, whatever the partition
    belongs to. Raises `BelongsToTopic`, `TopicDeleted`, `NotOwner`, `ConnectionLost`, `Fenced`, `StorageFull`, `OutOfRange` (the mark is outside the
    log), `ClusterKeyMismatch`, `ProtocolViolation`."""
    stream = owners.stream_channel(address).open(MOUNT)
    how: dict[str, Any] = {"on_disk": on_disk, "topic": topic, "appends_nothing": appends_nothing}
    try:
        async with asyncio.timeout(timeout_s):
            await stream.send(mount_request(owners, partition, client_id, mount_sequence, mark, pb.FEED_NONE, **how))
            message = await stream.receive()
        if message is None or message.WhichOneof("kind") != "mounted":
            raise NotOwner(partition=partition, reason=f"{address} is not ready")
        mounted: pb.MountResponse = message.mounted
        expect_spoken(mounted.protocol_version, versions.SPOKEN, address)
    except TimeoutError:
        await stream.cancel()
        raise ConnectionLost(address=address, reason="no answer to the mount") from None
    except BaseException:
        await stream.cancel()
        raise
    return stream, mounted


def ranges(packed: bytes, width: int) -> list[tuple[int, ...]]:
    """The rows of a packed i8 column. Raises `ProtocolViolation`."""
    if len(packed) % (8 * width):
        raise ProtocolViolation(reason=f"column of {len(packed)} bytes is not rows of {width} numbers")
    return list(struct.iter_unpack(f">{width}q", packed))
