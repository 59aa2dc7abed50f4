"""The network port inside one process: every message is serialised, copied and delivered in order, with bounded queues.

Without `links` messages arrive at once (each sending pauses for `delay_s`, if given), and both ends of a connection break at the same moment: for
tests of what one part does. With them it is a network of hosts (`host(name)`): messages need time, hosts are disconnected from each other, one end
of a connection learns later than the other that it is broken, and messages in transit at that time may still arrive.

Faults by address: `cut(address)` ends what is open and refuses what is new until `heal(address)`. Of a connection: `reset`. Of a host: `die`. Between
hosts: the links.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any  # messages of any method

from waltz_log.core.messages import Encoded
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
from waltz_log.security.identity import Identity
from waltz_log.testing.links import Links
from waltz_log.testing.memory_connection import OUTSIDE, Connection, End
from waltz_log.testing.virtual_time import world_time_s

__all__ = ["MemoryHost", "MemoryNetwork"]


class _MemoryChannel:
    def __init__(self, host: MemoryHost, address: str) -> None:
        self._host = host
        self._address = address

    @property
    def address(self) -> str:
        return self._address

    async def call(self, method: CallMethod[Request, Response], request: Request, *, timeout_s: float) -> Response:
        end = self._host.start(self._address, method, request)
        try:
            async with asyncio.timeout(timeout_s):
                answer: Response | None = await end.receive()
        except TimeoutError:
            await end.cancel()
            raise ConnectionLost(address=self._address, reason="deadline exceeded") from None
        except asyncio.CancelledError:
            await end.cancel()
            raise
        if answer is None:
            raise ConnectionLost(address=self._address, reason="no answer")
        return answer

    def read(self, method: ReadMethod[Request, Response], request: Request) -> Receiver[Response]:
        return self._host.start(self._address, method, request)

    def open(self, method: StreamMethod[Request, Response]) -> Stream[Request, Response]:
        return self._host.start(self._address, method, None)

    async def close(self) -> None:
        """Streams end with their users."""


class _MemoryListener:
    def __init__(self, network: MemoryNetwork, address: str) -> None:
        self._network = network
        self._address = address

    @property
    def address(self) -> str:
        return self._address

    async def close(self, grace_s: float = 0.0) -> None:
        self._network.stop(self._address)


class MemoryHost:
    """The network as one process has it. `die` when the process does: nothing of it gets out any more."""

    def __init__(self, network: MemoryNetwork, name: str) -> None:
        self._network = network
        self.name = name
        self._dead = False
        self._addresses: list[str] = []

    def connect(self, address: str) -> Channel:
        return _MemoryChannel(self, address)

    async def serve(self, address: str, service: Service) -> Listener:
        listener = await self._network.listen(self, address, service)
        self._addresses.append(listener.address)
        return listener

    def start(self, address: str, method: AnyMethod, request: Any | None) -> End:
        network, links = self._network, self._network.links
        connection = network.connection(self.name, method, address)
        if self._dead:
            connection.caller.end(ConnectionLost(address=address, reason="this process is dead"))
            return connection.caller
        data = None if request is None else request.SerializeToString()
        if request is not None:
            network.observe(connection, self.name, request, world_time_s())
        connection.start(data)
        if links is not None and data is not None and method.kind == "call" and links.rng.random() < links.weather.duplication:
            connection.repeat_call(data, links.rng.uniform(0, links.weather.duplicate_late_s))
        return connection.caller

    def die(self, notice_s: Callable[[], float]) -> None:
        """Everything open ends here at once; each peer learns of it after `notice_s()`."""
        self._dead = True
        for address in self._addresses:
            self._network.services.pop(address, None)
        for connection in list(self._network.connections.values()):
            for end in (connection.caller, connection.callee):
                # A restarted process has the same name and other addresses.
                if end.host == self.name and (end is connection.caller or connection.address in self._addresses):
                    end.other.break_later(notice_s())
                    end.end(ConnectionLost(address=self.name, reason="this process is dead"))


class MemoryNetwork:
    """Addresses are names; `host:0` gets a fresh number. `delay_s` returns the delay of each message; or `links` does, for hosts and their faults."""

    def __init__(self, delay_s: Callable[[], float] | None = None, links: Links | None = None) -> None:
        self.links = links
        self.services: dict[str, tuple[dict[AnyMethod, Handler], Context]] = {}
        self.connections: dict[int, Connection] = {}
        self.observer: Callable[[Connection, str, Any, float], None] | None = None
        """Called for every message that is sent: the connection, the sender, the message, and since when it was to be sent. A peer that does not read
        delays messages, whose contents are of that earlier time."""
        self.corrupts: Callable[[tuple[str, str], Any, bytes], bytes] | None = None
        """Given every message that a stream carries, from which host to which, and its bytes, says what arrives."""
        self.identities: Callable[[str], Identity] | None = None
        """From a host to who it is, as a certificate says it. None: the network does not know its peers, and every call is permitted."""
        self.defects: list[str] = []
        """What handlers raised that is no `WaltzError`."""
        self._delay_s = delay_s
        self._cut: set[str] = set()
        self._ports = 1000
        self._numbers = 0
        if links is not None:
            links.opened = self._release

    # ---- the port, for who is no host of its own ---------------------------------------------------------------------------------------------------

    def host(self, name: str) -> MemoryHost:
        return MemoryHost(self, name)

    def connect(self, address: str) -> Channel:
        return self.host("client").connect(address)

    async def serve(self, address: str, service: Service) -> Listener:
        return await self.host(address.rpartition(":")[0]).serve(address, service)

    async def listen(self, host: MemoryHost, address: str, service: Service) -> Listener:
        name, _, port = address.rpartition(":")
        if port == "0":
            self._ports += 1
            address = f"{name}:{self._ports}"
        if address in self.services:
            raise OSError(f"cannot listen on {address}")
        self.services[address] = {each.method: each.handler for each in service}, copy_context()
        return _MemoryListener(self, address)

    # ---- faults ------------------------------------------------------------------------------------------------------------------------------------

    def stop(self, address: str) -> None:
        """The listener closed, or its process died: what is open breaks, what is new is refused."""
        self.services.pop(address, None)
        self._break(address, "peer closed")

    def cut(self, address: str) -> None:
        self._cut.add(address)
        self._break(address, "network cut")

    def heal(self, address: str) -> None:
        self._cut.discard(address)

    def _break(self, address: str, reason: str) -> None:
        for connection in [each for each in self.connections.values() if each.address == address]:
            connection.caller.end(ConnectionLost(address=address, reason=reason))
            connection.callee.end(ConnectionLost(address=connection.caller.host, reason=reason))

    def reset(self, connection: Connection, caller_s: float, callee_s: float) -> None:
        """The connection breaks: each end learns of it at its own time and has seen a prefix of what the other sent."""
        connection.caller.break_later(caller_s)
        connection.callee.break_later(callee_s)

    def _release(self, source: str, target: str) -> None:
        for connection in list(self.connections.values()):
            for end in (connection.caller, connection.callee):
                if end.host == source and end.other.host == target:
                    end.release()

    # ---- what connections ask ----------------------------------------------------------------------------------------------------------------------

    def connection(self, host: str, method: AnyMethod, address: str) -> Connection:
        self._numbers += 1
        connection = Connection(self, self._numbers, method, host, address.rpartition(":")[0], address)
        self.connections[self._numbers] = connection
        return connection

    def accept(self, connection: Connection, request: bytes | None) -> None:
        found = self.services.get(connection.address)
        if found is None or connection.address in self._cut:
            connection.callee.leave(
                ConnectionLost(address=connection.caller.host, reason="refused"),
                ConnectionLost(address=connection.address, reason="connection refused"),
            )
            return
        service, context = found
        connection.serve(service[connection.method], request, context.copy())

    async def pause(self) -> None:
        await asyncio.sleep(0 if self._delay_s is None else self._delay_s())

    def observe(self, connection: Connection, host: str, message: Any, since_s: float) -> None:
        if self.observer is not None:
            OUTSIDE.copy().run(self.observer, connection, host, message.decoded() if isinstance(message, Encoded) else message, since_s)


_network: Network = MemoryNetwork()
