"""What a node grants to connections: how many, how many streams on each, and how long one may be in its handshake or idle.

gRPC counts and times its connections itself, before a handler runs. It does not know principals, so `PrincipalConnections` counts theirs: one
connection for each peer that has a call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple  # Any: gRPC's options

from waltz_log.core.costs import Cost
from waltz_log.errors import QuotaExceeded
from waltz_log.security.identity import Identity, counted_principal

__all__ = ["DEFAULT_LIMITS", "ConnectionLimits", "PrincipalConnections"]

RETRY_S: Final = 1.0
"""When a principal with too many connections may try again: another connection must end first, at an unknown time."""

IDLE_MS_MAX: Final = 2**31 - 1


class ConnectionLimits(NamedTuple):
    """As the settings of nodes describe them. `per_principal` 0: no limit."""

    streams: int = 4608
    """A client that mounts every partition of the largest log at one server (4,096), and 512 calls beside them. gRPC's own limit is none."""
    connections: int = 2048
    per_principal: int = 0
    handshake_s: float = 10.0
    idle_s: float = 300.0
    streams_per_principal: int = 16_384
    direct_per_principal: int = 64
    received_per_principal: int = 128 * 1024 * 1024
    unread_per_principal: int = 64 * 1024 * 1024

    @property
    def costs(self) -> dict[Cost, int]:
        """What one principal may hold at a port, beside its connections."""
        return {
            Cost.STREAMS: self.streams_per_principal,
            Cost.DIRECT_CONNECTIONS: self.direct_per_principal,
        }

    def options(self) -> list[tuple[str, Any]]:
        """The options of a gRPC server. A client that knows the limit of streams delays a new stream above it until another one ends. The transport
        refuses a stream that a client begins before it knows the limit, or in spite of it; the caller gets `ConnectionLost`. A connection above the
        limit of connections is closed when it is accepted. The limit holds for each port."""
        return [
            ("grpc.max_concurrent_streams", self.streams),
            ("grpc.max_allowed_incoming_connections", self.connections),
            ("grpc.server_handshake_timeout_ms", round(1000 * self.handshake_s)),
            ("grpc.max_connection_idle_ms", min(round(1000 * self.idle_s), IDLE_MS_MAX)),
        ]


DEFAULT_LIMITS: Final = ConnectionLimits()


class PrincipalConnections:
    """The principal connections of one port: from which connections each principal has calls now. `limit` 0: nothing is counted. Nodes are never
    refused."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._calls: dict[str, Counter[str]] = {}

    def is_full(self, identity: Identity | None, expected: int) -> bool:
        """Whether a call from one more connection would be refused, if as many as `expected` come before it."""
        principal = self._limited(identity)
        return principal is not None and len(self._calls.get(principal, ())) + expected >= self._limit

    def _limited(self, identity: Identity | None) -> str | None:
        """The principal whose connections count; None if those of this peer do not."""
        return counted_principal(identity) if self._limit else None

    @contextmanager
    def call(self, identity: Identity | None, peer: str) -> Iterator[None]:
        """For the time of one call from the connection `peer`. Raises `QuotaExceeded`."""
        principal = self._limited(identity)
        if principal is None:
            yield
            return
        peers = self._calls.setdefault(principal, Counter())
        if peer not in peers and len(peers) >= self._limit:
            raise QuotaExceeded(partition=-1, quota="connections_per_principal", principal=principal, topic="", retry_after_s=RETRY_S)
        peers[peer] += 1
        try:
            yield
        finally:
            peers[peer] -= 1
            if not peers[peer]:
                del peers[peer]
            if not peers:
                self._calls.pop(principal, None)
