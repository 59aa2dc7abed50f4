"""Admits peers: reads who they are from their connection, and refuses what their roles do not permit.

Without TLS the gate is open, and every peer may do everything. With TLS each request is attributed to the name in the peer's certificate before a
handler sees it. A worker that gets a call over the unix socket of its siblings trusts it, because the sibling that received it has admitted it and
only this user may open the socket.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final  # Any: messages of any method, and gRPC's context

from waltz_log.core.costs import Cost, Costs
from waltz_log.core.ports import AnyMethod, Stream
from waltz_log.errors import PermissionDenied, ProtocolViolation
from waltz_log.security.audit_log import denied
from waltz_log.security.callers import SIBLING, set_caller
from waltz_log.security.certificates import Certificates
from waltz_log.security.identity import Identity, Role, counted_principal
from waltz_log.security.permits import admit, attribute
from waltz_log.security.tokens import Credential, Tokens
from waltz_log.transport.connection_limits import DEFAULT_LIMITS, ConnectionLimits, PrincipalConnections
from waltz_log.transport.token_calls import TokenCalls
from waltz_log.transport.unread import Unread

__all__ = ["AUTHORIZATION", "CALLER", "AdmittedStream", "Gate", "caller_metadata", "names_of"]

URIS: Final = "peer_uri"
DNS_NAMES: Final = "peer_dns"
"""What gRPC calls the names in a peer's certificate, by their kind."""

CERTIFICATE: Final = "x509_pem_cert"

TLS_VERSION: Final = "ssl_tls_version"

AUTHORIZATION: Final = "authorization"
BEARER: Final = "bearer"
"""The scheme, in any case (RFC 9110, 11.1)."""

CALLER: Final = "waltz-caller"
"""Metadata of a call from a sibling: the principal and the roles of the peer that it admitted. Believed on the siblings' socket alone."""


class Gate:
    """The gate of one network. `certificates` None: open. `limits`: of what one principal may hold."""

    def __init__(self, certificates: Certificates | None, limits: ConnectionLimits = DEFAULT_LIMITS) -> None:
        self._certificates = certificates
        self._connections = PrincipalConnections(limits.per_principal)
        self.costs = Costs(limits.costs)
        self.unread = Unread(limits.unread_per_principal)
        """Answers that callers do not read."""
        tokens = None if certificates is None else certificates.settings.tokens
        self._tokens = None if tokens is None else Tokens(tokens)
        self._token_calls = None if self._tokens is None else TokenCalls(self._tokens)

    @property
    def is_open(self) -> bool:
        return self._certificates is None

    @property
    def server_context(self) -> ssl.SSLContext | None:
        """For direct connections."""
        return None if self._certificates is None else self._certificates.server_context()

    def identity(self, context: Any) -> Identity | None:
        """The peer of a call of gRPC; None without TLS, and for a certificate without a name. Raises `ProtocolViolation` for a version below TLS 1.3:
        only processes that `waltz` starts refuse it in the handshake (`processes.grpc_environment`)."""
        return self._authenticated(context)[0]

    def _authenticated(self, context: Any) -> tuple[Identity | None, Credential | None]:
        """The peer, and the token that says who it is, if one does."""
        if self._certificates is None:
            return None, None
        found = context.auth_context()
        version = b"".join(found.get(TLS_VERSION, ())).decode()
        if version != "TLSv1.3":
            raise ProtocolViolation(reason=f"TLS 1.3 is required, the connection has {version or 'no TLS'}")
        if self._tokens is not None:
            try:
                token = _bearer_of(context)
                credential = None if token is None else self._tokens.identify(token, b"".join(found.get(CERTIFICATE, ())))
            except PermissionDenied as error:
                denied(error)
                raise
            if credential is not None:
                return credential.identity, credential
        return self._certificates.identify(*names_of(context)), None

    def identity_of_connection(self, ssl_object: ssl.SSLObject | None) -> Identity | None:
        """The peer of a direct connection."""
        return None if self._certificates is None else self._certificates.identify_connection(ssl_object)

    @asynccontextmanager
    async def call(self, method: AnyMethod, context: Any, request: Any = None) -> AsyncIterator[Identity | None]:
        """For the time of one call of gRPC: its peer. Raises what `identity` and `admit` do, `QuotaExceeded` if the peer's principal has too many
        calls, or calls on too many connections, and `Unavailable` when the token of the call ends."""
        identity, credential = self._authenticated(context)
        self.admit(method, identity, request)
        with self._connections.call(identity, str(context.peer())), self.costs.holding(counted_principal(identity), Cost.STREAMS):
            if credential is None or self._token_calls is None:
                yield identity
                return
            async with self._token_calls.limited(credential):
                yield identity

    def admit(self, method: AnyMethod, identity: Identity | None, request: Any = None) -> bool:
        """Raises `PermissionDenied`. Makes the peer the caller of this task (`security.callers`), and writes its name into the request; returns
        whether that changed it."""
        if self._certificates is None:
            return False
        try:
            admit(identity, method.name, request)
        except PermissionDenied as error:
            denied(error)
            raise
        assert identity is not None
        set_caller(identity)
        return request is not None and attribute(request, identity)

    def admit_sibling(self, context: Any) -> None:
        """For a call that a sibling passed on, or made itself: whom it admitted is the caller."""
        if self._certificates is not None:
            text = next((value for name, value in context.invocation_metadata() or () if name == CALLER), None)
            set_caller(SIBLING if text is None else _identity_of(text))


def names_of(context: Any) -> tuple[list[str], list[str]]:
    """The URIs and the DNS names in the certificate of a call's peer; none without TLS."""
    found = context.auth_context()
    uris, dns_names = ([bytes(each).decode("utf-8", "replace") for each in found.get(kind, ())] for kind in (URIS, DNS_NAMES))
    return uris, dns_names


def _bearer_of(context: Any) -> str | None:
    """The token that the caller sent; None if it sent none. Raises `PermissionDenied` for anything else under that name: a caller that means to act
    as another principal must not act as that of its certificate."""
    found = [str(value) for name, value in context.invocation_metadata() or () if name == AUTHORIZATION]
    if not found:
        return None
    scheme, _, token = found[0].strip().partition(" ")
    if len(found) > 1 or scheme.lower() != BEARER or not token.strip():
        raise PermissionDenied(principal=None, operation="authenticate", reason="the metadata authorization must be one bearer token")
    return token.strip()


def caller_metadata(identity: Identity | None) -> tuple[tuple[str, str], ...]:
    """The caller metadata of a call that is passed on to a sibling: whose it is."""
    return () if identity is None else ((CALLER, json.dumps([identity.principal, sorted(identity.roles)])),)


def _identity_of(text: str) -> Identity:
    principal, roles = json.loads(text)
    return Identity(principal, frozenset(map(Role, roles)))


class AdmittedStream:
    """The serving end of a stream whose every message passes the gate."""

    def __init__(self, stream: Stream[Any, Any], admitted: Callable[[Any], bool]) -> None:
        self._stream = stream
        self._admitted = admitted

    async def receive(self) -> Any | None:
        message = await self._stream.receive()
        if message is not None:
            self._admitted(message)
        return message

    async def send(self, message: Any) -> None:
        await self._stream.send(message)

    async def finish(self) -> None:
        await self._stream.finish()

    async def cancel(self) -> None:
        await self._stream.cancel()
