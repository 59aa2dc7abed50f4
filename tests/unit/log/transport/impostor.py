"""A process with a certificate of the cluster that serves where it should not, and keeps whatever it is sent."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any  # gRPC's own objects

import grpc
import grpc.aio

from waltz_log.security.certificates import Certificates
from waltz_log.security.settings import TlsSettings
from waltz_log.transport.grpc_channels import add_port

__all__ = ["Impostor", "relay"]


@dataclass
class Impostor:
    """`seen`: each call with its metadata; `messages`: what the calls sent."""

    address: str = ""
    seen: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    messages: list[bytes] = field(default_factory=list)

    @asynccontextmanager
    async def serving(self, tls: TlsSettings, address: str = "127.0.0.1:0") -> AsyncIterator[Impostor]:
        """Speaks gRPC at the address with the certificate."""
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((_Everything(self),))
        port = add_port(server, address, Certificates(tls))
        await server.start()
        self.address = f"{address.rpartition(':')[0]}:{port}"
        try:
            yield self
        finally:
            await server.stop(0)

    @asynccontextmanager
    async def listening(self, tls: TlsSettings) -> AsyncIterator[int]:
        """Speaks TLS alone, at the port that it gives, and keeps the bytes."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                while data := await reader.read(65536):
                    self.messages.append(data)
            except OSError:
                pass  # the peer has gone, as it should
            finally:
                writer.close()

        context: ssl.SSLContext = Certificates(tls).mutual_context()
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        try:
            yield int(server.sockets[0].getsockname()[1])
        finally:
            server.close()
            await server.wait_closed()


class _Everything(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # not generic when it runs
    """Every procedure: each message is answered with an empty one."""

    def __init__(self, impostor: Impostor) -> None:
        self._impostor = impostor

    def service(self, details: Any) -> Any:
        self._impostor.seen.append((details.method, {each.key: str(each.value) for each in details.invocation_metadata}))

        async def run(requests: Any, _context: Any) -> AsyncIterator[bytes]:
            async for message in requests:
                self._impostor.messages.append(message)
                yield b""

        return grpc.stream_stream_rpc_method_handler(run)


@asynccontextmanager
async def relay(*targets: str) -> AsyncIterator[str]:
    """The address of a process that forwards bytes without reading them: its first connection to the first target, and so on; those after the last
    target to the last."""
    left = list(targets)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target = left.pop(0) if len(left) > 1 else left[0]
        host, _, port = target.rpartition(":")
        there, here = await asyncio.open_connection(host, int(port))
        await asyncio.gather(_copy(reader, here), _copy(there, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass  # one end has gone
    finally:
        writer.close()
