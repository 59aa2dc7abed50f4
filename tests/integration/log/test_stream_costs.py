"""What streams cost a node: feeds that are not read, frames of millions of locks, messages that are announced and never sent.

As in `test_request_costs.py`, memory and processor time are those of another process."""

from __future__ import annotations

import asyncio
import struct
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from typing import Any  # gRPC's channels and calls

import grpc
import grpc.aio
import pytest

from tests.integration.log.costly_node import PARTITION, RECORD_BYTES, RECORDS
from tests.integration.log.slow_sender import SlowSender
from tests.integration.log.test_request_costs import CALLBACK_S_MAX, CHECK, KINDS, Node, cost, serving
from waltz_log.core.formats.records import encode_record
from waltz_log.errors import QuotaExceeded, decode
from waltz_log.processes import health
from waltz_log.security.certificates import Certificates
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.call_streams import EOF
from waltz_log.transport.direct import codec as frames
from waltz_log.transport.direct.codec import Wire
from waltz_log.transport.direct.large_frame import BEGUN_BYTES_MAX
from waltz_log.transport.large_messages import AppendColumns, append_message
from waltz_log.transport.served_calls import ARRIVALS_MAX, OPENINGS_MAX

UNREAD_BYTES = 8 << 20
FEEDS = 200
NO_CLIENT = pb.ClientIdResponse()


def _mount(node: Node, client: pb.ClientIdResponse = NO_CLIENT, feed: pb.FeedMode.ValueType = pb.FEED_RECORDS) -> bytes:
    request = pb.MountRequest(
        cluster_key=node.key,
        partition=PARTITION,
        protocol_version=methods.PROTOCOL_VERSION,
        client_high_water_mark=-1,
        feed=feed,
        client_id=client.client_id,
        ticket=client.ticket,
        mount_sequence=1 if client.client_id else 0,
    )
    return pb.ClientMessage(mount=request).SerializeToString()


async def _client_id(channel: Any, node: Node) -> pb.ClientIdResponse:
    """A new one, with the ticket of the channel's principal."""
    request = pb.ClientIdRequest(cluster_key=node.key).SerializeToString()
    return pb.ClientIdResponse.FromString(await channel.unary_unary(methods.CLIENT_ID.name)(request))


async def _begun(channel: Any, mount: bytes) -> Any:
    call = channel.stream_stream(methods.MOUNT.name)()
    await call.write(mount)
    return call


async def _read_feed(channel: Any, node: Node) -> int:
    """Bytes of records that a feed from the beginning returns until the mount is complete."""
    call, found = await _begun(channel, _mount(node)), 0
    while True:
        message = pb.ServerMessage.FromString(await call.read())
        found += sum(len(block.records) for block in message.feed.blocks)
        if message.WhichOneof("kind") == "mounted":
            call.cancel()
            return found


@KINDS
@pytest.mark.timeout(180)
async def test_feeds_that_are_not_read_hold_what_one_principal_may_and_delay_no_other(tmp_path: Path, kind: str) -> None:
    async with serving(tmp_path, kind, unread_bytes_per_principal=UNREAD_BYTES) as node, AsyncExitStack() as stack:
        reader = await stack.enter_async_context(node.channel("reader", "trusted-good"))
        hostile = await stack.enter_async_context(node.channel("reader", "trusted-hostile"))
        await _read_feed(reader, node)
        before = await node.used()
        calls = [await _begun(hostile, _mount(node)) for _ in range(FEEDS)]
        most = 0
        for _ in range(6):  # shorter than the time after which the oldest is ended
            await asyncio.sleep(1)
            most = max(most, (await node.used()).resident_bytes)
        async with asyncio.timeout(20):
            assert await _read_feed(reader, node) >= RECORDS * RECORD_BYTES
        grown = most - before.resident_bytes
        assert grown < 3 * UNREAD_BYTES + (FEEDS * 256 << 10), f"grown={grown >> 20} MiB"
        for call in calls:
            call.cancel()


@pytest.mark.timeout(180)
async def test_a_feed_that_is_not_read_ends_where_others_of_its_principal_need_the_room(tmp_path: Path) -> None:
    async with serving(tmp_path, "alone", unread_bytes_per_principal=1 << 20) as node, node.channel("reader", "trusted-good") as channel:
        deaf = await _begun(channel, _mount(node))
        await asyncio.sleep(1)
        async with asyncio.timeout(60):
            assert await _read_feed(channel, node) >= RECORDS * RECORD_BYTES, "the other feed of the principal goes on"
            with pytest.raises(grpc.aio.AioRpcError) as ended:
                while await deaf.read() is not EOF:
                    pass
        assert isinstance(decode(ended.value.details() or ""), QuotaExceeded)


# ---- messages that arrive slowly -------------------------------------------------------------------------------------------------------------------

SLOW = 200
SLOW_BYTES = 15 << 20
UNREAD_WINDOWS = 48 << 20
"""What gRPC receives of calls that wait: 64 KiB of each."""

ARRIVING = {
    "the opening of a stream": (methods.MOUNT.name, "application", OPENINGS_MAX),
    "a request": (methods.RESOLVE.name, "application", ARRIVALS_MAX),
    "a probe": (CHECK.name, "stranger", health.REQUEST.places),
}
"""Procedures with a role that may call them, without a rule, and how many may arrive at a time."""


