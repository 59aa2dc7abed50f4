"""Methods are typed by their messages. mypy reports an ignore comment that it does not need, so each one below is a mistake that mypy finds."""

from __future__ import annotations

from collections import Counter

import pytest

from waltz_log.core.messages import Encoded
from waltz_log.core.ports import Method, Sender, Served
from waltz_log.testing.network import MemoryNetwork
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.methods import MountStream, ServedMountStream

METHODS = [value for value in vars(methods).values() if isinstance(value, Method)]


async def ping(request: pb.PingRequest) -> pb.PingResponse:
    return pb.PingResponse(full=bool(request.partition))


async def open_wrongly(request: pb.OpenRequest) -> pb.PingResponse:
    return pb.PingResponse(full=bool(request.session))


async def mount(stream: ServedMountStream) -> None:
    await stream.send(pb.ServerMessage())


async def mount_from_the_other_end(stream: MountStream) -> None:
    await stream.send(pb.ClientMessage())


async def read(request: pb.ReadRequest, stream: Sender[pb.ReadResponse]) -> None:
    await stream.send(pb.ReadResponse(replica_last_transaction_id=request.session))


def test_a_handler_fits_its_method() -> None:
    served = [methods.PING.served_by(ping), methods.MOUNT.served_by(mount), methods.READ.served_by(read)]
    assert [(each.method.kind, each.handler) for each in served] == [("call", ping), ("stream", mount), ("read", read)]


def test_mypy_refuses_a_handler_of_another_method() -> None:
    served = [
        methods.OPEN.served_by(ping),  # type: ignore[arg-type]
        methods.OPEN.served_by(open_wrongly),  # type: ignore[arg-type]
        methods.PING.served_by(read),  # type: ignore[arg-type]
        methods.MOUNT.served_by(mount_from_the_other_end),  # type: ignore[arg-type]
    ]
    assert all(isinstance(each, Served) for each in served)


async def test_mypy_refuses_a_call_with_other_messages() -> None:
    network = MemoryNetwork()
    listener = await network.serve("node:0", [methods.PING.served_by(ping), methods.MOUNT.served_by(mount)])
    channel = network.connect(listener.address)
    answer = await channel.call(methods.PING, pb.PingRequest(partition=1), timeout_s=1)
    assert answer.full
    with pytest.raises(AttributeError):
        assert answer.last_transaction_id  # type: ignore[attr-defined]
    stream = channel.open(methods.MOUNT)
    with pytest.raises(TypeError, match="expected ClientMessage"):
        await stream.send(pb.ServerMessage())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected ClientMessage"):
        await stream.send(Encoded(pb.ServerMessage()))  # type: ignore[arg-type]
    await stream.send(Encoded(pb.ClientMessage()))
    await listener.close()


def test_each_method_has_its_own_name_and_kind() -> None:
    assert len(METHODS) > 20
    assert [name for name, count in Counter(method.name for method in METHODS).items() if count > 1] == []
    assert {method.kind for method in METHODS} == {"call", "read", "stream"}
