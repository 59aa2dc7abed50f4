"""The network port over gRPC (asyncio). Frame limits, keepalive, and the passage of typed errors through an rpc status.

A message that is garbage, truncated or larger than `MAX_FRAME_BYTES` ends its stream with an error; the process and its other streams live on.

`Any` stands for gRPC's own objects (call, context), which its types describe only in part, and for messages that pass through whatever they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any  # see the docstring

import grpc
import grpc.aio

from waltz_log.core.messages import serialized
from waltz_log.core.node_address import NodeAddress
from waltz_log.core.ports import (
    AnyMethod,
    CallMethod,
    Channel,
    Handler,
    Listener,
    Network,
    ReadMethod,
    Receiver,
    Request,
    Response,
    Service,
    Stream,
    StreamMethod,
)
from waltz_log.errors import ConnectionLost
from waltz_log.loggers import get_logger
from waltz_log.security.certificates import Certificates
from waltz_log.security.settings import TlsSettings, chosen_tls
from waltz_log.transport.addresses import PORT_MAX, listen_error
from waltz_log.transport.admitted import AdmittedStream, Gate
from waltz_log.transport.call_streams import CallStream, VerifyingStream, error_of
from waltz_log.transport.cancelled import task_is_cancelled
from waltz_log.transport.connection_limits import DEFAULT_LIMITS, ConnectionLimits
from waltz_log.transport.direct.connection import DirectConnections, DirectListener, DirectOrGrpcStream
from waltz_log.transport.grpc_channels import CHANNEL_OPTIONS, GrpcChannels, add_port
from waltz_log.transport.inherited import expect_usable
from waltz_log.transport.methods import DIRECT_PORT_CALLS
from waltz_log.transport.served_calls import Arrivals, DecodedStream, GrpcServices, answer, answered, decoded, grouped, register

__all__ = [
    "CHANNEL_OPTIONS",
    "Beside",
    "GrpcNetwork",
    "server_options",
]

log = get_logger(__name__)


def server_options(limits: ConnectionLimits, *, share_port: bool = False) -> list[tuple[str, Any]]:
    """The options of a gRPC server."""
    options = [(name, value) for name, value in CHANNEL_OPTIONS if name != "grpc.so_reuseport"]
    # Without the probe, the window of a call that is not read does not grow (decision 198): gRPC receives 64 KiB of it.
    return [*options, ("grpc.so_reuseport", int(share_port)), ("grpc.http2.bdp_probe", 0), *limits.options()]


class _GrpcChannel:
    def __init__(self, address: str, certificates: Certificates | None) -> None:
        self._address = address
        self._current = GrpcChannels(address, certificates)
        self._direct = DirectConnections(self, certificates, lambda: self._current.peer)

    @property
    def address(self) -> str:
        return self._address

    async def call(self, method: CallMethod[Request, Response], request: Request, *, timeout_s: float) -> Response:
        channel = self._current.ready()
        if channel is None:
            channel, timeout_s = await self._verified(timeout_s)
        stub = channel.unary_unary(method.name, request_serializer=method.request.SerializeToString, response_deserializer=method.response.FromString)
        try:
            answer: Response = await self._started(stub, request, timeout=timeout_s)
            return answer
        except grpc.aio.AioRpcError as error:
            raise error_of(self._address, error.code(), error.details()) from None
        except asyncio.CancelledError:
            if task_is_cancelled():
                raise
            raise ConnectionLost(address=self._address, reason="cancelled") from None

    async def _verified(self, timeout_s: float) -> tuple[grpc.aio.Channel, float]:
        """The channel, and what is left of the time."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            async with asyncio.timeout(timeout_s):
                channel = await self._current.verified()
        except TimeoutError:
            raise ConnectionLost(address=self._address, reason=f"unavailable: no TLS handshake within {timeout_s:g} s") from None
        return channel, max(0.0, timeout_s - (loop.time() - began_s))

    def read(self, method: ReadMethod[Request, Response], request: Request) -> Receiver[Response]:
        def begin(channel: grpc.aio.Channel) -> CallStream:
            reader = channel.unary_stream(
                method.name, request_serializer=method.request.SerializeToString, response_deserializer=method.response.FromString
            )
            return CallStream(self._address, self._started(reader, request), half_closed=True)

        return self._begun(begin)

    def open(self, method: StreamMethod[Request, Response]) -> Stream[Request, Response]:
        if method in DIRECT_PORT_CALLS:
            return DirectOrGrpcStream(method, self._direct, lambda: self._stream(method))
        return self._stream(method)

    def _stream(self, method: StreamMethod[Request, Response]) -> Stream[Request, Response]:
        def begin(channel: grpc.aio.Channel) -> CallStream:
            stub = channel.stream_stream(method.name, request_serializer=serialized, response_deserializer=method.response.FromString)
            return CallStream(self._address, self._started(stub, None), half_closed=False)

        return self._begun(begin)

    def _begun(self, begin: Callable[[grpc.aio.Channel], CallStream]) -> CallStream | VerifyingStream:
        channel = self._current.ready()
        return VerifyingStream(self._current, self._address, begin) if channel is None else begin(channel)

    def _started(self, stub: Callable[..., Any], request: Any, **options: Any) -> Any:
        try:
            return stub(request, metadata=self._current.metadata(), **options)
        except grpc.aio.UsageError as error:
            raise ConnectionLost(address=self._address, reason=f"the channel was closed here: {error}") from None

    async def close(self) -> None:
        self._direct.close()
        await self._current.close()


