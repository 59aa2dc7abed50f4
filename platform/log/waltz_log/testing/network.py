"""The network port inside one process: every message is serialised, copied and delivered in order, with bounded queues.

Faults are switched by address: `cut(address)` ends what is open and refuses what is new until `heal(address)`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from waltz_log import errors
from waltz_log.core.ports import Channel, Listener, Method, Network, Service, Stream
from waltz_log.errors import ConnectionLost, WaltzError

__all__ = ["MemoryNetwork"]

QUEUE_MESSAGES = 8  # about what HTTP/2 flow control lets through with frames of some 10 KiB


class _Pipe:
    """One direction: messages, then an end (None: in good order)."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[bytes] = asyncio.Queue(QUEUE_MESSAGES)
        self.ended = asyncio.Event()
        self.error: WaltzError | None = None

    def end(self, error: WaltzError | None) -> None:
        if not self.ended.is_set():
            self.error = error
            self.ended.set()

    async def put(self, data: bytes, broken: asyncio.Event) -> bool:
        if broken.is_set():
            return False
        return await _first(self.queue.put(data), broken)

    async def get(self) -> bytes | None:
        if self.queue.empty() and not self.ended.is_set():
            got: list[bytes] = []

            async def take() -> None:
                got.append(await self.queue.get())

            await _first(take(), self.ended)
            if got:
                return got[0]
        return self.queue.get_nowait() if not self.queue.empty() else None


async def _first(work: Coroutine[Any, Any, Any], event: asyncio.Event) -> bool:
    """Runs `work` until it is done (True) or the event is set (False)."""
    task = asyncio.ensure_future(work)
    waiter = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({task, waiter}, return_when=asyncio.FIRST_COMPLETED)
        return task.done()
    finally:
        for each in (task, waiter):
            if not each.done():
                each.cancel()


class _End:
    """One end of a stream."""

    def __init__(
        self,
        peer: str,
        out: _Pipe,
        into: _Pipe,
        send_type: type[Any],
        receive_type: type[Any],
        broken: asyncio.Event,
        delay_s: Callable[[], float] | None,
    ) -> None:
        self._peer, self._out, self._into, self._delay_s = peer, out, into, delay_s
        self._send_type, self._receive_type = send_type, receive_type
        self.broken = broken

    def _lost(self) -> WaltzError:
        return self._into.error or self._out.error or ConnectionLost(address=self._peer, reason="stream ended")

    async def send(self, message: Any) -> None:
        if not isinstance(message, self._send_type):
            raise TypeError(f"expected {self._send_type.__name__}, got {type(message).__name__}")
        if self._delay_s is not None:
            await asyncio.sleep(self._delay_s())
        if self._out.ended.is_set() or not await self._out.put(message.SerializeToString(), self.broken):
            raise self._lost()

    async def receive(self) -> Any | None:
        data = await self._into.get()
        if data is not None:
            return self._receive_type.FromString(data)
        if self._into.error is not None:
            raise self._into.error
        return None

    async def finish(self) -> None:
        self._out.end(None)

    async def cancel(self) -> None:
        self.break_off("cancelled")

    def break_off(self, reason: str) -> None:
        error = ConnectionLost(address=self._peer, reason=reason)
        self._out.end(error)
        self._into.end(error)
        self.broken.set()


class _MemoryChannel:
    def __init__(self, network: MemoryNetwork, address: str) -> None:
        self._network = network
        self._address = address

    @property
    def address(self) -> str:
        return self._address

    async def call(self, method: Method, request: Any, *, timeout_s: float) -> Any:
        stream = self._network.start(self._address, method, request)
        try:
            async with asyncio.timeout(timeout_s):
                answer = await stream.receive()
        except TimeoutError:
            await stream.cancel()
            raise ConnectionLost(address=self._address, reason="deadline exceeded") from None
        except asyncio.CancelledError:
            await stream.cancel()
            raise
        if answer is None:
            raise ConnectionLost(address=self._address, reason="no answer")
        return answer

    def open(self, method: Method, request: Any | None = None) -> Stream:
        return self._network.start(self._address, method, request)

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


class MemoryNetwork:
    """Addresses are names; `host:0` gets a fresh number. `delay_s` is asked for how long each message takes."""

    def __init__(self, delay_s: Callable[[], float] | None = None) -> None:
        self._delay_s = delay_s
        self._services: dict[str, dict[Method, Any]] = {}
        self._open: dict[str, dict[asyncio.Task[None], list[_End]]] = {}
        self._cut: set[str] = set()
        self._ports = 1000

    def connect(self, address: str) -> Channel:
        return _MemoryChannel(self, address)

    async def serve(self, address: str, service: Service) -> Listener:
        host, _, port = address.rpartition(":")
        if port == "0":
            self._ports += 1
            address = f"{host}:{self._ports}"
        if address in self._services:
            raise OSError(f"cannot listen on {address}")
        self._services[address] = dict(service)
        return _MemoryListener(self, address)

    def stop(self, address: str) -> None:
        """The listener closed, or its process died: what is open breaks, what is new is refused."""
        self._services.pop(address, None)
        self._break(address, "peer closed")

    def cut(self, address: str) -> None:
        self._cut.add(address)
        self._break(address, "network cut")

    def heal(self, address: str) -> None:
        self._cut.discard(address)

    def _break(self, address: str, reason: str) -> None:
        for task, ends in list(self._open.get(address, {}).items()):
            for end in ends:
                end.break_off(reason)
            task.cancel()

    def start(self, address: str, method: Method, request: Any | None) -> _End:
        there, back, broken = _Pipe(), _Pipe(), asyncio.Event()
        caller = _End(address, there, back, method.request, method.response, broken, self._delay_s)
        callee = _End("caller", back, there, method.response, method.request, broken, self._delay_s)
        service = self._services.get(address)
        if service is None or address in self._cut:
            caller.break_off("connection refused")
            return caller
        handler = service[method]

        async def run() -> None:
            try:
                if method.kind == "call":
                    answer = await handler(method.request.FromString(request.SerializeToString()))  # type: ignore[union-attr]
                    await callee.send(answer)
                elif method.kind == "read":
                    await handler(method.request.FromString(request.SerializeToString()), callee)  # type: ignore[union-attr]
                else:
                    await handler(callee)
                back.end(None)
                there.end(ConnectionLost(address=address, reason="stream ended"))
            except WaltzError as error:
                told = errors.decode(errors.encode(error))
                back.end(told)
                there.end(told)
            finally:
                back.end(ConnectionLost(address=address, reason="handler failed"))
                broken.set()

        async def watched() -> None:
            task = asyncio.ensure_future(run())
            try:
                waiter = asyncio.ensure_future(broken.wait())
                await asyncio.wait({task, waiter}, return_when=asyncio.FIRST_COMPLETED)
                waiter.cancel()
            finally:
                if not task.done():
                    task.cancel()
            if task.done() and not task.cancelled() and task.exception() is not None:
                raise task.exception()  # type: ignore[misc]

        task = asyncio.get_running_loop().create_task(watched())
        ends = self._open.setdefault(address, {})
        ends[task] = [caller, callee]
        task.add_done_callback(lambda done: (ends.pop(done, None), None)[1])
        return caller


_network: Network = MemoryNetwork()
