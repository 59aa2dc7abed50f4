"""The calling end of gRPC's streams, and the typed errors behind the status that a call ends with.

`Any` stands for gRPC's own objects (call), which its types describe only in part, and for messages that pass through whatever they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any  # see the docstring

import grpc
import grpc.aio

from waltz_log import errors
from waltz_log.background_tasks import start_task
from waltz_log.errors import ConnectionLost, ProtocolViolation, WaltzError
from waltz_log.transport.call_status import REPLACED, CallStatus
from waltz_log.transport.cancelled import task_is_cancelled
from waltz_log.transport.grpc_channels import GrpcChannels

__all__ = ["EOF", "CallStream", "VerifyingStream", "begun", "error_of"]

EOF: Any = vars(grpc.aio)["EOF"]  # missing from the type stubs


def error_of(address: str, code: grpc.StatusCode, details: str | None) -> WaltzError:
    """The typed error behind an rpc status: the peer's own, or what the transport's code means."""
    told = errors.decode(details or "")
    if told is not None:
        return told
    if details is not None and details.startswith(REPLACED):
        # A write failed because the call has ended, and the peer's own status did not arrive.
        return ConnectionLost(address=address, reason="stream ended while writing")
    if code is grpc.StatusCode.OK:
        return ConnectionLost(address=address, reason="the peer ended the stream")
    if code in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.RESOURCE_EXHAUSTED):
        return ProtocolViolation(reason=f"{code.name.lower()} from {address}: {details}")
    return ConnectionLost(address=address, reason=f"{code.name.lower()}: {details}")


async def begun(call: Any) -> bool:
    """Returns when the call's headers are out, or False if it ended before: gRPC's own wait for them has no end then."""
    ended = asyncio.Event()
    call.add_done_callback(lambda _: ended.set())
    connected, over = start_task(call.wait_for_connection()), start_task(ended.wait())
    try:
        await asyncio.wait((connected, over), return_when=asyncio.FIRST_COMPLETED)
        if not connected.done():
            return False
        connected.result()
        return True
    finally:
        connected.cancel()
        over.cancel()


class CallStream:
    """The calling end of a stream."""

    def __init__(self, address: str, call: Any, *, half_closed: bool) -> None:
        self._address = address
        self._call = call
        self._status = CallStatus(call)
        self._half_closed = half_closed
        self._begun = False

    async def _begin(self) -> None:
        if not await begun(self._call):
            raise await self._end()
        self._begun = True

    async def _end(self) -> WaltzError:
        status = await self._status.get()
        return error_of(self._address, status.code, status.details)

    async def send(self, message: Any) -> None:
        try:
            if not self._begun:
                await self._begin()
            await self._call.write(message)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            raise await self._end() from None
        except asyncio.CancelledError:
            if task_is_cancelled():
                raise
            raise ConnectionLost(address=self._address, reason="cancelled") from None

    async def receive(self) -> Any | None:
        try:
            message = await self._call.read()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            message = EOF
        except asyncio.CancelledError:
            if task_is_cancelled():
                raise
            raise ConnectionLost(address=self._address, reason="cancelled") from None
        if message is not EOF:
            return message
        if (await self._status.get()).code is not grpc.StatusCode.OK:
            raise await self._end()
        return None

    async def finish(self) -> None:
        if not self._half_closed:
            self._half_closed = True
            try:
                await self._call.done_writing()
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.InternalError):
                raise await self._end() from None

    async def cancel(self) -> None:
        self._call.cancel()


class VerifyingStream:
    """The calling end of a stream that begins as soon as its peer is verified."""

    def __init__(self, channels: GrpcChannels, address: str, begin: Callable[[grpc.aio.Channel], CallStream]) -> None:
        self._channels = channels
        self._address = address
        self._begin = begin
        self._stream: CallStream | None = None
        self._cancelled = False

    async def _begun(self) -> CallStream:
        if self._stream is None:
            channel = await self._channels.verified()
            if self._cancelled:
                raise ConnectionLost(address=self._address, reason="cancelled")
            if self._stream is None:  # sender and receiver may both wait
                self._stream = self._begin(channel)
        return self._stream

    async def send(self, message: Any) -> None:
        await (await self._begun()).send(message)

    async def receive(self) -> Any | None:
        return await (await self._begun()).receive()

    async def finish(self) -> None:
        await (await self._begun()).finish()

    async def cancel(self) -> None:
        self._cancelled = True
        if self._stream is not None:
            await self._stream.cancel()
