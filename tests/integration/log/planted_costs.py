"""Bugs to plant in a node whose costs a test measures (`costly_node.py`), by name: what bounds memory and time does not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from waltz_log.errors import ProtocolViolation
from waltz_log.server.partition import append_task
from waltz_log.transport import forwarding, grpc, served_calls
from waltz_log.transport.admitted import Gate
from waltz_log.transport.direct import large_frame
from waltz_log.transport.unread import Room, Unread

__all__ = ["PLANTS"]


def _requests_of_any_size() -> None:
    setattr(served_calls, "request_bytes_max", lambda method: 1 << 40)  # noqa: B010  # it is imported there, not exported


def _gate_after_the_request() -> None:
    call = Gate.call

    @asynccontextmanager
    async def late(self: Gate, method: Any, context: Any) -> AsyncIterator[Any]:
        try:
            async with asyncio.timeout(1):
                await context.read()
        except TimeoutError:
            raise ProtocolViolation(reason="the request did not arrive") from None
        async with call(self, method, context) as identity:
            yield identity

    setattr(Gate, "call", late)  # noqa: B010  # its type has an argument that no caller gives


def _frames_in_one_piece() -> None:
    setattr(append_task, "pieces_of", lambda frame, weights: [frame])  # noqa: B010  # as above


def _unread_without_limit() -> None:
    async def acquire(self: Unread, peer: Any, size: int) -> Room:
        return Room(self, None, 0)

    Unread.acquire = acquire  # type: ignore[method-assign]
    Unread.acquire_now = lambda self, peer, size: Room(self, None, 0)  # type: ignore[method-assign]


def _memory_as_announced() -> None:
    large_frame.BEGUN_BYTES_MAX = 16 << 20
    large_frame._memory = lambda size, announced: memoryview(bytearray(b"\1") * size)  # all of it is written to, as if it had been received


def _places_for_all() -> None:
    served_calls.ARRIVALS_MAX = served_calls.OPENINGS_MAX = 1 << 20  # type: ignore[misc]


def _windows_that_grow() -> None:
    options = grpc.server_options
    setattr(grpc, "server_options", lambda *given, **named: [each for each in options(*given, **named) if "bdp" not in each[0]])  # noqa: B010
    setattr(forwarding, "server_options", grpc.server_options)  # noqa: B010  # it is imported there, not exported


PLANTS: dict[str, Callable[[], None]] = {
    "requests of any size": _requests_of_any_size,
    "gate after the request": _gate_after_the_request,
    "frames in one piece": _frames_in_one_piece,
    "unread without limit": _unread_without_limit,
    "memory as announced": _memory_as_announced,
    "places for all": _places_for_all,
    "windows that grow": _windows_that_grow,
}
