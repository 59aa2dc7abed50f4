"""Executors' reading from real storage nodes over gRPC: one that was left behind by a recovery, and logs that are trimmed under the reader."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar
from uuid import UUID

import pytest

from pyspark_waltz import channels, ranges
from pyspark_waltz.errors import DataLost, RangeUnreadable
from pyspark_waltz.ranges import read_range
from pyspark_waltz.tasks import LogRange
from waltz_log.client.base.background import Background
from waltz_log.core.formats.block import Block
from waltz_log.core.formats.records import encode_record
from waltz_log.core.ports import Listener, Served
from waltz_log.errors import Unavailable
from waltz_log.filesystem import FileSystemDisk, ThreadOffload
from waltz_log.storage import StorageNode, StorageSettings
from waltz_log.transport import methods
from waltz_log.transport.grpc import GrpcNetwork
from waltz_log.transport.grpc_channels import CHANNEL_OPTIONS
from waltz_log.transport.locating import Question, locate

T = TypeVar("T")

KEY = UUID(int=7)
MEBIBYTE = 1 << 20


class Clock:
    def now_ms(self) -> int:
        return 1_700_000_000_000


class Replica:
    """A storage node with one partition, listening, driven as the partition's owner drives it."""

    def __init__(self, directory: Path, call: Callable[[Coroutine[Any, Any, Any]], Any], *, segment_bytes: int = 64 * MEBIBYTE) -> None:
        self._call = call
        directory.mkdir()
        disk = FileSystemDisk(directory)
        StorageNode.create(disk, Clock(), KEY, 1)
        settings = StorageSettings(coordinator="none", name=directory.name, directory=directory, segment_bytes=segment_bytes)
        self.offload = ThreadOffload(2)
        self.node = StorageNode(settings, disk, Clock(), self.offload)
        self._goes_on: asyncio.Event | None = None
        self._messages = 0
        self.listener: Listener = call(self._open())

    async def _open(self) -> Listener:
        await self.node.open()
        served = [Served(each.method, self._held(each.handler)) if each.method is methods.READ else each for each in self.node.service()]
        return await GrpcNetwork().serve("127.0.0.1:0", served)

    def _held(self, read: Callable[..., Awaitable[Any]]) -> Callable[[Any, Any], Awaitable[None]]:
        """After `hold_reads`, its number of messages of a read is sent, and the next one when reads go on."""

        async def held(request: Any, stream: Any) -> None:
            sent, send = 0, stream.send

            async def send_or_wait(message: Any) -> None:
                nonlocal sent
                sent += 1
                if self._goes_on is not None and sent > self._messages:
                    await self._goes_on.wait()
                await send(message)

            await read(request, SimpleNamespace(send=send_or_wait))

        return held

    def hold_reads(self, messages: int) -> None:
        async def hold() -> None:
            self._messages, self._goes_on = messages, asyncio.Event()

        self._call(hold())

    def go_on(self) -> None:
        async def release() -> None:
            assert self._goes_on is not None
            self._goes_on.set()

        self._call(release())

    @property
    def address(self) -> str:
        return self.listener.address

    def join(self, session: int, low_water_mark: int) -> None:
        """Becomes a clean member of the session."""

        async def join() -> None:
            store = await self.node.partition(0)
            await store.open_session(session)
            if store.last_id > low_water_mark:
                await store.truncate(session, low_water_mark)
            await store.set_low_water_mark(session, low_water_mark)

        self._call(join())

    def append(self, session: int, first: int, rows: list[bytes], *, committed: bool = True) -> None:
        """`committed`: the owner has announced it, so that readers may see it."""
        records = [encode_record(1, 1, 0, first + n, 0, data, transaction_id=first + n) for n, data in enumerate(rows)]
        block = Block(first, struct.pack(f">{len(records)}i", *map(len, records)), b"".join(records), 1_700_000_000_000)

        async def append() -> None:
            store = await self.node.partition(0)
            appender = await store.attach(session, 64 * MEBIBYTE)
            await store.append(appender, block)
            while store.last_id < block.last_transaction_id:
                await appender.changed()
            store.detach(appender)
            if committed:
                store.committed_mark.rise(block.last_transaction_id)

        self._call(append())

    def trim(self, first: int) -> int:
        async def trim() -> int:
            return await (await self.node.partition(0)).trim(first)

        return int(self._call(trim()))

    def close(self) -> None:
        self._call(self.listener.close())
        self._call(self.node.close())
        self.offload.close()


@pytest.fixture
def background() -> Iterator[Background]:
    found = Background()
    yield found
    found.close()


