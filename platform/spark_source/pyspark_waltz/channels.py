"""The channels of an executor to storage nodes, kept between the tasks of a reused worker.

With certificates a channel leads to the storage node that the cluster announces for the address, and to no other process (`transport.verified_peer`).
"""

from __future__ import annotations

import os

import grpc

from waltz_log.core.node_address import announced_name
from waltz_log.security.certificates import Certificates, Pem
from waltz_log.security.settings import chosen_tls
from waltz_log.transport.grpc_channels import CHANNEL_OPTIONS
from waltz_log.transport.grpc_target import target_of
from waltz_log.transport.inherited import expect_usable
from waltz_log.transport.verified_peer import VERIFY_TIMEOUT_S, verify_peer_blocking

__all__ = ["channel_to", "forget_channel"]

LOOKAHEAD_BYTES = 8 * 1024 * 1024
"""How much gRPC may receive in advance: the next batch arrives while Spark processes the last one."""

OPTIONS = [*CHANNEL_OPTIONS, ("grpc.http2.lookahead_bytes", LOOKAHEAD_BYTES)]

_channels: dict[tuple[int, str, str | None], tuple[Pem | None, grpc.Channel]] = {}
"""By process, because a channel does not survive a fork, by address, and by the name that the cluster announces for it."""

_certificates: dict[int, Certificates | None] = {}


def channel_to(address: str, timeout_s: float = VERIFY_TIMEOUT_S) -> grpc.Channel:
    """With the certificates that the executor's environment names; in plain text without them. Raises `InvalidSetting` for unusable files,
    `InvalidRequest` in a child of a process that forked while it used gRPC, and `ConnectionLost` for a peer that is not the node at this address, or
    does not show within the time that it is."""
    certificates = _current_certificates()
    pem = None if certificates is None else certificates.current()
    found = _channels.get(_key(address))
    if found is not None and found[0] is pem:
        return found[1]
    expect_usable()
    if certificates is None:
        channel = grpc.insecure_channel(target_of(address), OPTIONS)
    else:
        peer = verify_peer_blocking(address, certificates, min(timeout_s, VERIFY_TIMEOUT_S))
        pem, channel = peer.pem, grpc.secure_channel(peer.target, peer.credentials(), [*OPTIONS, *peer.options()])
    _channels[_key(address)] = (pem, channel)
    return channel


def forget_channel(address: str) -> None:
    """Call it when a call on the channel broke: the node may come back with another certificate, or another process at its address."""
    if _current_certificates() is not None:
        _channels.pop(_key(address), None)


def _key(address: str) -> tuple[int, str, str | None]:
    return os.getpid(), address, announced_name(address)


def _current_certificates() -> Certificates | None:
    if os.getpid() not in _certificates:
        tls = chosen_tls(None)
        _certificates[os.getpid()] = None if tls is None else Certificates(tls)
    return _certificates[os.getpid()]
