"""The serving end of a call of gRPC: what a peer must show before its request is received, and how large a request may be.

All procedures are served as streams of bytes: on the wire a call with one request and one answer is a stream of one message each way. gRPC would
otherwise receive and decode the request of a call before any code here runs. So the order is: the gate, then the request, its size, its decoding.

`Any` stands for gRPC's own objects (context), which its types describe only in part, and for messages that pass through whatever they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar  # Any: see the docstring

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from waltz_log import errors
from waltz_log.core.ports import AnyMethod, Handler, Served
from waltz_log.errors import ConnectionLost, ProtocolViolation, WaltzError
from waltz_log.security.callers import caller
from waltz_log.security.identity import counted_principal
from waltz_log.transport.call_streams import EOF
from waltz_log.transport.cancelled import task_is_cancelled
from waltz_log.transport.failed_calls import log_failure, log_violation
from waltz_log.transport.large_messages import decoder_of
from waltz_log.transport.request_limits import answer_bytes, request_bytes_max
from waltz_log.transport.unread import Unread

__all__ = [
    "ARRIVALS_MAX",
    "OPENINGS_MAX",
    "Arrivals",
    "Arriving",
    "DecodedStream",
    "GrpcServices",
    "ServedStream",
    "answer",
    "answered",
    "decoded",
    "encoded",
    "grouped",
    "register",
]

ARRIVALS_MAX: Final = 4
"""Requests of one principal that arrive at the same time at one process; further calls wait. gRPC receives up to 16 MiB of each before their size
can be checked. A request usually arrives together with its call."""

OPENINGS_MAX: Final = 16
"""First messages of streams of one principal that arrive at the same time, at most; as `ARRIVALS_MAX`: 256 MiB, until one turns out to be too
large. More than of requests, because a client mounts many partitions at once, and a first message that its sender delays keeps its place for
longer."""

TOO_LARGE_S: Final = 5.0
"""How long a principal waits after a request that was too large: gRPC copies it in the event loop, for some 20 ms, while all others wait. What
already arrives still does. No client of ours sends one."""

ARRIVAL_S: Final = 5.0
"""How long a request may arrive after its call: some seconds on a slow link. So a principal cannot hold its places for long."""

OPENING_S: Final = 30.0
"""How long the first message of a stream may arrive once it has a place. A client that begins thousands of streams sends some of them late."""

T = TypeVar("T")

GrpcServices: TypeAlias = "Mapping[str, Mapping[str, grpc.RpcMethodHandler[Any, Any]]]"
"""The handlers of gRPC by the name of the service and that of the procedure in it."""


async def answered(method: AnyMethod, work: Awaitable[Any], context: Any) -> Any:
    """Runs a handler, and sends its errors to the caller in the status."""
    try:
        return await work
    except WaltzError as error:
        if isinstance(error, ProtocolViolation):
            log_violation(method, str(context.peer()), error)
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, errors.encode(error))
    except grpc.aio.AbortError:
        raise
    except asyncio.CancelledError:
        if task_is_cancelled():
            raise
        # Something that the handler awaited was cancelled, not the call. gRPC would never report that to the peer.
        await context.abort(grpc.StatusCode.UNAVAILABLE, "the awaited result was cancelled")
    except Exception as error:
        await context.abort(grpc.StatusCode.UNKNOWN, log_failure(method, str(context.peer()), error))


class ServedStream:
    """The serving end of a stream of bytes. `Stream.finish` is the handler's return."""

    def __init__(self, context: Any) -> None:
        self._context = context

    async def begin(self) -> None:
        """Sends the call's headers. Call it before anything else. Otherwise gRPC sends them with the first message, and a handler that ends with an
        error while that message is being sent sends them twice. That fails, and the caller never learns that the call has ended."""
        await self._try(self._context.send_initial_metadata(()))

    async def send(self, message: Any) -> None:
        await self._try(self._context.write(message))

    async def receive(self) -> Any | None:
        message = await self._try(self._context.read())
        return None if message is EOF else message

    async def _try(self, work: Awaitable[Any]) -> Any:
        try:
            return await work
        except (grpc.aio.UsageError, grpc.aio.InternalError, asyncio.InvalidStateError, grpc.aio.AbortError) as error:
            raise ConnectionLost(address=self._context.peer(), reason=f"peer is gone: {error}") from None

    async def finish(self) -> None:
        """Nothing to do: the stream finishes when its handler returns."""

    async def cancel(self) -> None:
        """Reports to the caller that the call was cancelled."""
        with suppress(grpc.aio.AbortError):
            await self._context.abort(grpc.StatusCode.CANCELLED, "cancelled by the server")


class DecodedStream(ServedStream):
    """A stream whose messages are decoded here. `opening`: receives and decodes the first one, once the handler asks for it: a handler may send
    before that."""

    def __init__(self, context: Any, method: AnyMethod, opening: Callable[[], Awaitable[Any | None]]) -> None:
        super().__init__(context)
        self._method = method
        self._opening = opening
        self._is_opening = True

    async def receive(self) -> Any | None:
        if self._is_opening:
            self._is_opening = False
            return await self._opening()
        message = await super().receive()
        return None if message is None else _decode(self._method, message)


async def _in_time(name: str, arriving: Awaitable[T], limit_s: float) -> T:
    """Raises `ProtocolViolation` if the message does not arrive within the time."""
    try:
        async with asyncio.timeout(limit_s):
            return await arriving
    except TimeoutError:
        raise ProtocolViolation(reason=f"request of {name} did not arrive within {limit_s:g} s") from None


