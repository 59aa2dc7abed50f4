"""gRPC's channels and ports with the options and the certificates that all connections of the platform have.

A channel keeps the certificate that it was made with, so `GrpcChannels` makes a new one when the files have changed. Calls in progress finish on
the channel on which they started.

gRPC negotiates TLS 1.3 between two ends of the platform. Its Python interface cannot refuse an older version in the handshake, so `admitted` refuses
the calls of such a connection.
"""

from __future__ import annotations

import asyncio
from typing import Any  # gRPC's options and credentials

import grpc
import grpc.aio

from waltz_log.security.certificates import Certificates, Pem
from waltz_log.security.tokens import TokenFile
from waltz_log.transport.methods import MAX_FRAME_BYTES

__all__ = ["CHANNEL_OPTIONS", "GrpcChannels", "add_port", "credentials_of"]

OLD_CHANNEL_S = 3600.0
"""How long calls that started with an older certificate may continue. Streams end sooner: mounts and replication start again with each session."""

CHANNEL_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", MAX_FRAME_BYTES),
    ("grpc.max_send_message_length", MAX_FRAME_BYTES),
    # A peer that vanished is detected within 15 s. A live but idle one is not disturbed.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    # Reconnecting is ours to pace: callers back off, the channel must not add seconds to it.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    # Limits one connection attempt, whatever the name of the option suggests: several round trips to a distant or busy peer.
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.so_reuseport", 0),
    ("grpc.enable_http_proxy", 0),
]


class GrpcChannels:
    """The channel to one address, replaced when the certificates change. Without certificates connections are plain text."""

    def __init__(self, address: str, certificates: Certificates | None) -> None:
        self._address = address
        self._certificates = certificates
        token = None if certificates is None else certificates.settings.token
        self._token = None if token is None else TokenFile(token)
        self._pem = None if certificates is None else certificates.current()
        self._channel = self._open()
        self._closing: set[asyncio.Task[None]] = set()

    def _open(self) -> grpc.aio.Channel:
        if self._pem is None:
            return grpc.aio.insecure_channel(self._address, options=CHANNEL_OPTIONS)
        return grpc.aio.secure_channel(self._address, credentials_of(self._pem), options=CHANNEL_OPTIONS)

    def channel(self) -> grpc.aio.Channel:
        """For one call."""
        if self._certificates is not None and (pem := self._certificates.current()) is not self._pem:
            self._pem = pem
            closing = asyncio.get_running_loop().create_task(self._channel.close(OLD_CHANNEL_S))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
            self._channel = self._open()
        return self._channel

    def metadata(self) -> tuple[tuple[str, str], ...] | None:
        """Of one call: the token, if this client has one."""
        return None if self._token is None else self._token.metadata()

    async def close(self) -> None:
        for each in self._closing:
            each.cancel()
        await asyncio.gather(*self._closing, return_exceptions=True)
        await self._channel.close(None)


def credentials_of(pem: Pem) -> grpc.ChannelCredentials:
    """For a channel of a client with these certificates."""
    return grpc.ssl_channel_credentials(pem.authorities, pem.key, pem.certificate)


def add_port(server: grpc.aio.Server, address: str, certificates: Certificates | None) -> int:
    """Lets the server listen at the address; returns the port, 0 if it cannot. Raises `RuntimeError` as gRPC does. A unix socket is protected by the
    folder that it is in, and carries no TLS."""
    if certificates is None or address.startswith("unix:"):
        return server.add_insecure_port(address)
    given = certificates.current()

    def renewed() -> Any:
        nonlocal given
        pem = certificates.current()
        if pem is given:
            return None
        given = pem
        return _configuration(pem)

    return server.add_secure_port(address, grpc.dynamic_ssl_server_credentials(_configuration(given), renewed, True))


def _configuration(pem: Pem) -> Any:
    return grpc.ssl_server_certificate_configuration([(pem.key, pem.certificate)], pem.authorities)