class _GrpcListener:
    """`address`: with the name that this process has by its certificate, which it announces in the coordinator."""

    def __init__(self, server: grpc.aio.Server, direct: DirectListener, address: NodeAddress) -> None:
        self._server = server
        self._direct = direct
        self._address = address

    @property
    def address(self) -> str:
        return self._address

    async def close(self, grace_s: float = 0.0) -> None:
        await asyncio.gather(self._server.stop(grace_s), self._direct.close(grace_s))


def _served(gate: Gate, method: AnyMethod, handler: Handler, arrivals: Arrivals) -> Callable[[Any, Any], Awaitable[None]]:
    """The handler as gRPC calls it, for peers that the gate admits."""

    async def admitted(context: Any) -> None:
        async with gate.call(method, context) as identity:
            admit = partial(gate.admit, method, identity)

            async def received() -> Any | None:
                data = await arrivals.receive(method, context)
                return None if data is None else decoded(method, data)

            if method.kind == "stream":
                served = DecodedStream(context, method, received)
                await served.begin()
                await handler(served if gate.is_open else AdmittedStream(served, admit))
                return
            request = await received()
            if request is not None:
                admit(request)
            await answer(method, handler, request, context, gate.unread)

    async def run(_requests: Any, context: Any) -> None:
        await answered(method, admitted(context), context)

    return run


Beside = Callable[[Sequence[str]], GrpcServices]


class GrpcNetwork:
    """gRPC on TCP, and the connections of `direct` at `direct_port`; 0: at a free port; -1: none. `limits`: of the connections that a server accepts.
    `beside`: makes what a server offers besides the services that it is given, from their names. `tls`: mutual
    TLS; None: what the environment says (`security.settings`), or plain text, where every peer may do everything."""

    def __init__(
        self,
        direct_port: int = 0,
        *,
        limits: ConnectionLimits = DEFAULT_LIMITS,
        beside: Beside | None = None,
        tls: TlsSettings | Certificates | None = None,
    ) -> None:
        """Raises `InvalidRequest` in a child of a process that forked while it used gRPC."""
        expect_usable()
        self._beside = beside
        self._direct_port = direct_port
        self._limits = limits
        if not isinstance(tls, Certificates):
            chosen = chosen_tls(tls)
            tls = None if chosen is None else Certificates(chosen)
        self._certificates = tls
        self._gate = Gate(self._certificates, limits)

    @property
    def principal(self) -> str:
        """The name of this process by its certificate; empty without TLS."""
        return "" if self._certificates is None else self._certificates.principal or ""

    def connect(self, address: str) -> Channel:
        """With TLS nothing is sent before the peer proved to be a node, and the one that the cluster announces for the address, if the address comes
        from the cluster (`core.node_address`)."""
        return _GrpcChannel(address, self._certificates)

    def _offer(self, server: grpc.aio.Server, services: GrpcServices) -> None:
        register(server, services)
        if self._beside is not None:
            register(server, self._beside(tuple(services)))

    async def serve(self, address: str, service: Service) -> Listener:
        """Raises `OSError` if the address cannot be bound."""
        expect_usable()
        server = grpc.aio.server(options=server_options(self._limits))
        direct = DirectListener(address, self._direct_port, service, self._gate, self._limits)
        arrivals = Arrivals()
        services = grouped((*service, *direct.service), lambda method, handler: _served(self._gate, method, handler, arrivals))
        self._offer(server, services)
        host, _, wanted = address.rpartition(":")
        if wanted.isdecimal() and int(wanted) > PORT_MAX:  # gRPC then uses another one, without an error
            raise listen_error(address)
        try:
            port = add_port(server, address, self._certificates)
        except RuntimeError:
            raise listen_error(address) from None
        if port == 0:
            raise listen_error(address)
        await direct.open()
        await server.start()
        return _GrpcListener(server, direct, NodeAddress(f"{host}:{port}", self.principal))


_network: Network = GrpcNetwork()  # holds the class to the port when types are checked