@pytest.mark.parametrize("what", ARRIVING)
@KINDS
@pytest.mark.timeout(180)
async def test_large_messages_that_arrive_slowly_hold_what_a_few_places_may(tmp_path: Path, kind: str, what: str) -> None:
    name, role, places = ARRIVING[what]
    arriving = places * SLOW_BYTES
    bound = arriving * 5 // 4 + UNREAD_WINDOWS
    async with serving(tmp_path, kind) as node, asyncio.TaskGroup() as group:
        before = await node.used()
        context = Certificates(node.authority.issue(role, "ada")).client_context()
        sender = await SlowSender.connected(node.address, context, SLOW_BYTES)
        running = group.create_task(sender.run())
        for _ in range(SLOW):
            sender.begin(name)
        sent, grown = -1, 0
        async with asyncio.timeout(90):
            while grown < bound and sender.ended < SLOW and (sender.sent_bytes < arriving or sender.sent_bytes != sent):
                sent = sender.sent_bytes
                await asyncio.sleep(0.5)
                grown = max(grown, (await node.used()).peak_bytes - before.resident_bytes)
        running.cancel()
        assert grown < bound, f"grown={grown >> 20} MiB sent={sender.sent_bytes >> 20} MiB"


# ---- locks -----------------------------------------------------------------------------------------------------------------------------------------


def _locks_frame(client_id: int, transactions: int, locks_each: int, frame: int) -> pb.ClientMessage:
    """Transactions that know everything that the log held, and write as many locks as they can. `frame`: its place among the client's frames, each of
    which has other locks."""
    first = frame * transactions
    records = [encode_record(client_id, GENERATION, PARTITION, number + 1, 0, b"") for number in range(first, first + transactions)]
    locks = transactions * locks_each
    columns = AppendColumns(
        GENERATION,
        struct.pack(f">{transactions}i", *map(len, records)),
        struct.pack(">q", RECORDS - 1) * transactions,
        bytes([locks_each, 0, 0]) * transactions,
        struct.pack(f">{locks}q", *range(frame * locks, (frame + 1) * locks)),
        b"".join(records),
        b"",
    )
    return append_message(columns).decoded()


GENERATION = 1


@KINDS
@pytest.mark.timeout(180)
async def test_a_frame_of_millions_of_locks_keeps_no_other_partition_waiting(tmp_path: Path, kind: str) -> None:
    async with serving(tmp_path, kind) as node, node.channel("application", "trusted-good") as channel:
        client = await _client_id(channel, node)
        call = await _begun(channel, _mount(node, client, pb.FEED_NONE))
        mounted = pb.ServerMessage.FromString(await call.read()).mounted
        assert mounted.generation == GENERATION
        frames = count()

        async def append_one() -> None:
            frame = _locks_frame(client.client_id, 7800, 255, next(frames)).SerializeToString()
            assert 15 << 20 < len(frame) < methods.MAX_FRAME_BYTES
            await call.write(frame)
            decided = 0
            async with asyncio.timeout(60):
                while decided < 7800:
                    result = pb.ServerMessage.FromString(await call.read()).result
                    decided += sum(struct.unpack(f">{len(result.committed) // 8}q", result.committed)[1::3]) + len(result.rejected) // 16

        longest_s = (await cost(node, append_one)).longest_s
        assert longest_s < CALLBACK_S_MAX, f"longest={1000 * longest_s:.0f} ms"
        call.cancel()


# ---- direct connections ----------------------------------------------------------------------------------------------------------------------------

ANNOUNCED = 64


async def _direct_port(channel: Any, node: Node) -> int:
    answer = await channel.unary_unary(methods.SERVER_DIRECT.name)(_mount(node, pb.ClientIdResponse(client_id=7), pb.FEED_NONE))
    return pb.DirectResponse.FromString(answer).port


@KINDS
@pytest.mark.timeout(180)
async def test_frames_that_are_announced_and_not_sent_hold_little_and_give_it_back(tmp_path: Path, kind: str) -> None:
    async with serving(tmp_path, kind) as node, node.channel("application", "trusted-good") as channel:
        context = Certificates(node.authority.issue("application", "trusted-hostile")).client_context()
        port = await _direct_port(channel, node)
        async with node.channel("application", "trusted-hostile") as hostile:
            clients = [await _client_id(hostile, node) for _ in range(ANNOUNCED)]
        before = await node.used()
        wires: list[Wire] = []
        for client in clients:
            _, wire = await asyncio.get_running_loop().create_connection(Wire, "127.0.0.1", port, ssl=context)
            wire.greet(methods.MOUNT.name)
            await wire.send(_mount(node, client, pb.FEED_NONE))
            wires.append(wire)
        for wire in wires:
            assert await wire.next() is not None
            wire._transport.write(frames.HEAD.pack(frames.MESSAGE, methods.MAX_FRAME_BYTES) + bytes(32 * 1024))
        await asyncio.sleep(1)
        grown = (await node.used()).resident_bytes - before.resident_bytes
        assert grown < ANNOUNCED * BEGUN_BYTES_MAX + (48 << 20), f"grown={grown >> 20} MiB"
        assert await _direct_port(channel, node) == port, "another principal still gets a connection"
        async with node.channel("application", "trusted-hostile") as hostile:
            assert await _direct_port(hostile, node) == 0, "this one has all it may have"
        for wire in wires:
            wire.abort()
        await asyncio.sleep(1)
        left = (await node.used()).resident_bytes - before.resident_bytes
        assert left < 32 << 20, f"left={left >> 20} MiB"


@pytest.mark.timeout(120)
async def test_offers_of_direct_connections_lock_no_other_principal_out(tmp_path: Path) -> None:
    async with serving(tmp_path, "alone") as node, node.channel("application", "trusted-hostile") as hostile:
        ports = [await _direct_port(hostile, node) for _ in range(300)]
        assert ports[0] > 0
        assert ports[-1] == 0
        async with node.channel("application", "trusted-good") as channel:
            assert await _direct_port(channel, node) == ports[0]
