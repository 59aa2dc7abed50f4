"""One call or stream of the in-memory network: two ends, the messages in transit between them, and the handler that serves it.

Each end learns for itself that the connection is over. What arrived before can still be read. Messages in transit are lost when an end breaks, so
each side has seen a prefix of what the other sent. The called end reads its messages in the context of the process that listens.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context
from functools import partial
from typing import Any, Protocol  # Any: messages of any method

from waltz_log import errors
from waltz_log.core.messages import Encoded
from waltz_log.core.ports import AnyMethod, Handler
from waltz_log.errors import ConnectionLost, WaltzError
from waltz_log.loggers import get_logger
from waltz_log.security import permits
from waltz_log.security.callers import set_caller
from waltz_log.security.identity import Identity
from waltz_log.testing.links import Links
from waltz_log.testing.virtual_time import call_at_world_time, world_time_s
from waltz_log.transport.admitted import AdmittedStream

__all__ = ["OUTSIDE", "Connection", "End"]

log = get_logger(__name__)

QUEUE_MESSAGES = 8  # about what HTTP/2 flow control lets through with frames of some 10 KiB

OUTSIDE = Context()
"""Deliveries belong to no process: they continue while sender and receiver are stopped."""

_FINISHED = object()


class Carrier(Protocol):
    """The network as a connection sees it: `MemoryNetwork`."""

    links: Links | None
    connections: dict[int, Connection]
    corrupts: Callable[[tuple[str, str], Any, bytes], bytes] | None
    identities: Callable[[str], Identity] | None
    defects: list[str]

    def connection(self, host: str, method: AnyMethod, address: str) -> Connection: ...
    def accept(self, connection: Connection, request: bytes | None) -> None: ...
    async def pause(self) -> None: ...
    def observe(self, connection: Connection, host: str, message: Any, since_s: float) -> None: ...


class _Start:
    """The first thing to travel: the call itself, with the request if there is one."""

    def __init__(self, request: bytes | None) -> None:
        self.request = request


class End:
    """One end of a connection, as its user has it."""

    def __init__(self, connection: Connection, host: str, peer: str, send_type: type[Any], receive_type: type[Any], *, serving: bool) -> None:
        self.connection = connection
        self.host = host
        self.other: End
        self.error: WaltzError | None = None
        self.ended = False
        """Nothing more arrives; in order if there is no error."""
        self._serving = serving
        self._peer = peer
        self._send_type, self._receive_type = send_type, receive_type
        self._arrived: deque[bytes] = deque()
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._unread = 0
        self._finished = False
        self._arrival_s = 0.0
        self._held: deque[Any] = deque()

    # ---- the port ----------------------------------------------------------------------------------------------------------------------------------

    def _cannot_send(self) -> bool:
        return self._finished or (self.ended and not (self._serving and self.error is None))

    async def send(self, message: Any) -> None:
        kind = message.kind if isinstance(message, Encoded) else type(message)
        if not issubclass(kind, self._send_type):
            raise TypeError(f"expected {self._send_type.__name__}, got {kind.__name__}")
        since_s = world_time_s()
        await self.connection.network.pause()
        while self._unread >= QUEUE_MESSAGES and not self._cannot_send():
            self._writer = asyncio.get_running_loop().create_future()
            await self._writer
        if self._cannot_send():
            raise self.error or ConnectionLost(address=self._peer, reason="stream ended")
        self._unread += 1
        self.connection.network.observe(self.connection, self.host, message, since_s)
        data = message.SerializeToString()
        if self.connection.network.corrupts is not None:
            data = self.connection.network.corrupts((self.host, self.other.host), message, data)
        self.transmit(data)
        self.connection.repeat(self, data)

    async def receive(self) -> Any | None:
        while not self._arrived:
            if self.error is not None:
                raise self.error
            if self.ended:
                return None
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        data = self._arrived.popleft()
        self.other.was_read()
        return self._receive_type.FromString(data)

    async def finish(self) -> None:
        if not self._finished and self.error is None:
            self._finished = True
            self.transmit(_FINISHED)

    async def cancel(self) -> None:
        """Notifies the other end, in order with what was sent. A faulty network may delay that."""
        self.leave(ConnectionLost(address=self._peer, reason="cancelled"), ConnectionLost(address=self.host, reason="cancelled"))

    def leave(self, mine: WaltzError, outcome: Any) -> None:
        """This end is done with."""
        if self.error is not None:
            return
        over = self.ended and not self._serving
        self.end(mine)
        links = self.connection.network.links
        if over:
            return
        if links is not None and not self._serving and links.rng.random() < links.weather.linger:
            self.other.break_later(links.patience_s())
        else:
            self.transmit(outcome)

    # ---- the way -----------------------------------------------------------------------------------------------------------------------------------

    def was_read(self) -> None:
        self._unread -= 1
        self._wake_writer()

    def transmit(self, what: Any) -> None:
        """Data, the call itself, an end in order or an error that ends it, to the other end."""
        links = self.connection.network.links
        if links is None:
            self.other.arrive(what)
        elif self._held or links.is_shut(self.host, self.other.host):
            self._held.append(what)
            self.connection.wait_for_links()
        else:
            self._schedule(what, links)

    def _schedule(self, what: Any, links: Links) -> None:
        now_s = world_time_s()
        # Never two at one moment: timers of the same time fire in any order.
        self._arrival_s = max(self._arrival_s + 1e-9, now_s + links.delay_s(self.host, self.other.host))
        call_at_world_time(self._arrival_s, self.other.arrive, what, context=OUTSIDE)

    def release(self) -> None:
        """The link is open again: held messages are sent now."""
        links = self.connection.network.links
        held, self._held = self._held, deque()
        if links is not None:
            for what in held:
                self._schedule(what, links)

    def arrive(self, what: Any) -> None:
        if self.ended:
            return
        if isinstance(what, bytes):
            self._arrived.append(what)
            self._wake_reader()
        elif isinstance(what, _Start):
            self.connection.network.accept(self.connection, what.request)
        elif what is _FINISHED:
            self.ended = True
            self._wake_reader()
            if not self._serving:
                self.connection.forget()
        else:
            self.end(what)

    # ---- ends --------------------------------------------------------------------------------------------------------------------------------------

    def end(self, error: WaltzError) -> None:
        """This end learns that the connection is over. What had arrived can still be read."""
        if self.error is None:
            self.ended, self.error = True, error
            self._wake_reader()
            self._wake_writer()
            if self._serving:
                self.connection.peer_is_gone()
            if self.other.error is not None:
                self.connection.forget()

    def break_later(self, delay_s: float) -> None:
        asyncio.get_running_loop().call_later(delay_s, self.break_off, "connection broke", context=OUTSIDE)

    def break_off(self, reason: str) -> None:
        """This end breaks by itself. The other end detects it at the latest by its own timeout."""
        if self.error is None:
            self.end(ConnectionLost(address=self._peer, reason=reason))
            links = self.connection.network.links
            if self.other.error is None and links is not None:
                self.other.break_later(links.patience_s())

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _wake_writer(self) -> None:
        if self._writer is not None and not self._writer.done():
            self._writer.set_result(None)


class Connection:
    """`number` rises with each; `original` is that of the connection whose messages this one repeats, its own where it repeats none."""

    def __init__(self, network: Carrier, number: int, method: AnyMethod, caller: str, callee: str, address: str) -> None:
        self.network = network
        self.number = self.original = number
        self.method = method
        self.address = address
        self.caller = End(self, caller, address, method.request, method.response, serving=False)
        self.callee = End(self, callee, caller, method.response, method.request, serving=True)
        self.caller.other, self.callee.other = self.callee, self.caller
        self.task: asyncio.Task[None] | None = None
        self._watched = False
        self._repeated = method.kind != "stream"

    def start(self, request: bytes | None) -> None:
        self.caller.transmit(_Start(request))

    def forget(self) -> None:
        self.network.connections.pop(self.number, None)

    # ---- faults ------------------------------------------------------------------------------------------------------------------------------------

    def repeat(self, end: End, data: bytes) -> None:
        """The first message of a stream may arrive a second time, on a separate connection that no caller reads."""
        links = self.network.links
        if self._repeated or links is None or end is not self.caller:
            return
        self._repeated = True
        if links.rng.random() < links.weather.duplication:
            delay_s = links.rng.uniform(0, links.weather.duplicate_late_s)
            asyncio.get_running_loop().call_later(delay_s, self._ghost, None, data, context=OUTSIDE)

    def repeat_call(self, request: bytes, delay_s: float) -> None:
        asyncio.get_running_loop().call_later(delay_s, self._ghost, request, None, context=OUTSIDE)

    def _ghost(self, request: bytes | None, data: bytes | None) -> None:
        links = self.network.links
        assert links is not None
        ghost = self.network.connection(self.caller.host, self.method, self.address)
        ghost.original = self.number
        ghost._repeated = True
        ghost.start(request)
        if data is not None:
            ghost.caller.transmit(data)
            ghost.callee.break_later(links.patience_s())
        ghost.caller.end(ConnectionLost(address=self.address, reason="nobody listens"))

    def wait_for_links(self) -> None:
        """The link is shut: each end breaks off by its own patience, unless the link is open again by then."""
        links = self.network.links
        if links is None or self._watched:
            return
        self._watched = True
        loop = asyncio.get_running_loop()
        for end in (self.caller, self.callee):
            loop.call_later(links.patience_s(), self._lose_patience, end, context=OUTSIDE)

    def _lose_patience(self, end: End) -> None:
        links = self.network.links
        assert links is not None
        self._watched = False
        here, there = self.caller.host, self.callee.host
        if links.is_shut(here, there) or links.is_shut(there, here):
            end.break_off("no answer")

    # ---- serving -----------------------------------------------------------------------------------------------------------------------------------

    def serve(self, handler: Handler, request: bytes | None, context: Context) -> None:
        self.task = asyncio.get_running_loop().create_task(self._serve(handler, request), context=context)

    def peer_is_gone(self) -> None:
        if self.task is not None and not self.task.done():
            self.task.cancel()

    async def _serve(self, handler: Callable[..., Any], request: bytes | None) -> None:
        method, callee = self.method, self.callee
        over: WaltzError = ConnectionLost(address=self.address, reason="stream ended")
        outcome: Any = _FINISHED
        try:
            peer = None if self.network.identities is None else self.network.identities(callee.other.host)
            if method.kind == "stream":
                await handler(callee if peer is None else AdmittedStream(callee, partial(_admit, method, peer)))
            else:
                message = method.request.FromString(request or b"")
                if peer is not None:
                    _admit(method, peer, message)
                if method.kind == "read":
                    await handler(message, callee)
                else:
                    await callee.send(await handler(message))
        except WaltzError as error:
            outcome = errors.decode(errors.encode(error)) or error
        except asyncio.CancelledError:
            outcome = ConnectionLost(address=self.address, reason="handler ended")
            raise
        except Exception as defect:
            log.exception("handler failed", method=method.name)
            self.network.defects.append(f"{method.name}: {defect!r}")
            outcome = ConnectionLost(address=self.address, reason="handler failed")
        finally:
            callee.leave(over, outcome)


def _admit(method: AnyMethod, peer: Identity, message: Any) -> bool:
    """As `transport.admitted` does it for a peer with a certificate."""
    set_caller(peer)
    permits.admit(peer, method.name, message)
    return permits.attribute(message, peer)
