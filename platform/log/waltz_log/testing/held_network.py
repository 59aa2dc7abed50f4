"""A network between a test's processes that holds messages: appends can be kept on the wire and delivered later, answers can be withheld, and
connections can outlive the process that made them.

Wraps any network; what is not held passes as it is. For the cases between send and answer, which chance hits too rarely.
"""

from __future__ import annotations

import asyncio
from typing import Any  # messages of any method

from waltz_log.core.messages import Encoded
from waltz_log.core.ports import CallMethod, Channel, Listener, Network, ReadMethod, Receiver, Request, Response, Service, Stream, StreamMethod
from waltz_log.errors import ConnectionLost, WaltzError
from waltz_log.transport import waltz_pb2 as pb

__all__ = ["HeldNetwork"]


class HeldNetwork:
    """`hold_frames`: appends stay on the wire until `deliver`. `hold_answers`: results arrive here and no further, until the hold ends or the stream
    is cancelled. `outlive`: a cancelled stream stays open at the far end, as that of a machine that was cut off, until `hang_up`."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self.hold_frames = False
        self.hold_answers = False
        self.outlive = False
        self.wire: list[tuple[Stream[Any, Any], Any]] = []
        self.left_open: list[Stream[Any, Any]] = []
        self._delivering = asyncio.Lock()
        self.sent = 0
        """Append frames given to this network, held ones too."""

    def connect(self, address: str) -> Channel:
        return _Channel(self, self._network.connect(address))

    async def serve(self, address: str, service: Service) -> Listener:
        return await self._network.serve(address, service)

    async def deliver(self) -> int:
        """Delivers what is on the wire, in the order of sending. Returns how many frames a connection accepted."""
        taken = 0
        async with self._delivering:
            for _ in range(len(self.wire)):
                stream, message = self.wire[0]
                try:
                    await stream.send(message)
                    taken += 1
                except WaltzError:
                    continue  # the far end has closed this connection
                finally:
                    self.wire.pop(0)
        return taken

    def holds(self, stream: Stream[Any, Any]) -> bool:
        """Whether the next frame of the stream must wait: a connection does not change the order of what it carries."""
        return self.hold_frames or any(held is stream for held, _ in self.wire)

    async def hang_up(self) -> None:
        """Ends the connections that outlived their process."""
        streams, self.left_open = self.left_open, []
        for stream in streams:
            await stream.cancel()


class _Channel:
    def __init__(self, network: HeldNetwork, channel: Channel) -> None:
        self._network = network
        self._channel = channel

    @property
    def address(self) -> str:
        return self._channel.address

    async def call(self, method: CallMethod[Request, Response], request: Request, *, timeout_s: float) -> Response:
        return await self._channel.call(method, request, timeout_s=timeout_s)

    def read(self, method: ReadMethod[Request, Response], request: Request) -> Receiver[Response]:
        return self._channel.read(method, request)

    def open(self, method: StreamMethod[Request, Response]) -> Stream[Request, Response]:
        return _Stream(self._network, self._channel, self._channel.open(method))

    async def close(self) -> None:
        if not self._network.outlive:
            await self._channel.close()


class _Stream:
    def __init__(self, network: HeldNetwork, channel: Channel, stream: Stream[Any, Any]) -> None:
        self._network = network
        self._channel = channel
        self._stream = stream
        self._cancelled = asyncio.Event()

    def _check(self) -> None:
        if self._cancelled.is_set():
            raise ConnectionLost(address=self._channel.address, reason="cancelled")

    async def send(self, message: Any) -> None:
        self._check()
        plain = message.decoded() if isinstance(message, Encoded) else message
        if isinstance(plain, pb.ClientMessage) and plain.WhichOneof("kind") == "append":
            self._network.sent += 1
            if self._network.holds(self._stream):
                self._network.wire.append((self._stream, message))
                return
        await self._stream.send(message)

    async def receive(self) -> Any | None:
        self._check()
        message = await self._stream.receive()
        while self._network.hold_answers and getattr(message, "WhichOneof", lambda _: None)("kind") == "result":
            try:
                async with asyncio.timeout(0.01):
                    await self._cancelled.wait()
            except TimeoutError:
                continue
            self._check()
        return message

    async def finish(self) -> None:
        await self._stream.finish()

    async def cancel(self) -> None:
        self._cancelled.set()
        if self._network.outlive:
            self._network.left_open.append(self._stream)
        else:
            await self._stream.cancel()


_network: type[Network] = HeldNetwork  # holds the class to the port when types are checked