def decoded(method: AnyMethod, request: bytes) -> Any:
    """The request of a call, or the first message of a stream. Raises `ProtocolViolation` if it is too large, before it is decoded, or no message of
    the procedure."""
    if len(request) > request_bytes_max(method):
        raise _too_large(method.name, len(request), request_bytes_max(method))
    return _decode(method, request)


def _too_large(name: str, size: int, limit: int) -> ProtocolViolation:
    return ProtocolViolation(reason=f"request of {name} too large: bytes={size} limit={limit}")


def _decode(method: AnyMethod, message: bytes) -> Any:
    try:
        return decoder_of(method)(message)
    except DecodeError as error:
        raise ProtocolViolation(reason=f"not a message of {method.name}: {error}") from None


def encoded(message: Any) -> bytes:
    """A message as bytes. A forwarded message is bytes already."""
    data: bytes = message if type(message) is bytes else message.SerializeToString()
    return data


def grouped(offered: Iterable[Served], run: Callable[[AnyMethod, Handler], Callable[[Any, Any], Awaitable[None]]]) -> GrpcServices:
    """The handlers of gRPC by service. `run`: makes what serves one call of the procedure, from gRPC's requests, which are not used, and context."""
    found: dict[str, dict[str, grpc.RpcMethodHandler[Any, Any]]] = {}
    for served in offered:
        _, group, name = served.method.name.split("/")
        found.setdefault(group, {})[name] = grpc.stream_stream_rpc_method_handler(run(served.method, served.handler), None, encoded)
    return found


def register(server: grpc.aio.Server, services: GrpcServices) -> None:
    """Each procedure has a queue of its own: of calls that wait in one queue gRPC accepts one in four passes of the event loop, four in a second on
    a machine that is short of processor time. With one queue for all, new clients and queries of status waited for minutes at a node that appended at
    full speed while its clients resolved outcomes (decision 197)."""
    for service, handlers in services.items():
        server.add_registered_method_handlers(service, dict(handlers))  # type: ignore[attr-defined]  # newer than its types


async def answer(method: AnyMethod, handler: Handler, request: Any | None, context: Any, unread: Unread) -> None:
    """Answers a call of the caller whose request is decoded, or was not sent. Waits for room for the answer first."""
    if request is None:
        raise ProtocolViolation(reason=f"a call of {method.name} without a request")
    served = ServedStream(context)
    if method.kind == "read":
        await served.begin()
        await handler(request, served)
        return
    room = await unread.acquire(caller(), answer_bytes(method))
    try:
        response = await handler(request)
        async with room:
            await served.send(response)
    finally:
        room.release()


class Arriving(NamedTuple):
    """What is expected from a peer: how large it may be, how long it may arrive, and how many of the peer may arrive at a time."""

    name: str
    bytes_max: int
    arrival_s: float
    places: int


def _arriving(method: AnyMethod) -> Arriving:
    if method.kind == "stream":
        return Arriving(method.name, request_bytes_max(method), OPENING_S, OPENINGS_MAX)
    return Arriving(method.name, request_bytes_max(method), ARRIVAL_S, ARRIVALS_MAX)


class Arrivals:
    """The requests and first messages of streams that arrive, of one process: a few of each peer at a time, within a time limit."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, int], tuple[asyncio.Semaphore, int]] = {}
        """By peer and number of places: streams have places of their own."""
        self._paused_s: dict[str, float] = {}
        """By peer that sent a request which was too large: until when it waits."""

    async def receive(self, method: AnyMethod, context: Any) -> bytes | None:
        """The request of a call of the caller, or the first message of its stream. Raises `ProtocolViolation` if it does not arrive in time, or is
        too large. Of nodes, only the time of a first message is limited."""
        principal = counted_principal(caller())
        if principal is not None:
            return await self.receive_from(principal, _arriving(method), context)
        arriving: Awaitable[bytes | None] = ServedStream(context).receive()
        return await (_in_time(method.name, arriving, OPENING_S) if method.kind == "stream" else arriving)

    async def receive_from(self, peer: str, expected: Arriving, context: Any) -> bytes | None:
        """Raises what `receive` does."""
        async with self._place(peer, expected.places):
            await self._wait_for_pause(peer)
            request: bytes | None = await _in_time(expected.name, ServedStream(context).receive(), expected.arrival_s)
            if request is not None and len(request) > expected.bytes_max:
                now_s = asyncio.get_running_loop().time()
                self._paused_s = {each: until_s for each, until_s in self._paused_s.items() if until_s > now_s} | {peer: now_s + TOO_LARGE_S}
                raise _too_large(expected.name, len(request), expected.bytes_max)
            return request

    async def _wait_for_pause(self, peer: str) -> None:
        while (left_s := self._paused_s.get(peer, 0.0) - asyncio.get_running_loop().time()) > 0:
            await asyncio.sleep(left_s)

    @asynccontextmanager
    async def _place(self, peer: str, limit: int) -> AsyncIterator[None]:
        key = peer, limit
        places, users = self._places.get(key) or (asyncio.Semaphore(limit), 0)
        self._places[key] = (places, users + 1)
        try:
            async with places:
                yield
        finally:
            _, users = self._places[key]
            if users == 1:
                del self._places[key]
            else:
                self._places[key] = (places, users - 1)
