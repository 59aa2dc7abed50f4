"""Streams over dedicated connections, without gRPC. Clients send appends on them, and log servers send blocks to replicas, thousands of
messages per second.

A call over gRPC asks the peer for the port of its direct connections (`methods.DIRECT_PORT_CALLS`, routed to the worker that owns the partition like
any other call). The request is the stream's first message. If the peer accepts no direct connections or cannot be reached at that port, the stream
uses gRPC. So a network that forwards only the gRPC port is sufficient, but slower. Errors, half close, cancellation and back-pressure are those of
every stream (`core.ports.Stream`).
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Generic  # Any: messages of any method
from weakref import WeakSet

from google.protobuf.message import DecodeError

from waltz_log import errors
from waltz_log.background_tasks import end_tasks, start_task
from waltz_log.core.costs import Cost
from waltz_log.core.messages import Encoded, serialized
from waltz_log.core.ports import AnyMethod, Channel, Handler, Received, Request, Response, Sent, Service, Stream, StreamMethod
from waltz_log.errors import ConnectionLost, PermissionDenied, ProtocolViolation, QuotaExceeded, WaltzError
from waltz_log.loggers import get_logger
from waltz_log.security.callers import caller, calling
from waltz_log.security.certificates import Certificates
from waltz_log.security.identity import Identity, counted_principal, named_principal
from waltz_log.security.peers import expect_node
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.accepting import TlsAcceptor, listen
from waltz_log.transport.addresses import listen_error
from waltz_log.transport.admitted import AdmittedStream, Gate
from waltz_log.transport.cancelled import task_is_cancelled
from waltz_log.transport.connection_limits import DEFAULT_LIMITS, ConnectionLimits, PrincipalConnections
from waltz_log.transport.direct.codec import OPENING_BYTES_MAX, Wire
from waltz_log.transport.direct.received_bytes import ReceivedBytes
from waltz_log.transport.failed_calls import log_failure, log_violation
from waltz_log.transport.large_messages import decoder_of

__all__ = ["DirectConnections", "DirectListener", "DirectOrGrpcStream"]

log = get_logger(__name__)

ASK_TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 1.0
"""For name lookup, TCP and TLS together. Where a firewall drops what is sent to the port, the first append or block waits this long."""

CONNECTIONS_MAX = 256
"""The limit of one process: each needs a descriptor and some memory. The streams of further partitions share gRPC's connections."""

STRANGERS_MAX = 64
"""Connections besides these whose peers are not admitted yet, or were refused and are still informed. A peer needs milliseconds to be admitted. If
there are more, the oldest is closed."""

OFFER_S = 3.0
"""How long a port that was offered counts as a connection if its peer does not connect."""

AGAIN_S = 60.0
"""If a peer could not be reached directly, the channel does not try again for this long: waiting would delay each mount and each recovery."""


class _DirectStream(Generic[Sent, Received]):
    """Shared by both ends."""

    def __init__(self, wire: Wire, address: str, decode: Callable[[Any], Received], name: str) -> None:
        # `decode` of Any: protobuf accepts a bytearray too, but its type stubs do not.
        self._wire = wire
        self._address = address
        self._decode = decode
        self._name = name

    async def send(self, message: Sent | Encoded[Sent]) -> None:
        pieces = message.pieces if isinstance(message, Encoded) else (message.SerializeToString(),)
        if (size := sum(map(len, pieces))) > methods.MAX_FRAME_BYTES:
            self._wire.abort("a message was too large")
            raise ProtocolViolation(reason=f"message too large: bytes={size} limit={methods.MAX_FRAME_BYTES}")
        if not self._wire.over:
            await self._wire.send(*pieces)
        if self._wire.over:
            raise self._wire.error(self._address)

    async def receive(self) -> Received | None:
        data = await self._wire.next()
        if data is None:
            if self._wire.finished or self._wire.status == b"":
                return None
            raise self._wire.error(self._address)
        try:
            return self._decode(data)
        except DecodeError as error:
            raise ProtocolViolation(reason=f"not a message of {self._name}: {error}") from None

    async def finish(self) -> None:
        self._wire.finish()

    async def cancel(self) -> None:
        self._wire.abort()


