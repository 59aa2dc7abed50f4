"""Attacks on memory and time: small requests that cost a server much. None of them appends. They return a breach only if the server permits what it
must refuse; `run` measures what they cost."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from struct import pack

import grpc
import grpc.aio

from verification.hostile.target import WAIT_S, Hostile
from waltz_log.errors import WaltzError
from waltz_log.security.certificates import Certificates
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.direct.codec import GREETING, HEAD, VERSION
from waltz_log.transport.grpc_channels import CHANNEL_OPTIONS
from waltz_log.transport.methods import BOUND, FOLLOW, MAX_FRAME_BYTES, MOUNT, SERVER_DIRECT, MountStream

__all__ = [
    "announce_frames",
    "ask_for_equal_bounds",
    "hold_handshakes",
    "hold_offers",
    "leave_feeds_unread",
    "leave_followers_unread",
    "send_bombs",
    "send_many_locks",
]

HELD_S = 3.0
"""How long an attack keeps what it got."""

EQUAL_BOUNDS = 1_000_000
LOCKS = 2_000_000
FEEDS = 512
ANNOUNCED = 64
OFFERS = 256
STRANGERS = 200
BOMB_BYTES = 15 << 20


async def ask_for_equal_bounds(hostile: Hostile) -> list[str]:
    request = pb.BoundRequest(cluster_key=hostile.key, partitions=[hostile.target.shared[0]] * EQUAL_BOUNDS)
    if await hostile.refused(BOUND, request):
        return []
    return [f"answered {EQUAL_BOUNDS} equal bounds"]


async def send_many_locks(hostile: Hostile) -> list[str]:
    """One frame of records without data, with as many locks as fit into a frame."""
    partition = hostile.rng.choice(hostile.target.shared)
    stream = hostile.server().open(MOUNT)
    try:
        async with asyncio.timeout(WAIT_S):
            await stream.send(hostile.mounting_as_itself(partition))
            answer = await stream.receive()
            if answer is None or not answer.HasField("mounted"):
                return []
            count = LOCKS // 255
            frame = hostile.frame(answer.mounted.generation, partition, hostile.own_id, hostile.next_sequences(count), [b""] * count)
            frame.lock_counts = b"\xff\x00\x00" * count
            frame.locks = hostile.rng.randbytes(8 * 255 * count)[: MAX_FRAME_BYTES - (1 << 20)]
            await stream.send(pb.ClientMessage(append=frame))
            await stream.receive()
    except (WaltzError, TimeoutError):
        pass  # refused, which is what should happen
    finally:
        await stream.cancel()
    return []


async def leave_feeds_unread(hostile: Hostile) -> list[str]:
    streams: list[MountStream] = []
    try:
        for number in range(FEEDS):
            stream = hostile.server().open(MOUNT)
            streams.append(stream)
            with suppress(WaltzError):
                partition = hostile.target.shared[number % len(hostile.target.shared)]
                await stream.send(hostile.mounting(partition, 0, 0, feed=pb.FEED_RECORDS))
        await asyncio.sleep(HELD_S)
    finally:
        for stream in streams:
            await stream.cancel()
    return []


async def leave_followers_unread(hostile: Hostile) -> list[str]:
    """Follows the cluster many times, from the beginning and from a version of the future, and reads nothing."""
    receivers = []
    try:
        for number in range(FEEDS):
            versions = [pb.MapVersion(source="assignment", version=1 << 60)] if number % 2 else []
            receivers.append(hostile.server().read(FOLLOW, pb.FollowRequest(cluster_key=hostile.key, versions=versions)))
        await asyncio.sleep(HELD_S)
    finally:
        for receiver in receivers:
            await receiver.cancel()
    return []


async def send_bombs(hostile: Hostile) -> list[str]:
    """Calls whose messages are small only while they are compressed."""
    pem = Certificates(hostile.tls).current()
    credentials = grpc.ssl_channel_credentials(pem.authorities, pem.key, pem.certificate)
    bomb = pb.ClientMessage(mount=pb.MountRequest(topic="x" * BOMB_BYTES)).SerializeToString()
    answered = 0
    for address in (*hostile.target.servers, *hostile.target.storages):
        async with grpc.aio.secure_channel(address, credentials, options=CHANNEL_OPTIONS, compression=grpc.Compression.Gzip) as channel:
            call = channel.unary_unary(SERVER_DIRECT.name, request_serializer=bytes, response_deserializer=bytes)

            async def send(call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = call) -> int:
                with suppress(grpc.aio.AioRpcError):
                    await call(bomb, timeout=WAIT_S)
                    return 1
                return 0

            answered += sum(await asyncio.gather(*(send() for _ in range(8))))
    return [f"answered {answered} compressed calls"] if answered else []


@asynccontextmanager
async def _direct_connections(hostile: Hostile, count: int, mount: pb.ClientMessage) -> AsyncIterator[list[asyncio.StreamWriter]]:
    """Connections to the direct port of a log server, after their greeting."""
    server = hostile.server()
    writers: list[asyncio.StreamWriter] = []
    context = Certificates(hostile.tls).client_context()
    context.check_hostname = False
    try:
        with suppress(WaltzError):
            for _ in range(count):
                port = (await server.call(SERVER_DIRECT, mount, timeout_s=WAIT_S)).port
                with suppress(OSError, ssl.SSLError):
                    _, writer = await asyncio.open_connection(server.address.rpartition(":")[0], port, ssl=context)
                    greeting = VERSION + MOUNT.name.encode()
                    writer.write(HEAD.pack(GREETING, len(greeting)) + greeting)
                    writers.append(writer)
        yield writers
    finally:
        for writer in writers:
            writer.transport.abort()


async def announce_frames(hostile: Hostile) -> list[str]:
    """Frames of the largest size are announced and never sent."""
    mount = hostile.mounting_as_itself(hostile.rng.choice(hostile.target.shared))
    opening = mount.SerializeToString()
    async with _direct_connections(hostile, ANNOUNCED, mount) as writers:
        for writer in writers:
            writer.write(HEAD.pack(0, len(opening)) + opening)
        await asyncio.sleep(0.5)
        for writer in writers:
            writer.write(pack(">BI", 0, MAX_FRAME_BYTES) + bytes(17))
        await asyncio.sleep(HELD_S)
    return []


async def hold_offers(hostile: Hostile) -> list[str]:
    """Asks for as many direct connections as a server offers, and uses none."""
    mount = hostile.mounting_as_itself(hostile.target.shared[0])
    for _ in range(OFFERS):
        with suppress(WaltzError):
            await hostile.server().call(SERVER_DIRECT, mount, timeout_s=WAIT_S)
    return []


async def hold_handshakes(hostile: Hostile) -> list[str]:
    """Connections without a certificate, to every port, that say little or nothing."""
    writers: list[asyncio.StreamWriter] = []
    try:
        for number in range(STRANGERS):
            host, _, port = hostile.rng.choice(hostile.target.ports).rpartition(":")
            with suppress(OSError):
                _, writer = await asyncio.open_connection(host, int(port))
                writers.append(writer)
                if number % 2:
                    writer.write(hostile.rng.randbytes(number))
        await asyncio.sleep(HELD_S)
    finally:
        for writer in writers:
            writer.transport.abort()
    return []
