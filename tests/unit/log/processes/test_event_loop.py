"""Calls of gRPC are answered by a process whose event loop has much else to do (decision 197)."""

from __future__ import annotations

import asyncio
import math
import multiprocessing
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection

import grpc
import grpc.aio
import uvloop

from waltz_log.processes.event_loop import GRPC_READER, NodeLoop

STREAMS = 16
"""That send without end, as feeds do. Their events are more than one in a pass."""

CALLS = 10
PASS_S = 0.005
"""What else a pass of the loop does."""

LIMIT_S = 60.0


def _ask(pipe: Connection) -> None:
    """Reads the streams and makes the calls, one after the other; sends the seconds until the last answer."""

    async def read(channel: grpc.aio.Channel) -> None:
        async for _ in channel.unary_stream("/busy/Feed", None, None)(b""):
            pass

    async def ask() -> float:
        address = f"127.0.0.1:{pipe.recv()}"
        async with grpc.aio.insecure_channel(address) as feeding, grpc.aio.insecure_channel(address) as channel:
            feeds = [asyncio.create_task(read(feeding)) for _ in range(STREAMS)]
            await asyncio.sleep(1)
            began_s = time.monotonic()
            try:
                for _ in range(CALLS):
                    await channel.unary_unary("/busy/Answer", None, None)(b"", timeout=LIMIT_S)
                took_s = time.monotonic() - began_s
            except grpc.aio.AioRpcError as error:
                if error.code() != grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise
                took_s = math.inf
            for each in feeds:
                each.cancel()
            return took_s

    pipe.send(asyncio.run(ask()))


def _serve(make_loop: Callable[[], asyncio.AbstractEventLoop], pipe: Connection) -> None:
    """Serves in a loop of that kind; sends the port."""

    async def answer(_request: bytes, _context: object) -> bytes:
        return b""

    async def feed(_request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        while True:
            await context.write(bytes(1000))

    async def serve() -> None:
        server = grpc.aio.server()
        handlers = {"Answer": grpc.unary_unary_rpc_method_handler(answer), "Feed": grpc.unary_stream_rpc_method_handler(feed)}
        server.add_registered_method_handlers("busy", handlers)  # type: ignore[attr-defined]  # newer than its types
        pipe.send(server.add_insecure_port("127.0.0.1:0"))
        await server.start()
        while not pipe.poll():
            time.sleep(PASS_S)  # noqa: ASYNC251  # as frames of direct connections, which the loop processes first
            await asyncio.sleep(0)
        os._exit(0)  # the streams have no end

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(serve())


def _answered_s(make_loop: Callable[[], asyncio.AbstractEventLoop]) -> float:
    """Seconds from the first call to the last answer."""
    context = multiprocessing.get_context("spawn")
    to_server, of_server = context.Pipe()
    to_caller, of_caller = context.Pipe()
    processes = [
        context.Process(target=_serve, args=(make_loop, of_server), daemon=True),
        context.Process(target=_ask, args=(of_caller,), daemon=True),
    ]
    for each in processes:
        each.start()
    of_server.close()
    of_caller.close()
    try:
        to_caller.send(to_server.recv())
        return float(to_caller.recv()) if to_caller.poll(LIMIT_S) else math.inf
    finally:
        with suppress(OSError):  # it ended by itself
            to_server.send("enough")
        for each in processes:
            each.kill()
            each.join()


def test_calls_are_answered_sooner_beside_streams_than_in_the_loop_of_libuv_alone() -> None:
    """If this fails because both need as long, gRPC reads all bytes itself, and `NodeLoop` can go."""
    assert 3 * _answered_s(NodeLoop) < _answered_s(uvloop.new_event_loop)


def test_only_the_reader_of_grpc_is_changed() -> None:
    with asyncio.Runner(loop_factory=NodeLoop) as runner:
        runner.run(_read_other())


async def _read_other() -> None:
    reading, writing = socket.socketpair()
    reading.setblocking(False)
    loop = asyncio.get_running_loop()
    received: list[bytes] = []
    with reading, writing:
        loop.add_reader(reading, lambda: received.append(reading.recv(1)))
        writing.send(b"ab")
        while len(received) < 2:
            await asyncio.sleep(0)
        loop.remove_reader(reading)
    assert received == [b"a", b"b"]


def test_grpc_has_the_reader_that_the_loop_expects() -> None:
    seen = []

    class Recording(uvloop.Loop):
        def add_reader(self, fd: object, callback: Callable[..., object], *args: object) -> None:
            seen.append(type(getattr(getattr(callback, "func", callback), "__self__", None)).__name__)
            super().add_reader(fd, callback, *args)

    async def life() -> None:
        await grpc.aio.server().stop(None)

    with asyncio.Runner(loop_factory=Recording) as runner:
        runner.run(life())
    assert GRPC_READER in seen
