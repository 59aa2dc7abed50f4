"""The status of a call whose write failed because the peer had ended it: gRPC puts its own in its place, and the caller still gets the peer's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
import pytest

from waltz_log.core.ports import Served
from waltz_log.errors import Fenced
from waltz_log.transport import call_status, methods
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.call_status import REPLACED, CallStatus, Status
from waltz_log.transport.grpc import GrpcNetwork

PEERS = Status(grpc.StatusCode.FAILED_PRECONDITION, "the peer's own words", (("a", "1"),))
GRPCS = Status(grpc.StatusCode.INTERNAL, REPLACED, ())


class _Call:
    """Ends as gRPC's calls do: each status replaces the one before it; callbacks run at the first one, or at each."""

    def __init__(self, *, callbacks_at_each: bool) -> None:
        self._each = callbacks_at_each
        self._status: Status | None = None
        self._ended = asyncio.Event()
        self._callbacks: list[Callable[[Any], None]] = []

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._callbacks.append(callback)

    def end(self, status: Status) -> None:
        first, self._status = self._status is None, status
        self._ended.set()
        for callback in self._callbacks if first or self._each else ():
            callback(self)

    async def _get(self) -> Status:
        if self._status is None:
            await self._ended.wait()
        assert self._status is not None
        return self._status

    async def code(self) -> grpc.StatusCode:
        return (await self._get()).code

    async def details(self) -> str:
        return (await self._get()).details

    async def trailing_metadata(self) -> Any:
        return (await self._get()).trailing


@pytest.mark.parametrize("callbacks_at_each", [False, True])
@pytest.mark.parametrize("order", [(PEERS, GRPCS), (GRPCS, PEERS), (PEERS,)], ids=["replaced", "late", "alone"])
async def test_the_peers_status_wins_in_every_order(order: tuple[Status, ...], callbacks_at_each: bool) -> None:
    call = _Call(callbacks_at_each=callbacks_at_each)
    status = CallStatus(call)
    got = asyncio.ensure_future(status.get())
    for each in order:
        call.end(each)
        await asyncio.sleep(2 * call_status.POLL_S)
    assert await got == PEERS == await status.get()


async def test_a_status_that_never_comes_is_awaited_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_status, "WAIT_S", 0.05)
    call = _Call(callbacks_at_each=True)
    status = CallStatus(call)
    call.end(GRPCS)
    assert await status.get() == GRPCS


async def test_a_write_into_an_ended_call_raises_the_peers_error() -> None:
    async def handler(_: methods.ServedMountStream) -> None:
        raise Fenced(what="mount", partition=0, mine=1, newer=2)

    listener = await GrpcNetwork().serve("127.0.0.1:0", [Served(methods.MOUNT, handler)])
    channel = GrpcNetwork(direct_port=-1).connect(listener.address)
    try:
        for turns in range(30):  # each time the call ends at another step of the write; in some, gRPC replaces the status
            stream = channel.open(methods.MOUNT)
            for _ in range(turns):
                await asyncio.sleep(0)
            time.sleep(0.002)  # noqa: ASYNC251 - what arrives meanwhile waits for the loop
            with pytest.raises(Fenced):
                async with asyncio.timeout(20):
                    await stream.send(pb.ClientMessage(mount=pb.MountRequest()))
                    while await stream.receive() is not None:
                        pass
    finally:
        await channel.close()
        await listener.close()
