"""A served stream that ends with an error while its first message is under way: its peer learns of the end, and why."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from waltz_log.core.ports import AnyMethod, Receiver, Sender, Served
from waltz_log.core.topics.sharding import Shard
from waltz_log.errors import ConnectionLost, Fenced
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.forwarding import WorkerNetwork
from waltz_log.transport.grpc import GrpcNetwork

MESSAGES = {"stream": pb.ServerMessage(mounted=pb.MountResponse()), "read": pb.ReadResponse()}


def _worker(folder: Path) -> WorkerNetwork:
    return WorkerNetwork(Shard(0, 1), [f"unix:{folder}/node"], [f"unix:{folder}/worker"])


@pytest.mark.parametrize("kind", ["alone", "worker"])
@pytest.mark.parametrize("method", [methods.MOUNT, methods.READ], ids=lambda method: method.kind)
async def test_the_error_reaches_the_peer(method: AnyMethod, kind: str) -> None:
    async def handler(*arguments: Any) -> None:
        stream: Sender[Any] = arguments[-1]
        sending = asyncio.ensure_future(stream.send(MESSAGES[method.kind]))
        await asyncio.sleep(0)
        assert not sending.done()
        sending.cancel()
        raise Fenced(what="mount", partition=0, mine=1, newer=2)

    with TemporaryDirectory() as folder:
        network = GrpcNetwork() if kind == "alone" else _worker(Path(folder))
        listener = await network.serve("127.0.0.1:0", [Served(method, handler)])
        channel = GrpcNetwork().connect(listener.address)
        try:
            with pytest.raises(Fenced):
                async with asyncio.timeout(20):
                    receiver: Receiver[Any]
                    if method is methods.MOUNT:
                        receiver = stream = channel.open(methods.MOUNT)
                        await stream.send(pb.ClientMessage(mount=pb.MountRequest()))
                    else:
                        receiver = channel.read(methods.READ, pb.ReadRequest())
                    while await receiver.receive() is not None:
                        pass
        finally:
            await channel.close()
            await listener.close()


async def test_a_server_that_cancels_a_stream_reports_its_peer() -> None:
    async def handler(stream: methods.ServedMountStream) -> None:
        await stream.cancel()

    listener = await GrpcNetwork().serve("127.0.0.1:0", [methods.MOUNT.served_by(handler)])
    channel = GrpcNetwork().connect(listener.address)
    try:
        with pytest.raises(ConnectionLost, match="cancelled"):
            async with asyncio.timeout(20):
                await channel.open(methods.MOUNT).receive()
    finally:
        await channel.close()
        await listener.close()
