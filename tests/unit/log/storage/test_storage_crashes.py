"""A short life of a storage node, crashed before every single operation of its disk; what the next start finds is compared with a plain model.

Acknowledged is there; what was not acknowledged is there whole or not at all; fences and marks never go back; the partition takes the next append.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from uuid import UUID

import pytest

from waltz_log.core.block import Block
from waltz_log.core.control_format import SessionMark
from waltz_log.core.records import encode_record
from waltz_log.errors import StorageFailed
from waltz_log.storage import StorageNode, StorageSettings
from waltz_log.storage.partition import PartitionStore
from waltz_log.testing.disk import Operation, SimulatedDisk
from waltz_log.testing.offload import run_in_place

KEY = UUID("00112233-4455-6677-8899-aabbccddeeff")


class FixedClock:
    def now_ms(self) -> int:
        return 1_600_000_000_000


def block(first: int, sizes: list[int], *, session: int) -> Block:
    records = [encode_record(session, 1, 0, first + n, n, bytes([first % 251]) * size, first + n) for n, size in enumerate(sizes)]
    return Block(first, struct.pack(f">{len(records)}i", *map(len, records)), b"".join(records), 1000 + first)


@dataclass
class Model:
    """What was acknowledged, and what the step in progress may have done besides."""

    records: list[bytes] = field(default_factory=list)
    fence: int = -1
    mark: SessionMark = field(default_factory=SessionMark)
    last_may_be: range = field(default_factory=lambda: range(-1, 0))
    appended: list[bytes] = field(default_factory=list)
    fence_may_be: int = -1
    mark_may_be: SessionMark = field(default_factory=SessionMark)

    def settle(self) -> None:
        everything = self.records + self.appended
        self.records, self.appended = everything[: self.last_may_be[-1] + 1], []
        self.fence, self.mark = self.fence_may_be, self.mark_may_be
        self.last_may_be = range(len(self.records) - 1, len(self.records))


class Life:
    """Carries out steps on a store and in the model."""

    def __init__(self, store: PartitionStore, model: Model) -> None:
        self.store = store
        self.model = model

    async def open(self, session: int) -> None:
        self.model.fence_may_be = session
        await self.store.open_session(session)
        self.model.settle()

    async def append(self, session: int, *sizes: list[int]) -> None:
        last = len(self.model.records) - 1
        blocks, first = [], last + 1
        for each in sizes:
            blocks.append(block(first, each, session=session))
            first += len(each)
        for each_block in blocks:
            offset = 0
            for (length,) in struct.iter_unpack(">i", each_block.lengths):
                self.model.appended.append(each_block.records[offset : offset + length])
                offset += length
        # Records of one block may survive in part: each is whole by itself, and none of them was acknowledged.
        self.model.last_may_be = range(last, last + len(self.model.appended) + 1)
        appender = await self.store.attach(session, 1 << 20)
        for each_block in blocks:
            await self.store.append(appender, each_block)
        while appender.acknowledged != first - 1:
            await appender.changed()
            if appender.failed is not None:
                raise appender.failed
        self.model.settle()

    async def truncate(self, session: int, last: int) -> None:
        self.model.last_may_be = range(last, len(self.model.records))
        assert await self.store.truncate(session, last) == last
        del self.model.records[last + 1 :]
        self.model.last_may_be = range(last, last + 1)

    async def clean(self, session: int, mark: int) -> None:
        self.model.mark_may_be = SessionMark(session, mark, len(self.model.records) - 1)
        await self.store.set_low_water_mark(session, mark)
        self.model.settle()


async def _life(life: Life) -> None:
    await life.open(1)
    await life.clean(1, -1)
    await life.append(1, [10, 0, 300])
    await life.append(1, [50] * 4, [700, 900])
    await life.append(1, [1800])
    await life.append(1, [1500, 900], [20])
    await life.append(1, [3000], [100])
    await life.open(2)
    await life.truncate(2, 11)
    await life.append(2, [400, 30])
    await life.truncate(2, 5)
    await life.append(2, [5] * 3, [2500])
    await life.clean(2, 9)
    await life.append(2, [77])


async def _across_a_checkpoint(life: Life) -> None:
    await life.open(1)
    await life.append(1, [0] * 990)
    await life.append(1, [1] * 9, [2] * 6)
    await life.append(1, [3] * 5)
    await life.truncate(1, 995)
    await life.append(1, [4] * 20)


def node_on(disk: SimulatedDisk, segment_bytes: int) -> StorageNode:
    settings = StorageSettings(name="storage-0", directory=Path("unused"), cluster="test", segment_bytes=segment_bytes)
    return StorageNode(settings, disk, FixedClock(), run_in_place)


async def lived(life: Callable[[Life], Awaitable[None]], segment_bytes: int, crash_at: int | None) -> tuple[SimulatedDisk, Model, int]:
    """Runs the life until the disk does its `crash_at`th operation, which is not done any more, nor is any after it."""
    disk = SimulatedDisk()
    StorageNode.create(disk, FixedClock(), KEY, 1)
    begun = len(disk.operations)

    def before(operation: Operation) -> None:
        if crash_at is not None and len(disk.operations) > begun + crash_at:
            raise OSError(5, "crash", operation.path)

    disk.before = before
    model = Model()
    node = node_on(disk, segment_bytes)
    try:
        await node.open(KEY)
        await life(Life(await node.partition(0), model))
    except StorageFailed:
        assert crash_at is not None
    return disk, model, len(disk.operations) - begun


async def check(disk: SimulatedDisk, model: Model, segment_bytes: int) -> None:
    node = node_on(disk, segment_bytes)
    await node.open(KEY)
    store = await node.partition(0)
    told = store.statistics()
    assert told.last_transaction_id in model.last_may_be
    assert told.fence in (model.fence, model.fence_may_be)
    state = await store.open_session(50)
    assert state.mark in (model.mark, model.mark_may_be)
    expected = (model.records + model.appended)[: told.last_transaction_id + 1]
    following = block(told.last_transaction_id + 1, [9, 9], session=50)
    appender = await store.attach(50, 1 << 20)
    await store.append(appender, following)
    while appender.acknowledged is None:
        await appender.changed()
        assert appender.failed is None
    found = [part async for run in store.read(-1, 50, 0, told.last_transaction_id + 2, 1 << 20) for part in run]
    assert b"".join(part.records for part in found) == b"".join(expected) + following.records
    await node.close()


@pytest.mark.parametrize(("life", "segment_bytes"), [(_life, 4096), (_across_a_checkpoint, 1 << 20)])
async def test_a_crash_before_any_operation_loses_nothing_acknowledged(life: Callable[[Life], Awaitable[None]], segment_bytes: int) -> None:
    disk, model, operations = await lived(life, segment_bytes, None)
    await check(disk.crash(), model, segment_bytes)
    assert operations > 40
    for crash_at in range(operations):
        disk, model, _ = await lived(life, segment_bytes, crash_at)
        for survivor in (disk.crash(), disk.crash(keep=True)):
            await check(survivor, model, segment_bytes)
    # What is kept, lost and torn by chance: the same crash points, other halves.
    for seed in range(6):
        for crash_at in range(operations):
            disk, model, _ = await lived(life, segment_bytes, crash_at)
            await check(disk.crash(Random(1000 * seed + crash_at)), model, segment_bytes)


async def test_every_torn_prefix_of_an_unsynced_append_opens() -> None:
    disk = SimulatedDisk()
    StorageNode.create(disk, FixedClock(), KEY, 1)
    node = node_on(disk, 1 << 20)
    await node.open(KEY)
    model = Model()
    life = Life(await node.partition(0), model)
    await life.open(1)
    await life.append(1, [3, 4])
    before = disk.content("0/0000000000000000000.seg")
    torn = block(2, [5, 0, 6], session=1)
    model.appended = [torn.records[:45], torn.records[45:85], torn.records[85:]]
    for size in range(len(torn.records) + 1):
        after = disk.crash(keep=True)
        disk._dead = False
        after.replace("0/0000000000000000000.seg", before + torn.records[:size])
        model.last_may_be = range(1 + (size >= 45) + (size >= 85) + (size >= 131), 5)
        await check(after, model, 1 << 20)
    await node.close()
