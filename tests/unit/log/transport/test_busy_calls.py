"""Calls of one procedure do not wait for those of another, however many there are and however busy the event loop is (decision 197)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import grpc.aio
import pytest

from waltz_log.core.ports import Network
from waltz_log.core.topics.sharding import Shard
from waltz_log.processes.health import health_handler
from waltz_log.processes.ports import free_port
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.forwarding import WorkerNetwork
from waltz_log.transport.grpc import GrpcNetwork

WAITING = 100
PASS_S = 0.005
"""What a pass of the loop does besides: with appends at full speed it is ten times as much."""

PASSES_MAX = 40
"""For a call from the connection to the answer, at the client and the server, which share the loop. One of `WAITING` calls in the same queue is
accepted in four passes."""


async def _ready() -> bool:
    return True


def _alone(_: Path) -> Network:
    return GrpcNetwork(-1, beside=health_handler(_ready))


def _with_workers(folder: Path) -> Network:
    with closing(free_port()) as held:
        address = f"127.0.0.1:{held.number}"
    return WorkerNetwork(Shard(0, 1), [address], [f"unix:{folder}/0"], direct_port=-1, beside=health_handler(_ready))


async def _resolve(_: pb.ResolveRequest) -> pb.ResolveResponse:
    return pb.ResolveResponse()


async def _read(_: pb.TransactionRequest) -> pb.TransactionResponse:
    return pb.TransactionResponse()


async def _passes_until(answered: asyncio.Task[object]) -> int:
    passes = 0
    while not answered.done():
        time.sleep(PASS_S)  # noqa: ASYNC251  # frames of appends, which the loop processes in a pass
        passes += 1
        await asyncio.sleep(0)
    await answered
    return passes


@pytest.mark.parametrize("asked", ["transactions", "health"])
@pytest.mark.parametrize("network_of", [_alone, _with_workers])
async def test_a_call_is_answered_while_many_of_another_procedure_wait(network_of: Callable[[Path], Network], asked: str, tmp_path: Path) -> None:
    network = network_of(tmp_path)
    listener = await network.serve("127.0.0.1:0", [methods.RESOLVE.served_by(_resolve), methods.TRANSACTIONS.served_by(_read)])
    channel = network.connect(listener.address)
    waiting = [asyncio.create_task(channel.call(methods.RESOLVE, pb.ResolveRequest(), timeout_s=60)) for _ in range(WAITING)]
    await asyncio.sleep(0)
    other = network.connect(listener.address)

    async def ask() -> object:
        if asked == "transactions":
            return await other.call(methods.TRANSACTIONS, pb.TransactionRequest(), timeout_s=60)
        async with grpc.aio.insecure_channel(listener.address) as probing:
            return await probing.unary_unary("/grpc.health.v1.Health/Check", None, None)(b"", timeout=60)

    passes = await _passes_until(asyncio.create_task(ask()))
    left = sum(not each.done() for each in waiting)
    for each in waiting:
        each.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    await asyncio.gather(channel.close(), other.close(), listener.close())
    assert passes <= PASSES_MAX
    assert left > WAITING // 4, "the calls of the other procedure waited"


async def test_a_procedure_that_is_not_offered_is_refused_as_before() -> None:
    listener = await GrpcNetwork(-1).serve("127.0.0.1:0", [methods.RESOLVE.served_by(_resolve)])
    async with grpc.aio.insecure_channel(listener.address) as channel:
        for name in (methods.SERVER_STATUS.name, "/no.such/Procedure"):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await channel.unary_unary(name, None, None)(b"", timeout=30)
            assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
    await listener.close()
