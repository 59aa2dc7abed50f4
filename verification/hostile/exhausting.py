"""Attacks on memory and time: requests that cost a server much. Each returns how much of that a server really did or held, and a breach only if the
server permits what it must refuse; `run` measures what they cost."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final  # Any: messages of any method

import grpc
import grpc.aio

from verification.hostile.target import WAIT_S, Hostile, Outcome
from waltz_log.core.ports import Channel, Receiver
from waltz_log.errors import WaltzError
from waltz_log.security.certificates import Certificates
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.direct.codec import GREETING, HEAD, MESSAGE, STATUS, VERSION
from waltz_log.transport.grpc_channels import CHANNEL_OPTIONS
from waltz_log.transport.methods import BOUND, FOLLOW, MAX_FRAME_BYTES, MOUNT, SERVER_DIRECT, STORAGE_DIRECT, MountStream

__all__ = [
    "announce_frames",
    "ask_for_equal_bounds",
    "hold_handshakes",
    "hold_offers",
    "leave_feeds_unread",
    "leave_followers_unread",
    "locks_frame",
    "send_bombs",
    "send_many_locks",
]

HELD_S = 3.0
"""How long an attack keeps what it got."""

EQUAL_BOUNDS: Final = 1_000_000

LOCKS_EACH: Final = 255
LOCKED: Final = (MAX_FRAME_BYTES - (1 << 20)) // (8 * LOCKS_EACH)
"""Transactions with that many locks. The last MiB of the frame is for their records and columns."""

JUDGED_S: Final = 45.0
"""For the answers to a frame of two million locks, which a server judges in pieces between the frames of others."""

FEEDS: Final = 512
SAMPLED: Final = 16
"""Of this many unread streams, one is read once at the end, to see whether a server served it."""

ANNOUNCED: Final = 64
BEGUN_BYTES: Final = 32 * 1024
"""Of an announced frame that are sent: a server allocates for what it receives."""

OFFERS: Final = 256
STRANGERS: Final = 200
BOMB_BYTES: Final = 15 << 20
BOMB_OPTIONS: Final = tuple(each for each in CHANNEL_OPTIONS if "compression" not in each[0])
"""Without those by which an honest client compresses nothing."""

UNANSWERED: Final = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


async def ask_for_equal_bounds(hostile: Hostile) -> Outcome:
    outcome = Outcome()
    request = pb.BoundRequest(cluster_key=hostile.key, partitions=[hostile.target.shared[0]] * EQUAL_BOUNDS)
    await hostile.expect_refused(outcome, BOUND, request, f"answered {EQUAL_BOUNDS} equal bounds")
    return outcome


async def send_many_locks(hostile: Hostile) -> Outcome:
    """One frame of records without data, with as many locks as fit into a frame. It achieves the locks that the server judges."""
    partition, outcome = hostile.rng.choice(hostile.target.shared), Outcome()
    stream = hostile.server().open(MOUNT)
    try:
        async with asyncio.timeout(JUDGED_S):
            await stream.send(hostile.mounting_as_itself(partition))
            answer = await stream.receive()
            if answer is None or not answer.HasField("mounted"):
                return outcome
            await stream.send(pb.ClientMessage(append=locks_frame(hostile, partition, answer.mounted)))
            while outcome.achieved < LOCKED * LOCKS_EACH and (answer := await stream.receive()) is not None:
                outcome.achieved += LOCKS_EACH * _decided(answer.result)
    except (WaltzError, TimeoutError):
        pass  # refused, or not all of it judged in time
    finally:
        await stream.cancel()
    return outcome


def locks_frame(hostile: Hostile, partition: int, mounted: pb.MountResponse) -> pb.AppendFrame:
    """Its transactions know all that the log held when the partition was mounted, so that none is rejected before its locks are written."""
    first = hostile.next_sequences(LOCKED)
    frame = hostile.frame(mounted.generation, partition, hostile.own_id, first, [b""] * LOCKED, mark=mounted.high_water_mark)
    frame.lock_counts = bytes([LOCKS_EACH, 0, 0]) * LOCKED
    frame.locks = hostile.rng.randbytes(8 * LOCKS_EACH * LOCKED)
    return frame


def _decided(result: pb.AppendResult) -> int:
    """Transactions that were committed or rejected: of either the locks were judged."""
    committed = (int.from_bytes(result.committed[at + 8 : at + 16], "big") for at in range(0, len(result.committed), 24))
    return sum(committed) + len(result.rejected) // 16


async def leave_feeds_unread(hostile: Hostile) -> Outcome:
    """It achieves the feeds, of a sample, that a server has begun."""
    streams: list[MountStream] = []
    try:
        for number in range(FEEDS):
            stream = hostile.server().open(MOUNT)
            streams.append(stream)
            with suppress(WaltzError):
                partition = hostile.target.shared[number % len(hostile.target.shared)]
                await stream.send(hostile.mounting(partition, 0, 0, feed=pb.FEED_RECORDS))
        await asyncio.sleep(HELD_S)
        return Outcome(await _served(streams))
    finally:
        for stream in streams:
            await stream.cancel()


async def leave_followers_unread(hostile: Hostile) -> Outcome:
    """Follows the cluster many times, from the beginning and from a version of the future, and reads nothing. It achieves what the one above does."""
    receivers = []
    try:
        for number in range(FEEDS):
            versions = [pb.MapVersion(source="assignment", version=1 << 60)] if number % 2 else []
            receivers.append(hostile.server().read(FOLLOW, pb.FollowRequest(cluster_key=hostile.key, versions=versions)))
        await asyncio.sleep(HELD_S)
        return Outcome(await _served(receivers))
    finally:
        for receiver in receivers:
            await receiver.cancel()


async def _served(receivers: Sequence[Receiver[Any]]) -> int:
    """How many of a sample have a message."""

    async def served(receiver: Receiver[Any]) -> bool:
        try:
            async with asyncio.timeout(WAIT_S):
                return await receiver.receive() is not None
        except (WaltzError, TimeoutError):
            return False

    return sum(await asyncio.gather(*map(served, receivers[::SAMPLED])))


async def send_bombs(hostile: Hostile) -> Outcome:
    """Calls whose messages are small only while they are compressed. It achieves those that a node itself refuses."""
    outcome = Outcome()
    pem = Certificates(hostile.tls).current()
    credentials = grpc.ssl_channel_credentials(pem.authorities, pem.key, pem.certificate)
    bomb = pb.ClientMessage(mount=pb.MountRequest(topic="x" * BOMB_BYTES)).SerializeToString()
    answered = 0
    nodes = [(each, SERVER_DIRECT.name) for each in hostile.target.servers] + [(each, STORAGE_DIRECT.name) for each in hostile.target.storages]
    for address, method in nodes:
        async with grpc.aio.secure_channel(address, credentials, options=BOMB_OPTIONS, compression=grpc.Compression.Gzip) as channel:
            call = channel.unary_unary(method, request_serializer=bytes, response_deserializer=bytes)

            async def send(call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = call) -> int:
                try:
                    await call(bomb, timeout=WAIT_S)
                except grpc.aio.AioRpcError as error:
                    outcome.achieved += error.code() not in UNANSWERED
                    return 0
                return 1

            answered += sum(await asyncio.gather(*(send() for _ in range(8))))
    outcome.breaches += [f"answered {answered} compressed calls"] if answered else []
    return outcome


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _offered(hostile: Hostile, server: Channel, mount: pb.ClientMessage) -> int:
    """The port that is offered, or was before: a server that offers none accepts connections at it all the same."""
    port = (await server.call(SERVER_DIRECT, mount, timeout_s=WAIT_S)).port
    return hostile.direct_ports.setdefault(mount.mount.partition, port) if port else hostile.direct_ports.get(mount.mount.partition, 0)


@asynccontextmanager
async def _direct_connections(hostile: Hostile, mounts: Sequence[pb.ClientMessage]) -> AsyncIterator[list[Connection]]:
    """A connection to the direct port of a log server for each of the mounts, which is sent on it."""
    server = hostile.server()
    found: list[Connection] = []
    context = Certificates(hostile.tls).client_context()
    context.check_hostname = False
    try:
        with suppress(WaltzError):
            for mount in mounts:
                port = await _offered(hostile, server, mount)
                with suppress(OSError, ssl.SSLError):
                    reader, writer = await asyncio.open_connection(server.address.rpartition(":")[0], port, ssl=context)
                    greeting, opening = VERSION + MOUNT.name.encode(), mount.SerializeToString()
                    writer.write(HEAD.pack(GREETING, len(greeting)) + greeting + HEAD.pack(MESSAGE, len(opening)) + opening)
                    found.append((reader, writer))
        yield found
    finally:
        for _, writer in found:
            writer.transport.abort()


async def announce_frames(hostile: Hostile) -> Outcome:
    """Frames of the largest size are announced and never sent, each by a client of its own: a server fences an older mount of the same client. It
    achieves the mounts on which one is announced."""
    partition = hostile.target.shared[0]
    mounts = [
        hostile.mounting(partition, given.client_id, hostile.next_mount_sequence(), ticket=given.ticket) for given in await hostile.ids(ANNOUNCED)
    ]
    async with _direct_connections(hostile, mounts) as connections:
        mounted = await asyncio.gather(*(_is_mounted(reader) for reader, _ in connections))
        held = [connection for connection, accepted in zip(connections, mounted, strict=True) if accepted]
        for _, writer in held:
            writer.write(HEAD.pack(MESSAGE, MAX_FRAME_BYTES) + bytes(BEGUN_BYTES))
        await asyncio.sleep(HELD_S)
        return Outcome(sum(not _ended(reader) for reader, _ in held))


async def _is_mounted(reader: asyncio.StreamReader) -> bool:
    """Whether the answer to the mount is that it is accepted."""
    try:
        async with asyncio.timeout(WAIT_S):
            while True:
                kind, length = HEAD.unpack(await reader.readexactly(HEAD.size))
                body = await reader.readexactly(length)
                if kind in (MESSAGE, STATUS):
                    return kind == MESSAGE and pb.ServerMessage.FromString(body).HasField("mounted")
    except (OSError, EOFError):
        return False


def _ended(reader: asyncio.StreamReader) -> bool:
    """Whether the other end has closed the connection."""
    return reader.at_eof() or reader.exception() is not None


async def hold_offers(hostile: Hostile) -> Outcome:
    """Asks for as many direct connections as a server offers, and uses none. It achieves the answers: beside other attacks its principal
    may have all connections that it may have, and is offered none."""
    mount, outcome = hostile.mounting_as_itself(hostile.target.shared[0]), Outcome()
    for _ in range(OFFERS):
        with suppress(WaltzError):
            await _offered(hostile, hostile.server(), mount)
            outcome.achieved += 1
    return outcome


async def hold_handshakes(hostile: Hostile) -> Outcome:
    """Connections without a certificate, to every port, that say little or nothing. It achieves those that are open at the end."""
    connections: list[Connection] = []
    try:
        for number in range(STRANGERS):
            host, _, port = hostile.rng.choice(hostile.target.ports).rpartition(":")
            with suppress(OSError):
                reader, writer = await asyncio.open_connection(host, int(port))
                connections.append((reader, writer))
                if number % 2:
                    writer.write(hostile.rng.randbytes(number))
        await asyncio.sleep(HELD_S)
        return Outcome(sum(not _ended(reader) for reader, _ in connections))
    finally:
        for _, writer in connections:
            writer.transport.abort()
