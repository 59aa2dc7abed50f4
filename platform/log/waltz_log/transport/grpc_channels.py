"""gRPC's channels and ports with the options and the certificates that all connections of the platform have.

A channel keeps the certificate that it was made with, so `GrpcChannels` makes a new one when the files have changed. Calls in progress finish on
the channel on which they started. Nothing is sent to a peer that was not verified, tokens neither.

gRPC negotiates TLS 1.3 between two ends of the platform. Its Python interface cannot refuse an older version in the handshake, so `admitted` refuses
the calls of such a connection.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final  # Any: gRPC's options and credentials

import grpc
import grpc.aio

from waltz_log.background_tasks import end_tasks, start_task
from waltz_log.errors import ConnectionLost
from waltz_log.security.certificates import Certificates, Pem
from waltz_log.security.identity import Identity
from waltz_log.security.token_file import TokenFile
from waltz_log.transport.grpc_target import target_of
from waltz_log.transport.inherited import expect_usable
from waltz_log.transport.methods import MAX_FRAME_BYTES
from waltz_log.transport.verified_peer import VerifiedPeer, verify_peer

__all__ = ["CHANNEL_OPTIONS", "GrpcChannels", "add_port"]

OLD_CHANNEL_S = 3600.0
"""How long calls that started with an older certificate may continue. Streams end sooner: mounts and replication start again with each session."""

ATTEMPTS: Final = 3
"""To verify a peer and connect to it. It may have read a new certificate in between, which happens rarely."""

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
    # Records are compressed by applications, if at all. A compressed message would need its memory before its size is known: only the identity
    # (bit 0) is accepted, and nothing is decompressed.
    ("grpc.compression_enabled_algorithms_bitset", 1),
    ("grpc.per_message_compression", 0),
    ("grpc.per_message_decompression", 0),
]


class GrpcChannels:
    """The channel to one address, replaced when the certificates change. Without certificates connections are plain text.

    With certificates, a channel exists for a verified peer alone (`verified_peer`). It is verified again when the connection has ended, since another
    process may answer now, or the same one with a new certificate.
    """

    def __init__(self, address: str, certificates: Certificates | None) -> None:
        """Raises `InvalidRequest` in a process where gRPC cannot be used."""
        expect_usable()
        self._address = address
        self._certificates = certificates
        token = None if certificates is None else certificates.settings.token
        self._token = None if token is None else TokenFile(token)
        self._peer: VerifiedPeer | None = None
        self._channel: grpc.aio.Channel | None = None
        if certificates is None:
            self._channel = grpc.aio.insecure_channel(target_of(address), options=CHANNEL_OPTIONS)
        self._verifying = asyncio.Lock()
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def peer(self) -> Identity | None:
        """The peer at the address, as the last verification found it; None before it, and without certificates."""
        return None if self._peer is None else self._peer.identity

    def ready(self) -> grpc.aio.Channel | None:
        """The channel for one call. None: `verified` must be awaited first."""
        if self._certificates is None or self._channel is None or self._closed:
            return self._channel if self._certificates is None else None
        if self._peer is None or self._peer.pem is not self._certificates.current():
            return None
        return self._channel if self._channel.get_state() is grpc.ChannelConnectivity.READY else None

    async def verified(self) -> grpc.aio.Channel:
        """The channel for one call, connected to a peer that was verified. Raises `ConnectionLost`."""
        async with self._verifying:
            for _ in range(ATTEMPTS):
                if (channel := self.ready()) is not None:
                    return channel
                if self._closed or self._certificates is None:
                    break
                peer = await verify_peer(self._address, self._certificates)
                self._retire()
                if self._closed:
                    break
                self._peer = peer
                self._channel = grpc.aio.secure_channel(peer.target, peer.credentials(), options=[*CHANNEL_OPTIONS, *peer.options()])
                await _connect(self._channel)
        reason = "the channel was closed here" if self._closed else "unavailable: another process answered than the one that was verified"
        raise ConnectionLost(address=self._address, reason=reason)

    def _retire(self) -> None:
        """Calls in progress continue on the channel."""
        if self._channel is not None:
            closing = start_task(self._channel.close(OLD_CHANNEL_S))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
            self._channel = None

    def metadata(self) -> tuple[tuple[str, str], ...] | None:
        """The metadata of one call on a channel of this object: the token, if this client has one."""
        return None if self._token is None else self._token.metadata()

    async def close(self) -> None:
        self._closed = True
        await end_tasks(self._closing)
        if self._channel is not None:
            await self._channel.close(None)


async def _connect(channel: grpc.aio.Channel) -> None:
    """Returns when the channel is connected, or its first attempt has failed."""
    state = channel.get_state(try_to_connect=True)
    while state in (grpc.ChannelConnectivity.IDLE, grpc.ChannelConnectivity.CONNECTING):
        await channel.wait_for_state_change(state)
        state = channel.get_state()


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