@pytest.fixture
def replica(tmp_path: Path, background: Background) -> Iterator[Callable[..., Replica]]:
    made: list[Replica] = []

    def make(name: str, **settings: Any) -> Replica:
        made.append(Replica(tmp_path / name, background.call, **settings))
        return made[-1]

    yield make
    for each in made:
        each.close()


def task(*replicas: Replica, last: int, session: int, timeout_ms: int = 5000, **changes: Any) -> LogRange:
    addresses = tuple(each.address for each in replicas)
    values = {"partition": 0, "first": 0, "fail_on_data_loss": True, "cluster_key": KEY.bytes, **changes}
    return LogRange(last=last, session=session, replicas=addresses, fetch_timeout_ms=timeout_ms, **values)


def data_of(read: LogRange) -> list[bytes]:
    return [data for batch in read_range(read) for data in batch.column("data").to_pylist()]


def test_a_replica_left_behind_with_other_transactions_under_the_same_ids_never_serves_them(
    replica: Callable[..., Replica], background: Background
) -> None:
    left_behind, second, third = replica("left-behind"), replica("second"), replica("third")
    committed, lost, won = [b"committed"] * 10, [b"lost"] * 5, [b"won"] * 5
    for each in (left_behind, second, third):
        each.join(1, -1)
        each.append(1, 0, committed)
    # The owner of session 1 dies while only one replica has its last block. The two others recover without it, and other transactions win the ids.
    left_behind.append(1, 10, lost, committed=False)
    for each in (second, third):
        each.join(2, 9)
        each.append(2, 10, won)

    assert data_of(task(left_behind, second, third, last=14, session=2)) == committed + won
    assert data_of(task(left_behind, last=9, session=1)) == committed
    with pytest.raises(RangeUnreadable, match="partition=0 first=10 last=14"):
        data_of(task(left_behind, last=14, session=1, timeout_ms=3_000))
    background.call(left_behind.node.partition(0)).committed_mark.rise(14)
    assert data_of(task(left_behind, last=14, session=1)) == committed + lost, "with a wrong mark, only the session tells that its tail is dirty"
    with pytest.raises(RangeUnreadable, match=r"replica of an older session, .*: partition=0 asked=2 session=1"):
        data_of(task(left_behind, last=14, session=2, timeout_ms=600))

    def places(*replicas: Replica) -> Any:
        network = GrpcNetwork()
        question = {0: Question(2, 14, first=0, last=14, max_bytes=10**6)}
        return background.call(locate(network.connect, {0: [each.address for each in replicas]}, KEY.bytes, question, 0.5))

    assert places(left_behind, second)[0].bytes == 10 * 49 + 5 * 43
    with pytest.raises(Unavailable, match="replica of an older session"):
        places(left_behind)

    left_behind.join(2, 9)
    left_behind.append(2, 10, won)
    assert data_of(task(left_behind, last=14, session=2)) == committed + won, "once it caught up it serves like the others"


def test_segments_trimmed_under_the_reader_are_reported_exactly_or_passed_over(
    replica: Callable[..., Replica], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "BATCH_BYTES", MEBIBYTE)
    monkeypatch.setattr(channels, "OPTIONS", [*CHANNEL_OPTIONS, ("grpc.http2.lookahead_bytes", MEBIBYTE)])
    blocks, rows = 40, 8
    for number, strict in enumerate((True, False)):
        nodes = [replica(f"trimmed-{number}-{n}", segment_bytes=2 * MEBIBYTE) for n in range(2)]
        for node in nodes:
            node.join(1, -1)
            for n in range(blocks):
                node.append(1, n * rows, [b"%d:" % (n * rows + k) + bytes(64 * 1024) for k in range(rows)])
            node.join(2, blocks * rows - 1)
        for node in nodes:
            node.hold_reads(4)  # otherwise the transport may have everything before anything is trimmed
        reading = read_range(task(*nodes, last=blocks * rows - 1, session=2, fail_on_data_loss=strict, timeout_ms=60_000))
        read = next(reading).column("transaction_id").to_pylist()
        (begins,) = {node.trim(blocks * rows - 20) for node in nodes}
        for node in nodes:
            node.go_on()
        assert begins > 100
        lost: DataLost | None = None
        try:
            for batch in reading:
                read += batch.column("transaction_id").to_pylist()
        except DataLost as error:
            lost = error
        gap = sorted(set(range(blocks * rows)) - set(read))
        assert gap, "the reader was ahead of the trimming: the test shows nothing"
        assert read == sorted(set(read))
        if strict:
            assert lost is not None
            # It names what was gone at the check: the segments go one by one, each of three blocks.
            assert (lost.partition, lost.first) == (0, read[-1] + 1)
            assert lost.last in range(3 * rows - 1, begins, 3 * rows)
            assert lost.last >= lost.first
        else:
            assert lost is None
            assert gap == list(range(gap[0], begins))
