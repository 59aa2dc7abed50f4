"""A peer that sends malformed requests, or makes a handler fail, gets few lines in the log of the node, and learns nothing of the error's text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest

from waltz_log.core.ports import Listener
from waltz_log.line_limit import LineLimit
from waltz_log.transport import failed_calls, methods
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.grpc import GrpcNetwork

CALLS = 200


@pytest.fixture(autouse=True)
def fresh_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failed_calls, "_violations", LineLimit(2, 60))
    monkeypatch.setattr(failed_calls, "_failures", LineLimit(2, 20))


@pytest.fixture
async def listener() -> AsyncIterator[Listener]:
    async def fail(request: pb.BoundRequest) -> pb.BoundResponse:
        raise KeyError("the payload of another caller")

    network = GrpcNetwork(-1)
    listening = await network.serve("127.0.0.1:0", [methods.BOUND.served_by(fail)])
    yield listening
    await listening.close()


async def _send(address: str, data: bytes) -> list[str]:
    found = []
    async with grpc.aio.insecure_channel(address) as channel:
        for _ in range(CALLS):
            try:
                await channel.unary_unary(methods.BOUND.name, bytes, bytes)(data, timeout=10)
            except grpc.aio.AioRpcError as error:
                found.append(str(error.details()))
    return found


@pytest.mark.parametrize("data", [b"\xff\xff\xff", b"\x0a\xff\xff\xff\xff\x7f"], ids=["no message", "truncated"])
async def test_malformed_requests_write_few_lines_without_a_trace(listener: Listener, data: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    answers = await _send(listener.address, data)
    assert len(answers) == CALLS
    assert all("not a message of" in each for each in answers)
    await asyncio.sleep(0)
    shown = capfd.readouterr()
    lines = (shown.out + shown.err).splitlines()
    assert sum("request refused as malformed" in line for line in lines) == 2
    assert "Traceback" not in shown.out + shown.err
    assert len(lines) < 5


async def test_unexpected_errors_write_few_traces_and_show_the_caller_their_class_alone(
    listener: Listener, capfd: pytest.CaptureFixture[str]
) -> None:
    answers = await _send(listener.address, pb.BoundRequest().SerializeToString())
    assert len(answers) == CALLS
    assert {"KeyError" in each for each in answers} == {True}
    assert not any("payload" in each for each in answers)
    shown = capfd.readouterr()
    assert (shown.out + shown.err).count("call failed") == 2
