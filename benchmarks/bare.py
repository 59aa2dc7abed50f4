"""The same way without the platform: client, server and three storage processes, a write and an fdatasync at each, answered at the second of three.
No checksums, no locks, no ids, no sessions; nothing is verified and nothing can be read again.

The transport is the platform's own: its network, its streams, the messages and connections that it sends frames and blocks on. What an append costs
beyond this is what the platform does for it; what this costs is the machine's. Reported beside the platform's own figures, in turns with them, it
makes figures of different machines and hours comparable.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import uvloop

from benchmarks.setting import DATA_BYTES
from waltz_log.client import Lock
from waltz_log.core.formats.block import Block
from waltz_log.core.ports import Served
from waltz_log.processes import launch
from waltz_log.processes.grpc_environment import GRPC_ENVIRONMENT
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.grpc import GrpcNetwork
from waltz_log.transport.large_messages import AppendColumns, append_message, replicate_message

__all__ = ["BareClient", "bare_cluster"]

REPLICAS = 3
MAJORITY = 2
FRAME_TRANSACTIONS = 4096
FRAMES_IN_FLIGHT = 2
OVERHEAD = bytes(48)
"""Sent and written with each transaction, about the size of its record, lock and mark."""

ANSWER = pb.ServerMessage(result=pb.AppendResult(high_water_mark=1))


class BareClient:
    """A future for every transaction. Transactions that wait are sent in frames."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._waiting: deque[tuple[asyncio.Future[None], bytes]] = deque()
        self._sent: deque[list[asyncio.Future[None]]] = deque()
        self._wake = asyncio.Event()

    async def __aenter__(self) -> BareClient:
        self._channel = GrpcNetwork().connect(self._address)
        self._stream = self._channel.open(methods.MOUNT)
        self._tasks = [asyncio.ensure_future(self._send()), asyncio.ensure_future(self._receive())]
        for task in self._tasks:
            task.add_done_callback(self._ended)
        return self

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A process of the data path died, or its disk is full. Callers get this error instead of waiting for an answer that cannot come."""
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
                records = b"".join([part for _, data in taken for part in (OVERHEAD, data)])
                await self._stream.send(append_message(AppendColumns(1, b"", b"", b"", b"", records, b"")))

    async def _receive(self) -> None:
        while await self._stream.receive() is not None:
            for future in self._sent.popleft():
                future.set_result(None)
            self._wake.set()


@contextmanager
def bare_cluster(directory: Path) -> Iterator[str]:
    """The address of a server with its storage processes. When the context ends, they end and their files are removed."""
    directory.mkdir(parents=True)
    with ExitStack() as processes:
        processes.callback(shutil.rmtree, directory)
        storages = [processes.enter_context(_process("storage", str(directory / f"{number}.data"))) for number in range(REPLICAS)]
        yield processes.enter_context(_process("server", *storages))


@contextmanager
def _process(*arguments: str) -> Iterator[str]:
    # It ends when this process ends, for any reason.
    command = [sys.executable, "-I", "-S", launch.__file__, str(os.getpid()), sys.executable, "-m", "benchmarks.bare", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=GRPC_ENVIRONMENT | os.environ) as process:
        try:
            assert process.stdout is not None
            yield f"127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()


async def _store(path: str) -> None:
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)

    def keep(records: bytes) -> None:
        os.write(file, records)
        os.fdatasync(file)

    async def replicate(stream: methods.ServedReplicateStream) -> None:
        await stream.receive()  # the opening
        while (request := await stream.receive()) is not None:
            await asyncio.to_thread(keep, request.block.records)
            await stream.send(pb.ReplicateResponse(last_transaction_id=1))

    await _serve(methods.REPLICATE.served_by(replicate))


async def _relay(storages: list[str]) -> None:
    network = GrpcNetwork()

    async def mount(stream: methods.ServedMountStream) -> None:
        streams = [network.connect(address).open(methods.REPLICATE) for address in storages]
        opening = pb.ReplicateRequest(open=pb.ReplicateOpen(session=1))
        for each in streams:
            await each.send(opening)
        acknowledged = [0] * len(streams)
        progress = asyncio.Event()

        async def forward() -> None:
            while (message := await stream.receive()) is not None:
                block = replicate_message(Block(0, b"", bytes(message.append.records), 0))
                await asyncio.gather(*(each.send(block) for each in streams))

        async def receive(number: int) -> None:
            while await streams[number].receive() is not None:
                acknowledged[number] += 1
                progress.set()

        async def answer() -> None:
            """One task sends, because a stream carries one message at a time."""
            answered = 0
            while await progress.wait():
                progress.clear()
                while sorted(acknowledged)[-MAJORITY] > answered:
                    answered += 1
                    await stream.send(ANSWER)

        tasks = [asyncio.ensure_future(each) for each in (forward(), answer(), *map(receive, range(len(streams))))]
        try:
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                task.result()
        finally:
            for task in tasks:
                task.cancel()

    await _serve(methods.MOUNT.served_by(mount))


async def _serve(served: Served) -> None:
    listener = await GrpcNetwork().serve("127.0.0.1:0", [served])
    print(listener.address.rpartition(":")[2], flush=True)
    await asyncio.Event().wait()


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
