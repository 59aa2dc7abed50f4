"""Makes sure that the peer of a gRPC channel is the node it should be, before anything is sent to it.

gRPC for Python compares the name of the host with the peer's certificate, and shows a client nothing else of it. So a handshake of this process comes
first: it shows the peer's certificate, and proves that the peer has its key. If the peer is the expected node (`security.peers`), gRPC's channel
connects to the same IP address and trusts this one certificate, in the place of the authorities. A process without the certificate's key, such as a
relay, cannot complete the channel's handshake, whatever it showed before (decision 181).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from dataclasses import dataclass
from typing import Any, Final  # Any: gRPC's options

import grpc

from waltz_log.core.node_address import announced_name
from waltz_log.errors import ConnectionLost
from waltz_log.security.certificates import Certificates, Pem
from waltz_log.security.identity import Identity
from waltz_log.security.peers import expect_node, handshake_refusal, refused
from waltz_log.transport.given_name import given_name

__all__ = ["VERIFY_TIMEOUT_S", "VerifiedPeer", "host_and_port", "verify_peer", "verify_peer_blocking"]

VERIFY_TIMEOUT_S: Final = 5.0
"""For name lookup, TCP and TLS together, if the caller waits that long."""


@dataclass(frozen=True, slots=True)
class VerifiedPeer:
    """`pem`: the files of this process when it was verified. `certificate`: the peer's, PEM. `target`: the IP address and port, as gRPC writes them;
    `host`: the name that the certificate has for them."""

    pem: Pem
    identity: Identity
    certificate: bytes
    target: str
    host: str

    def credentials(self) -> grpc.ChannelCredentials:
        """For a channel that only this peer can serve."""
        return grpc.ssl_channel_credentials(self.certificate, self.pem.key, self.pem.certificate)

    def options(self) -> list[tuple[str, Any]]:
        """For the same channel: the target is an IP address, and the certificate may name a host."""
        return [("grpc.ssl_target_name_override", self.host)]


def host_and_port(address: str) -> tuple[str, int]:
    """The host and port of `host:port`, the host without brackets. Raises `ConnectionLost`."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ConnectionLost(address=address, reason="not an address, host:port is one")
    return host.strip("[]"), int(port)


async def verify_peer(address: str, certificates: Certificates) -> VerifiedPeer:
    """Raises `ConnectionLost` if the peer cannot be reached, or is not the node that it should be."""
    host, port = host_and_port(address)
    pem, context = certificates.current(), certificates.peer_context()
    try:
        async with asyncio.timeout(VERIFY_TIMEOUT_S):
            transport, _ = await asyncio.get_running_loop().create_connection(
                asyncio.Protocol, host, port, ssl=context, server_hostname=given_name(address) or host
            )
    except ssl.SSLError as error:
        raise refused(address, handshake_refusal(error)) from None
    except TimeoutError:
        raise ConnectionLost(address=address, reason=f"unavailable: no TLS handshake within {VERIFY_TIMEOUT_S:g} s") from None
    except OSError as error:
        raise ConnectionLost(address=address, reason=f"unavailable: {error}") from None
    try:
        return _verified(address, certificates, pem, transport.get_extra_info("ssl_object"), transport.get_extra_info("peername"))
    finally:
        transport.abort()


def verify_peer_blocking(address: str, certificates: Certificates, timeout_s: float = VERIFY_TIMEOUT_S) -> VerifiedPeer:
    """`verify_peer` for a thread without an event loop."""
    host, port = host_and_port(address)
    pem, context = certificates.current(), certificates.peer_context()
    try:
        with (
            socket.create_connection((host, port), timeout_s) as plain,
            context.wrap_socket(plain, server_hostname=given_name(address) or host) as connection,
        ):
            return _verified(address, certificates, pem, connection, connection.getpeername())
    except ssl.SSLError as error:
        raise refused(address, handshake_refusal(error)) from None
    except OSError as error:
        raise ConnectionLost(address=address, reason=f"unavailable: {error}") from None


def _verified(address: str, certificates: Certificates, pem: Pem, connection: ssl.SSLObject | ssl.SSLSocket, reached: Any) -> VerifiedPeer:
    identity = expect_node(address, certificates.identify_connection(connection), announced_name(address))
    certificate = connection.getpeercert(binary_form=True)
    if certificate is None or connection.selected_alpn_protocol() != "h2":
        raise refused(address, f"{identity.principal} does not serve gRPC there")
    ip, port = reached[:2]
    target = f"ipv6:[{ip.replace('%', '%25')}]:{port}" if ":" in ip else f"ipv4:{ip}:{port}"
    return VerifiedPeer(pem, identity, ssl.DER_cert_to_PEM_cert(certificate).encode(), target, given_name(address) or host_and_port(address)[0])
