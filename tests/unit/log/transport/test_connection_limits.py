"""How many connections a port accepts, how long one may be in its handshake or idle, and that clients notice nothing of strangers."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from waltz_log.core.ports import Listener
from waltz_log.errors import ConnectionLost, QuotaExceeded
from waltz_log.security.authority import DevelopmentAuthority
from waltz_log.security.certificates import Certificates
from waltz_log.transport import accepting, methods
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.admitted import Gate
from waltz_log.transport.connection_limits import ConnectionLimits
from waltz_log.transport.direct.connection import DirectListener
from waltz_log.transport.grpc import GrpcNetwork

BEGINNING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
"""A whole beginning of HTTP/2: preface and settings."""


async def ping(_request: Any) -> pb.PingResponse:
    return pb.PingResponse()


@asynccontextmanager
async def serving(limits: ConnectionLimits, **options: Any) -> AsyncIterator[Listener]:
    listener = await GrpcNetwork(-1, limits=limits, **options).serve("127.0.0.1:0", [methods.PING.served_by(ping)])
    try:
        yield listener
    finally:
        await listener.close()


async def stranger(port: int, said: bytes = b"") -> float:
    """Connects, says that, and returns after how many seconds the port closed the connection."""
    began_s = time.monotonic()  # the deadline of the port begins later
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(said)
        while await reader.read(4096):
            pass
    except OSError:
        pass
    finally:
        writer.transport.abort()
    return time.monotonic() - began_s


async def closed_at_once(port: int, strangers: int, most: int) -> None:
    """At a port that ends no handshake, all of these strangers but at most `most` are closed. Their connections are over when this returns."""
    crowd = {asyncio.ensure_future(stranger(port)) for _ in range(strangers)}
    waiting = crowd
    try:
        async with asyncio.timeout(60):
            while len(waiting) > most:
                _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waiting:
            each.cancel()
        await asyncio.gather(*crowd, return_exceptions=True)


def port_of(listener: Listener) -> int:
    return int(listener.address.rpartition(":")[2])


async def test_a_connection_that_says_nothing_or_too_little_is_closed_at_its_deadline() -> None:
    async with serving(ConnectionLimits(handshake_s=0.5)) as listener:
        lasted = await asyncio.gather(*(stranger(port_of(listener), said) for said in (b"", b"PRI", BEGINNING[:-3])))
        assert all(0.3 < each < 10 for each in lasted)
        assert await stranger(port_of(listener), b"GET / HTTP/1.1\r\n\r\n") < 10


async def test_a_connection_without_a_call_is_closed_and_clients_connect_again() -> None:
    async with serving(ConnectionLimits(idle_s=1.0)) as listener:
        channel = GrpcNetwork().connect(listener.address)
        await channel.call(methods.PING, pb.PingRequest(), timeout_s=5)
        assert 0.5 < await stranger(port_of(listener), BEGINNING) < 20
        await asyncio.sleep(1.5)
        await channel.call(methods.PING, pb.PingRequest(), timeout_s=5)
        await channel.close()


async def test_connections_above_the_limit_are_closed_when_they_are_accepted_and_those_below_go_on() -> None:
    async with serving(ConnectionLimits(connections=16, handshake_s=600)) as listener:
        channel = GrpcNetwork().connect(listener.address)
        await channel.call(methods.PING, pb.PingRequest(), timeout_s=5)
        await closed_at_once(port_of(listener), 300, most=20)
        await channel.call(methods.PING, pb.PingRequest(), timeout_s=5)
        late = GrpcNetwork().connect(listener.address)
        async with asyncio.timeout(60):
            while True:
                try:
                    await late.call(methods.PING, pb.PingRequest(), timeout_s=5)
                    break
                except ConnectionLost:  # the port has not noticed yet that the last strangers are gone
                    await asyncio.sleep(0.02)
        await asyncio.gather(channel.close(), late.close())


# ---- direct connections ----------------------------------------------------------------------------------------------------------------------------


async def replicate(stream: Any) -> None:
    while await stream.receive() is not None:
        pass


async def test_a_direct_port_ends_handshakes_that_last_too_long_and_closes_those_above_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accepting, "HANDSHAKES_MAX", 8)
    authority = DevelopmentAuthority(tmp_path)
    tls = authority.issue("node", "a")
    service = [methods.REPLICATE.served_by(replicate)]
    patient = DirectListener("127.0.0.1:0", 0, service, Gate(Certificates(tls)), ConnectionLimits(handshake_s=600))
    await patient.open()
    try:
        await closed_at_once(patient._port, 100, most=8)
        assert await stranger(patient._port, b"\x16\x03\x01garbage") < 60
    finally:
        await patient.close()
    listener = DirectListener("127.0.0.1:0", 0, service, Gate(Certificates(tls)), ConnectionLimits(handshake_s=0.8))
    await listener.open()
    try:
        assert max(await asyncio.gather(*(stranger(listener._port) for _ in range(100)))) < 60
        context = Certificates(tls).client_context()
        _, writer = await asyncio.open_connection("127.0.0.1", listener._port, ssl=context)
        assert isinstance(writer.get_extra_info("ssl_object"), ssl.SSLObject), "there is place again"
        writer.transport.abort()
    finally:
        await listener.close()
    with pytest.raises(OSError):
        await asyncio.open_connection("127.0.0.1", listener._port)


# ---- principals ------------------------------------------------------------------------------------------------------------------------------------


async def test_a_principal_has_calls_on_so_many_connections_and_a_node_on_any_number(tmp_path: Path) -> None:
    authority = DevelopmentAuthority(tmp_path)
    held = asyncio.Event()

    async def mount(stream: Any) -> None:
        await stream.send(pb.ServerMessage())
        await held.wait()

    network = GrpcNetwork(-1, limits=ConnectionLimits(per_principal=2), tls=authority.issue("node", "a"))
    listener = await network.serve("127.0.0.1:0", [methods.MOUNT.served_by(mount)])
    channels = []

    async def mounted(role: str, name: str) -> Any:
        channel = GrpcNetwork(tls=authority.find(role, name) or authority.issue(role, name)).connect(listener.address)
        channels.append(channel)
        stream = channel.open(methods.MOUNT)
        await stream.send(pb.ClientMessage(mount=pb.MountRequest()))
        await stream.receive()
        return stream

    try:
        first, _ = await mounted("reader", "ada"), await mounted("reader", "ada")
        with pytest.raises(QuotaExceeded, match="connections_per_principal") as refused:
            await mounted("reader", "ada")
        assert refused.value.facts["principal"] == "spiffe://waltz/reader/ada"
        await mounted("reader", "bob")
        for _ in range(4):
            await mounted("node", "b")
        await first.cancel()
        async with asyncio.timeout(10):
            while True:
                try:
                    await mounted("reader", "ada")
                    break
                except QuotaExceeded:
                    await asyncio.sleep(0.02)
    finally:
        held.set()
        for channel in channels:
            await channel.close()
        await listener.close()


async def test_more_streams_than_a_connection_may_have_wait() -> None:
    held = asyncio.Event()

    async def mount(stream: Any) -> None:
        await stream.send(pb.ServerMessage())
        await held.wait()

    listener = await GrpcNetwork(-1, limits=ConnectionLimits(streams=3)).serve("127.0.0.1:0", [methods.MOUNT.served_by(mount)])
    channel = GrpcNetwork().connect(listener.address)
    try:
        warm = channel.open(methods.MOUNT)
        await warm.send(pb.ClientMessage())
        await warm.receive()
        streams = [channel.open(methods.MOUNT) for _ in range(5)]
        for each in streams[:2]:
            await each.send(pb.ClientMessage())
            await each.receive()
        with pytest.raises((TimeoutError, ConnectionLost)):
            async with asyncio.timeout(0.3):
                await streams[4].send(pb.ClientMessage())
    finally:
        held.set()
        await channel.close()
        await listener.close()
