"""Connections that are slow, are refused, or were closed: what a caller meets then, over real gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from waltz_log.core.ports import Channel
from waltz_log.errors import ConnectionLost
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.connection_limits import ConnectionLimits
from waltz_log.transport.grpc import GrpcNetwork
from waltz_log.transport.methods import ServedReplicateStream

NOBODY = "127.0.0.1:1"

ONE_WAY_S = 0.15
"""A link half around the world."""


async def test_a_connection_has_so_many_streams_and_others_wait_or_are_refused() -> None:
    running: set[int] = set()
    most, release = 0, asyncio.Semaphore(0)

    async def replicate(stream: ServedReplicateStream) -> None:
        nonlocal most
        running.add(id(stream))
        most = max(most, len(running))
        await release.acquire()
        running.discard(id(stream))

    listener = await GrpcNetwork(-1, limits=ConnectionLimits(streams=4)).serve("127.0.0.1:0", [methods.REPLICATE.served_by(replicate)])
    channel, other = GrpcNetwork().connect(listener.address), GrpcNetwork().connect(listener.address)
    try:
        async with asyncio.timeout(30):

            async def ended(channel: Channel) -> bool:
                try:
                    return await channel.open(methods.REPLICATE).receive() is None
                except ConnectionLost:
                    return False  # begun before the client knew the limit: it may come again

            calls = [asyncio.ensure_future(ended(channel)) for _ in range(12)]
            while len(running) < 4:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.5)
            assert (len(running), most) == (4, 4)
            calls.append(asyncio.ensure_future(ended(other)))
            while len(running) < 5:
                await asyncio.sleep(0.01)  # another connection has its own
            for _ in range(20):
                release.release()
            served = await asyncio.gather(*calls)
            assert sum(served) >= 5
            assert served[-1]
            assert most == 5
            assert await ended(channel), "there is room again"
    finally:
        await channel.close()
        await other.close()
        await listener.close()


async def _status(_request: Any) -> Any:
    return pb.StorageStatusResponse(json="{}")


@asynccontextmanager
async def _far_away(address: str) -> AsyncIterator[str]:
    """The address of a relay that holds everything up on its way, in each direction."""
    host, _, port = address.rpartition(":")
    relays: set[asyncio.Task[None]] = set()
    ends: list[asyncio.StreamWriter] = []

    async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            asyncio.get_running_loop().call_later(ONE_WAY_S, target.write, data)

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward, back = await asyncio.open_connection(host, int(port))
        ends.extend((writer, back))
        relays.update(asyncio.ensure_future(pump(*pair)) for pair in ((reader, back), (onward, writer)))

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in relays:
            task.cancel()
        await asyncio.gather(*relays, return_exceptions=True)
        for end in ends:
            end.close()


async def test_a_peer_that_is_far_away_is_reached_by_the_first_call() -> None:
    listener = await GrpcNetwork().serve("127.0.0.1:0", [methods.STORAGE_STATUS.served_by(_status)])
    async with _far_away(listener.address) as address:
        channel = GrpcNetwork().connect(address)
        try:
            answer = await channel.call(methods.STORAGE_STATUS, pb.StorageStatusRequest(), timeout_s=20)
            assert answer.json == "{}"
        finally:
            await channel.close()
    await listener.close()


async def _call(channel: Channel) -> None:
    await channel.call(methods.STORAGE_STATUS, pb.StorageStatusRequest(), timeout_s=20)


async def _send(channel: Channel) -> None:
    await channel.open(methods.MOUNT).send(pb.ClientMessage(mount=pb.MountRequest()))


async def _receive(channel: Channel) -> None:
    await channel.read(methods.READ, pb.ReadRequest()).receive()


async def _finish(channel: Channel) -> None:
    await channel.open(methods.MOUNT).finish()


@pytest.mark.parametrize("use", [_call, _send, _receive, _finish])
async def test_without_a_listener_any_first_operation_reports_a_lost_connection(use: Callable[[Channel], Awaitable[None]]) -> None:
    channel = GrpcNetwork().connect(NOBODY)
    try:
        with pytest.raises(ConnectionLost, match="connect"):
            async with asyncio.timeout(20):
                await use(channel)
    finally:
        await channel.close()


@pytest.mark.parametrize("use", [_call, _send, _receive, _finish])
async def test_a_channel_that_was_closed_reports_a_lost_connection(use: Callable[[Channel], Awaitable[None]]) -> None:
    channel = GrpcNetwork().connect(NOBODY)
    await channel.close()
    with pytest.raises(ConnectionLost, match="closed"):
        await use(channel)
