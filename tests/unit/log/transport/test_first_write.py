"""The first message of a stream whose connection is lost before gRPC has sent the call's headers: gRPC never says that it gave up sending them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from waltz_log.errors import ConnectionLost
from waltz_log.transport.call_streams import CallStream


class _LostCall:
    """As gRPC's call behaves then: it ends with a status, and a caller that waits for its headers waits without end."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[Any], None]] = []
        self.written: list[object] = []

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._callbacks.append(callback)

    async def wait_for_connection(self) -> None:
        await asyncio.Event().wait()

    async def write(self, message: object) -> None:
        await self.wait_for_connection()
        self.written.append(message)

    async def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    async def details(self) -> str:
        return "Cancelling all calls"

    async def trailing_metadata(self) -> tuple[()]:
        return ()

    def lose(self) -> None:
        for callback in self._callbacks:
            callback(self)


async def test_a_connection_lost_before_the_headers_is_reported_to_the_sender() -> None:
    call = _LostCall()
    sending = asyncio.ensure_future(CallStream("here:1", call, half_closed=False).send("mount"))
    await asyncio.sleep(0)
    assert not sending.done()
    call.lose()
    async with asyncio.timeout(5):
        with pytest.raises(ConnectionLost, match="Cancelling all calls"):
            await sending
    assert call.written == []


async def test_who_gives_up_sending_leaves_no_task_behind() -> None:
    sending = asyncio.ensure_future(CallStream("here:1", _LostCall(), half_closed=False).send("mount"))
    await asyncio.sleep(0)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}
