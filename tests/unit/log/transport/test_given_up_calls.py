"""A served call that waits for something which is cancelled, while the call itself is not: its peer learns it, in every kind of call."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from waltz_log.core.ports import AnyMethod, CallMethod, Channel, ReadMethod, Receiver, Served, StreamMethod
from waltz_log.errors import ConnectionLost
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.grpc import GrpcNetwork


async def _given_up(*_: Any) -> Any:
    waited_for = asyncio.get_running_loop().create_future()
    waited_for.cancel()
    await waited_for


def _opened(channel: Channel, method: AnyMethod) -> Receiver[Any]:
    if isinstance(method, ReadMethod):
        return channel.read(method, pb.ReadRequest())
    assert isinstance(method, StreamMethod)
    return channel.open(method)


@pytest.mark.parametrize("method", [methods.STORAGE_STATUS, methods.READ, methods.REPLICATE], ids=lambda method: method.kind)
async def test_the_peer_of_a_call_whose_work_was_given_up_is_reported(method: AnyMethod) -> None:
    network = GrpcNetwork()
    listener = await network.serve("127.0.0.1:0", [Served(method, _given_up)])
    channel = network.connect(listener.address)
    try:
        with pytest.raises(ConnectionLost, match="the awaited result was cancelled"):
            async with asyncio.timeout(20):
                if isinstance(method, CallMethod):
                    await channel.call(method, pb.StorageStatusRequest(), timeout_s=15)
                else:
                    await _opened(channel, method).receive()
    finally:
        await channel.close()
        await listener.close()
