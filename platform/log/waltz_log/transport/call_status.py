"""How a gRPC call ended, in the peer's words.

When a write fails because the peer has ended the call, gRPC replaces the call's status by its own, "Internal error from Core". It does so before or
after it receives the peer's status. `CallStatus` keeps the peer's.

`Any` stands for gRPC's own objects (call, metadata), which its types describe only in part.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, NamedTuple  # Any: gRPC's call

import grpc

__all__ = ["REPLACED", "CallStatus", "Status"]

REPLACED = "Internal error from Core"
"""How the details of a status begin that is gRPC's own."""

WAIT_S = 1.0
"""How long to wait for the peer's status after gRPC's own. It comes as soon as the peer's messages before it are read."""
POLL_S = 0.005


class Status(NamedTuple):
    code: grpc.StatusCode
    details: str
    trailing: Any

    @property
    def replaced(self) -> bool:
        """Whether gRPC put its own status in the place of the peer's."""
        return self.code is grpc.StatusCode.INTERNAL and self.details.startswith(REPLACED)


class CallStatus:
    """The status of one call. Make it before the call can end."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._first: Status | None = None
        call.add_done_callback(self._keep)

    def _keep(self, call: Any) -> None:
        if self._first is None or self._first.replaced:
            self._first = _at_once(_status(call))

    async def get(self) -> Status:
        """Waits for the end of the call. Where the peer's status does not arrive within `WAIT_S` of gRPC's own, returns gRPC's own."""
        status = await _status(self._call)
        if self._first is not None and not self._first.replaced:
            return self._first
        try:
            async with asyncio.timeout(WAIT_S):
                if status.replaced:
                    await _read_rest(self._call)
                while status.replaced:
                    await asyncio.sleep(POLL_S)
                    status = await _status(self._call)
        except TimeoutError:
            pass
        return status


async def _read_rest(call: Any) -> None:
    """Reads what the peer sent before its status, which arrives after it. gRPC's own `read` refuses that once it has replaced the status."""
    inner = getattr(call, "_cython_call", None)
    while inner is not None and isinstance(await inner.receive_serialized_message(), bytes):
        pass


async def _status(call: Any) -> Status:
    return Status(await call.code(), await call.details() or "", await call.trailing_metadata())


def _at_once(work: Coroutine[Any, Any, Status]) -> Status:
    """The result of a coroutine that has nothing to wait for: the call has ended. A task would read the status too late."""
    try:
        work.send(None)
    except StopIteration as done:
        status: Status = done.value
        return status
    raise AssertionError("the status of an ended call had to be waited for")
