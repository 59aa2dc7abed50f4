"""The same way without the platform: client, server and three storage processes over gRPC, a write and an fdatasync at each, answered at the second
of three. No checksums, no locks, no ids, no sessions; nothing is verified and nothing can be read again.

What an append costs beyond this is what the platform does for it; what this costs is the machine's. Reported beside the platform's own figures, in
turns with them, it makes figures of different machines and hours comparable."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import uvloop

from benchmarks.setting import DATA_BYTES
from waltz_log.client import Lock
from waltz_log.processes import launch

__all__ = ["BareClient", "bare_cluster"]

METHOD = "/bare/append"
REPLICAS = 3
MAJORITY = 2
FRAME_TRANSACTIONS = 4096
FRAMES_IN_FLIGHT = 2
OVERHEAD = bytes(48)
"""Sent and written with each transaction, about what its record, lock and mark need."""

_aio: Any = grpc.aio
"""As its types do not know raw bytes."""

OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class BareClient:
    """A future for every transaction, frames of what waits."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._waiting: deque[tuple[asyncio.Future[None], bytes]] = deque()
        self._sent: deque[list[asyncio.Future[None]]] = deque()
        self._wake = asyncio.Event()

    async def __aenter__(self) -> BareClient:
        self._channel = _aio.insecure_channel(self._address, options=OPTIONS)
        self._stream = self._channel.stream_stream(METHOD)()
        self._tasks = [asyncio.ensure_future(self._send()), asyncio.ensure_future(self._receive())]
        for task in self._tasks:
            task.add_done_callback(self._ended)
        return self

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A process of the way died, or its disk is full: no caller waits for an answer that cannot come."""
        error = RuntimeError("the bare way ended" if task.cancelled() else f"the bare way broke: {task.exception()}")
        for future in (*(each for sent in self._sent for each in sent), *(each for each, _ in self._waiting)):
            if not future.done():
                future.set_exception(error)

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._channel.close()

    async def append_nowait(self, partition: int, data: bytes, *, write_locks: Sequence[Lock] = ()) -> asyncio.Future[None]:
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((future, data))
        self._wake.set()
        return future

    async def append(self, partition: int, data: bytes, *, write_locks: Sequence[Lock] = ()) -> None:
        await (await self.append_nowait(partition, data))

    async def _send(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting and len(self._sent) < FRAMES_IN_FLIGHT:
                taken = [self._waiting.popleft() for _ in range(min(len(self._waiting), FRAME_TRANSACTIONS))]
                self._sent.append([future for future, _ in taken])
                await self._stream.write(b"".join([part for _, data in taken for part in (OVERHEAD, data)]))

    async def _receive(self) -> None:
        while await self._stream.read() is not _aio.EOF:
            for future in self._sent.popleft():
                future.set_result(None)
            self._wake.set()


@contextmanager
def bare_cluster(directory: Path) -> Iterator[str]:
    """The address of a server with its storages, all of them processes of their own, ended with the context; so is what they wrote."""
    directory.mkdir(parents=True)
    with ExitStack() as processes:
        processes.callback(shutil.rmtree, directory)
        storages = [processes.enter_context(_process("storage", str(directory / f"{number}.data"))) for number in range(REPLICAS)]
        yield processes.enter_context(_process("server", *storages))


@contextmanager
def _process(*arguments: str) -> Iterator[str]:
    # It ends with this process, whatever ends it.
    command = [sys.executable, "-I", "-S", launch.__file__, str(os.getpid()), sys.executable, "-m", "benchmarks.bare", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()


async def _store(path: str) -> None:
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)

    def keep(frame: bytes) -> None:
        os.write(file, frame)
        os.fdatasync(file)

    async def handle(frames: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
        async for frame in frames:
            await asyncio.to_thread(keep, frame)
            yield b"1"

    await _serve(handle)


async def _relay(storages: list[str]) -> None:
    async def handle(frames: AsyncIterator[bytes], context: Any) -> None:
        calls = [_aio.insecure_channel(address, options=OPTIONS).stream_stream(METHOD)() for address in storages]
        acknowledged = [0] * len(calls)
        answered = 0

        async def receive(number: int) -> None:
            nonlocal answered
            while await calls[number].read() is not _aio.EOF:
                acknowledged[number] += 1
                while sorted(acknowledged)[-MAJORITY] > answered:
                    answered += 1
                    await context.write(b"1")

        tasks = [asyncio.ensure_future(receive(number)) for number in range(len(calls))]
        try:
            async for frame in frames:
                await asyncio.gather(*(call.write(frame) for call in calls))
        finally:
            for task in tasks:
                task.cancel()

    await _serve(handle)


async def _serve(handle: Any) -> None:
    server = _aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("bare", {"append": grpc.stream_stream_rpc_method_handler(handle)})])
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await server.wait_for_termination()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bare", description=f"One process of the bare way, {DATA_BYTES} bytes a transaction.")
    parser.add_argument("role", choices=("server", "storage"))
    parser.add_argument("arguments", nargs="+", help="the storages' addresses, or the storage's file")
    chosen = parser.parse_args()
    life = _relay(chosen.arguments) if chosen.role == "server" else _store(chosen.arguments[0])
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(life)


if __name__ == "__main__":
    main()