class _ServedDirectStream(_DirectStream[Sent, Received]):
    async def finish(self) -> None:
        """Nothing to do: the stream finishes when its handler returns."""

    async def cancel(self) -> None:
        """Reports to the caller that the call was cancelled."""
        self._wire.end(errors.encode(ConnectionLost(address=self._address, reason="cancelled by the server")).encode())


# ---- the serving end -----------------------------------------------------------------------------------------------------------------------------


class _ServedWire(Wire):
    """A connection that counts from the moment it is accepted until it is gone."""

    def __init__(self, listener: DirectListener) -> None:
        super().__init__(listener.greeted, listener.handshake_s)
        self._listener = listener
        self.ssl_object: ssl.SSLObject | None = None
        self.peer = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.ssl_object = transport.get_extra_info("ssl_object")
        self.peer = ":".join(map(str, (transport.get_extra_info("peername") or ())[:2]))
        self._listener.connected(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._listener.disconnected(self)
        super().connection_lost(exc)


class DirectListener:
    """Accepts connections for the procedures of a service that are offered directly, if there are any. `address` is the node's. Connections are
    accepted at the same host: at `port`, at a free port if that is 0, or not at all below 0."""

    def __init__(self, address: str, port: int, service: Service, gate: Gate | None = None, limits: ConnectionLimits = DEFAULT_LIMITS) -> None:
        self._gate = gate or Gate(None)
        self._principals = PrincipalConnections(limits.per_principal)
        self.handshake_s = limits.handshake_s
        """For the handshake of TLS, and for greeting and opening together."""
        self._acceptor: TlsAcceptor | None = None
        self._host = address.rpartition(":")[0].strip("[]")
        self._wanted = -1 if address.startswith("unix:") else port
        self._server: asyncio.Server | None = None
        self._port = 0
        self._service = {
            each.method.name: (each.method, each.handler)
            for each in service
            if isinstance(each.method, StreamMethod) and each.method in methods.DIRECT_PORT_CALLS
        }
        self._tasks: set[asyncio.Task[None]] = set()
        self._offered: deque[tuple[float, str | None]] = deque()
        """Offers whose peer has not connected yet: when each expires, and the peer's principal."""
        self._strangers: dict[Wire, None] = {}
        """The oldest first."""
        self._wires: dict[Wire, str | None] = {}
        """Those whose peers are admitted, and whose principal's connections they count as."""
        self._received = ReceivedBytes(limits.received_per_principal)
        self._refusing = False

    async def open(self) -> None:
        """Raises `OSError` if it cannot listen."""
        if self._service and self._wanted >= 0:
            try:
                context = self._gate.server_context
                loop = asyncio.get_running_loop()
                if context is None:
                    self._server = await loop.create_server(partial(_ServedWire, self), self._host or None, self._wanted)
                    self._port = int(self._server.sockets[0].getsockname()[1])
                else:
                    self._acceptor = TlsAcceptor(listen(self._host, self._wanted), partial(_ServedWire, self), context, self.handshake_s)
                    self._port = self._acceptor.port
            except OSError:
                raise OSError(f"setting direct_port: {listen_error(f'{self._host}:{self._wanted}')}") from None

    @property
    def service(self) -> Service:
        """The gRPC calls that return the port."""
        return [methods.DIRECT_PORT_CALLS[method].served_by(self._offer_port) for method, _ in self._service.values()]

    def connected(self, wire: Wire) -> None:
        self._strangers[wire] = None
        if len(self._strangers) <= STRANGERS_MAX:
            self._refusing = False
            return
        oldest = next(iter(self._strangers))
        del self._strangers[oldest]
        oldest.abort("too many connections")
        if not self._refusing:
            self._refusing = True
            log.warning("too many direct connections without an admitted peer, the oldest ends", limit=STRANGERS_MAX)

    def _admitted(self, wire: Wire, identity: Identity | None) -> None:
        """A place for the wire. Raises `QuotaExceeded`."""
        principal, costs = counted_principal(identity), self._gate.costs
        if len(self._wires) >= CONNECTIONS_MAX or not costs.fits(principal, Cost.DIRECT_CONNECTIONS):
            raise costs.exceeded(named_principal(identity), Cost.DIRECT_CONNECTIONS)
        del self._strangers[wire]
        self._wires[wire] = principal
        costs.charge(principal, Cost.DIRECT_CONNECTIONS)
        wire.share = self._received.share(principal)

    def disconnected(self, wire: Wire) -> None:
        self._strangers.pop(wire, None)
        if wire in self._wires:
            self._gate.costs.release(self._wires.pop(wire), Cost.DIRECT_CONNECTIONS)

    async def _offer_port(self, _opening: pb.ReplicateRequest | pb.ClientMessage) -> pb.DirectResponse:
        now = asyncio.get_running_loop().time()
        while self._offered and self._offered[0][0] < now:
            self._offered.popleft()
        peer = caller()
        principal = named_principal(peer)
        of_principal = sum(each == principal for _, each in self._offered)
        is_full = len(self._wires) + len(self._offered) >= CONNECTIONS_MAX or self._principals.is_full(peer, of_principal)
        if not self._port or is_full or not self._gate.costs.fits(counted_principal(peer), Cost.DIRECT_CONNECTIONS, of_principal + 1):
            return pb.DirectResponse()
        self._offered.append((now + OFFER_S, principal))
        return pb.DirectResponse(port=self._port)

    def _use_offer(self, identity: Identity | None) -> None:
        """The oldest offer to this principal no longer counts."""
        for place, (_, principal) in enumerate(self._offered):
            if principal == named_principal(identity):
                del self._offered[place]
                return

    def greeted(self, wire: Wire, name: str) -> None:
        found = self._service.get(name)
        if found is None:
            wire.end(errors.encode(ProtocolViolation(reason=f"not offered directly: {name}")).encode())
            return
        ssl_object = wire.ssl_object if isinstance(wire, _ServedWire) else None
        with calling(None):  # the callbacks of several connections share a context
            try:
                identity = self._gate.identity_of_connection(ssl_object)
                self._gate.admit(found[0], identity)
                self._admitted(wire, identity)
            except (PermissionDenied, QuotaExceeded) as error:
                wire.end(errors.encode(error).encode())
                return
            task = start_task(self._serve(wire, identity, *found))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        wire.when_lost = task.cancel

    async def _serve(self, wire: Wire, identity: Identity | None, method: AnyMethod, handler: Handler) -> None:
        stream: Stream[Any, Any] = _ServedDirectStream(wire, "the caller", decoder_of(method), method.name)
        if not self._gate.is_open:
            stream = AdmittedStream(stream, partial(self._gate.admit, method, identity))

        async def work() -> None:
            with self._principals.call(identity, f"direct connection {id(wire)}"):
                self._use_offer(identity)
                await handler(stream)

        try:
            wire.end(await _status_of(method, work(), wire.peer if isinstance(wire, _ServedWire) else ""))
        finally:
            wire.when_lost = None

    async def close(self, grace_s: float = 0.0) -> None:
        """Accepts no more connections, and ends the streams that do not finish within the time."""
        if self._server is not None:
            self._server.close()
        if self._acceptor is not None:
            await self._acceptor.close()
        if self._tasks and grace_s:
            await asyncio.wait(self._tasks, timeout=grace_s)
        ending = list(self._tasks)
        await end_tasks(ending)
        for wire in (*self._wires, *self._strangers):
            wire.abort("the node is stopping")
        await asyncio.sleep(0)  # the sockets are closed in the loop's next round


async def _status_of(method: AnyMethod, work: Awaitable[None], peer: str) -> bytes:
    """Like `grpc.answered`, but for a stream that passes its errors to the caller unchanged."""
    try:
        await work
        return b""
    except WaltzError as error:
        if isinstance(error, ProtocolViolation):
            log_violation(method, peer, error)
        return errors.encode(error).encode()
    except asyncio.CancelledError:
        if task_is_cancelled():
            raise
        return errors.encode(ConnectionLost(address="peer", reason="the awaited result was cancelled")).encode()
    except Exception as error:
        return errors.encode(ConnectionLost(address="peer", reason=log_failure(method, peer, error))).encode()


# ---- the calling end -----------------------------------------------------------------------------------------------------------------------------


class DirectConnections:
    """The direct connections of one channel, to the host of its address. The peer identifies the caller by its certificate, so a client with a token
    has none. `peer`: who answers the channel's calls; the same node must be at the port that it offers."""

    def __init__(self, channel: Channel, certificates: Certificates | None = None, peer: Callable[[], Identity | None] = lambda: None) -> None:
        self._channel = channel
        self._certificates = certificates
        self._peer = peer
        self._has_token = certificates is not None and certificates.settings.token is not None
        self._wires: WeakSet[Wire] = WeakSet()
        self._closed = False
        self._not_before = 0.0

    async def open(self, method: StreamMethod[Request, Response], opening: Request | Encoded[Request]) -> Stream[Request, Response] | None:
        """None if the stream should use gRPC. Raises what the call for the port raises, except `ProtocolViolation`."""
        loop = asyncio.get_running_loop()
        port_call, data = methods.DIRECT_PORT_CALLS[method], serialized(opening)
        if self._has_token or loop.time() < self._not_before or len(data) > OPENING_BYTES_MAX:
            return None
        request = port_call.request.FromString(data)
        if not methods.may_be_direct(request):
            return None
        try:
            port = (await self._channel.call(port_call, request, timeout_s=ASK_TIMEOUT_S)).port
        except ProtocolViolation:
            return None  # a peer of an older version has no such call; if something else is wrong, the stream over gRPC finds it too
        if port <= 0:
            return None
        host = self._channel.address.rpartition(":")[0].strip("[]")
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                context = None if self._certificates is None else self._certificates.client_context()
                transport, wire = await loop.create_connection(Wire, host, port, ssl=context)
        except (OSError, TimeoutError) as error:
            self._not_before = loop.time() + AGAIN_S
            log.warning("peer cannot be reached directly", address=self._channel.address, port=port, error=str(error) or "no answer")
            return None
        try:
            self._expect_peer(transport.get_extra_info("ssl_object"))
        except ConnectionLost:
            wire.abort("the peer is refused")
            self._not_before = loop.time() + AGAIN_S
            return None
        self._wires.add(wire)
        if self._closed:
            wire.abort("the channel was closed here")
        wire.greet(method.name)
        return _DirectStream(wire, self._channel.address, method.response.FromString, method.name)

    def _expect_peer(self, ssl_object: ssl.SSLObject | None) -> None:
        """Raises `ConnectionLost` if another process than the channel's peer answers at the port."""
        if self._certificates is not None:
            peer = self._peer()
            expect_node(self._channel.address, self._certificates.identify_connection(ssl_object), named_principal(peer) or "")

    def close(self) -> None:
        self._closed = True
        for wire in self._wires:
            wire.abort("the channel was closed here")


class DirectOrGrpcStream(Generic[Sent, Received]):
    """Decides at the first `send`, which must return before anything else is called. A stream that begins with another call uses gRPC: `fallback`."""

    def __init__(self, method: StreamMethod[Sent, Received], connections: DirectConnections, fallback: Callable[[], Stream[Sent, Received]]) -> None:
        self._method = method
        self._connections = connections
        self._fallback = fallback
        self._stream: Stream[Sent, Received] | None = None

    def _decided(self) -> Stream[Sent, Received]:
        if self._stream is None:
            self._stream = self._fallback()
        return self._stream

    async def send(self, message: Sent | Encoded[Sent]) -> None:
        if self._stream is None:
            self._stream = await self._connections.open(self._method, message) or self._fallback()
        await self._stream.send(message)

    async def receive(self) -> Received | None:
        return await self._decided().receive()

    async def finish(self) -> None:
        await self._decided().finish()

    async def cancel(self) -> None:
        if self._stream is not None:
            await self._stream.cancel()
