"""A storage node and the simplest model of what it must keep: a list of records and a few numbers for each partition. `StorageLife` applies steps to
both. While a step runs, the model states what a check may find of it; after the acknowledgment, what it must find. `check` opens the disk that a
crash or a kill left and compares: acknowledged data is there; other data is there completely, record by record in order, or not at all; fences, marks
and the count of starts never went back; each partition accepts the next append and has it after the next crash.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from struct import pack
from typing import Any, Final
from uuid import UUID

import structlog

from verification.log_settings import kept_log_settings
from waltz_log.core.flushing import Flushing
from waltz_log.core.formats.block import Block
from waltz_log.core.formats.control_format import SessionMark
from waltz_log.core.formats.records import encode_record
from waltz_log.core.ports import Disk
from waltz_log.storage import StorageNode, StorageSettings
from waltz_log.storage.replica.partition_store import PartitionStore
from waltz_log.testing.disk import SimulatedDisk
from waltz_log.testing.offload import run_in_place

__all__ = [
    "KEY",
    "Expected",
    "FixedClock",
    "PartitionModel",
    "StorageLife",
    "append",
    "block_of",
    "check",
    "node_on",
    "read_all",
    "records_of",
    "silent_logs",
]

KEY: Final = UUID("00112233-4455-6677-8899-aabbccddeeff")
CHECKING_SESSION: Final = 1000


class FixedClock:
    def now_ms(self) -> int:
        return 1_600_000_000_000


@contextmanager
def silent_logs() -> Iterator[None]:
    """Thousands of openings log the same events. Writing the events takes longer than the openings."""
    with kept_log_settings():
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
        yield


def node_on(disk: Disk, **settings: Any) -> StorageNode:
    """A node in the smallest segments there are, unless the settings say otherwise, which does nothing by itself and runs its disk calls in place."""
    values = {"segment_bytes": 4096, "preallocate_bytes": 0, "scrub_bytes_per_s": 0} | settings
    return StorageNode(StorageSettings(name="storage-0", directory=Path("unused"), coordinator="test", **values), disk, FixedClock(), run_in_place)


def block_of(partition: int, first: int, sizes: Sequence[int], *, salt: int, time_ms: int | None = None) -> Block:
    """A block with records of these data sizes. `salt` makes records with the same ids differ."""
    records = [
        encode_record(salt, 1, partition, first + n, (first + n) % 7, ((first + n) * 7 + salt).to_bytes(8, "big")[-1:] * size, first + n)
        for n, size in enumerate(sizes)
    ]
    return Block(first, pack(f">{len(records)}i", *map(len, records)), b"".join(records), 1000 + 100 * first if time_ms is None else time_ms)


def records_of(block: Block) -> list[bytes]:
    found, start = [], 0
    for place in range(block.count):
        end = start + int.from_bytes(block.lengths[4 * place : 4 * place + 4], "big")
        found.append(block.records[start:end])
        start = end
    return found


@dataclass(frozen=True, slots=True)
class PartitionModel:
    """`records` begins at id 0, also where the log was trimmed. The ranges and tuples hold what may be found; outside of steps that is one value, but
    for what is `received` and not synced: of that any beginning may be found, and the replica must say that it may lack the rest."""

    records: tuple[bytes, ...] = ()
    lasts: range = field(default_factory=lambda: range(-1, 0))
    firsts: range = field(default_factory=lambda: range(1))
    fences: tuple[int, ...] = (-1,)
    marks: tuple[SessionMark, ...] = (SessionMark(),)
    received: int = -1

    @property
    def last(self) -> int:
        return self.lasts[-1]

    def settled(self, last: int) -> PartitionModel:
        """The current step, which may have ended in several states, has reached the last one."""
        return replace(
            self,
            records=self.records[: last + 1],
            lasts=range(last, last + 1),
            firsts=self.firsts[-1:],
            fences=self.fences[-1:],
            marks=self.marks[-1:],
            received=-1,
        )


@dataclass(frozen=True, slots=True)
class Expected:
    """`counts`: how many partitions there may be, 0 for no node at all; `start`: the last start that was counted for certain."""

    counts: tuple[int, ...] = (0,)
    start: int = 0
    partitions: tuple[PartitionModel, ...] = ()


class StorageLife:
    """Steps of a node on one disk. A scenario overrides `steps`, and `before` for the preparation."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings
        self.disk: Disk = SimulatedDisk()
        self.expected = Expected()
        self.node = node_on(self.disk, **settings)

    async def steps(self) -> None:
        raise NotImplementedError

    async def before(self) -> None:
        return

    async def prepare(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        await self.before()

    async def run(self, disk: SimulatedDisk) -> None:
        assert disk is self.disk
        await self.steps()

    def observe(self) -> Expected:
        return self.expected

    async def recover(self, disk: SimulatedDisk) -> None:
        if StorageNode.exists(disk):
            node = node_on(disk, **self.settings)
            await node.open(KEY)
            await node.close()

    # ---- steps -----------------------------------------------------------------------------------------------------------------------------------

    def create(self, partitions: int) -> None:
        models = tuple(PartitionModel() for _ in range(partitions))
        self.expected = Expected((0, partitions), 0, models)
        StorageNode.create(self.disk, FixedClock(), KEY, partitions)
        self.expected = Expected((partitions,), 0, models)

    async def open(self, partitions: int | None = None) -> None:
        """Opens the node, then makes room for this number of partitions."""
        before = self.expected
        if partitions is not None and partitions > before.counts[-1]:
            added = tuple(PartitionModel() for _ in range(partitions - before.counts[-1]))
            self.expected = replace(before, counts=(*before.counts, partitions), partitions=before.partitions + added)
        self.node = node_on(self.disk, **self.settings)
        await self.node.open(KEY, partitions)
        assert self.node.start > before.start
        self.expected = replace(self.expected, counts=self.expected.counts[-1:], start=self.node.start)

    async def close(self) -> None:
        await self.node.close()

    def model(self, partition: int) -> PartitionModel:
        return self.expected.partitions[partition]

    def _may(self, partition: int, model: PartitionModel) -> None:
        models = self.expected.partitions
        self.expected = replace(self.expected, partitions=(*models[:partition], model, *models[partition + 1 :]))

    async def _step(self, partition: int, may: PartitionModel, last: int, step: Awaitable[Any]) -> None:
        self._may(partition, may)
        await step
        self._may(partition, may.settled(last))

    async def session(self, partition: int, session: int) -> None:
        model = self.model(partition)
        store = await self.node.partition(partition)
        await self._step(partition, replace(model, fences=(*model.fences, session)), model.last, store.open_session(session))

    async def append(self, partition: int, session: int, *sizes: Sequence[int], salt: int | None = None) -> None:
        """One write round with a block for each list of data sizes."""
        model = self.model(partition)
        blocks, first = [], model.last + 1
        for each in sizes:
            blocks.append(block_of(partition, first, each, salt=session if salt is None else salt))
            first += len(each)
        records = model.records + tuple(record for each in blocks for record in records_of(each))
        may = replace(model, records=records, lasts=range(model.lasts[0], first))
        if session > model.fences[-1]:
            may = replace(may, fences=(*model.fences, session))
        await self._step(partition, may, first - 1, append(await self.node.partition(partition), session, blocks))

    async def receive(self, partition: int, session: int, *sizes: Sequence[int]) -> None:
        """As `append`, acknowledged before it is synced."""
        model = self.model(partition)
        blocks, first = [], model.last + 1
        for each in sizes:
            blocks.append(block_of(partition, first, each, salt=session))
            first += len(each)
        records = model.records + tuple(record for each in blocks for record in records_of(each))
        may = replace(model, records=records, lasts=range(model.lasts[0], first))
        self._may(partition, may)
        await append(await self.node.partition(partition), session, blocks, Flushing(3600.0, 1 << 40))
        self._may(partition, replace(may, received=first - 1))

    async def flush(self, partition: int) -> None:
        model = self.model(partition)
        store = await self.node.partition(partition)
        store.flush()
        for _ in range(1000):
            if store.last_id == model.last:
                break
            await asyncio.sleep(0)
        assert store.last_id == model.last, f"not synced: {store.last_id} of {model.last}"
        self._may(partition, model.settled(model.last))

    async def truncate(self, partition: int, session: int, last: int) -> None:
        model = self.model(partition)
        store = await self.node.partition(partition)
        lowest = min(last, model.lasts[0])
        await self._step(partition, replace(model, lasts=range(lowest, model.last + 1)), last, store.truncate(session, last))

    async def trim(self, partition: int, first: int) -> None:
        """Removes whole segments below the id."""
        model = self.model(partition)
        store = await self.node.partition(partition)
        old = model.firsts[-1]
        self._may(partition, replace(model, firsts=range(old, first + 1)))
        kept = await store.trim(first)
        assert old <= kept <= first, f"trimmed to {kept}"
        self._may(partition, replace(model, firsts=range(kept, kept + 1)))

    async def begin(self, partition: int, session: int, first: int) -> None:
        """Begins the log again, above its end."""
        model = self.model(partition)
        store = await self.node.partition(partition)
        records = model.records + (b"",) * (first - 1 - model.last)
        may = replace(model, records=records, lasts=range(model.last, first), firsts=range(model.firsts[-1], first + 1))
        if session > model.fences[-1]:
            may = replace(may, fences=(*model.fences, session))
        await self._step(partition, may, first - 1, store.begin(session, first))

    async def clean(self, partition: int, session: int, mark: int) -> None:
        model = self.model(partition)
        store = await self.node.partition(partition)
        new = SessionMark(session, mark, model.last)
        await self._step(partition, replace(model, marks=(*model.marks, new)), model.last, store.set_low_water_mark(session, mark))


async def append(store: PartitionStore, session: int, blocks: Sequence[Block], flushing: Flushing | None = None) -> None:
    """Returns when everything is acknowledged (as received, if it is flushed later). Raises the error that prevents it."""
    appender = await store.attach(session, 1 << 24)
    appender.flushing = flushing
    for block in blocks:
        await store.append(appender, block)
    last = blocks[-1].last_transaction_id
    while last not in (appender.acknowledged, None if flushing is None else appender.received):
        await appender.changed()
        if appender.failed is not None:
            raise appender.failed
    store.detach(appender)


async def read_all(store: PartitionStore, session: int, first: int, last: int, max_bytes: int = 1 << 20) -> list[bytes]:
    """The records from `first` to `last`, as an owner in recovery reads them."""
    found: list[bytes] = []
    async for run in store.read(-1, session, first, last, max_bytes):
        for block in run:
            assert block.first_transaction_id == first + len(found), "blocks follow on each other"
            found += records_of(block)
    return found


# ---- comparing -----------------------------------------------------------------------------------------------------------------------------------


async def check(disk: SimulatedDisk, expected: Expected, **settings: Any) -> None:
    """Raises `AssertionError`, or what the engine raises, where the disk does not hold what it must. There is space again on the disk."""
    disk.total = 1 << 40
    if not StorageNode.exists(disk):
        assert 0 in expected.counts, "the node is gone"
        StorageNode.create(disk, FixedClock(), KEY, 1)
        expected = Expected((1,), 0, (PartitionModel(),))
    node = node_on(disk, **settings)
    await node.open(KEY)
    assert node.start > expected.start, f"starts went back: {node.start} after {expected.start}"
    count = node.control.header.partitions
    assert count in expected.counts, f"{count} partitions, expected {expected.counts}"
    after = [await _check_partition(await node.partition(partition), model) for partition, model in enumerate(expected.partitions[:count])]
    # What was acknowledged now must be there after the machine dies, whatever the crash before left in the page cache.
    node = node_on(disk.crash(), **settings)
    await node.open(KEY)
    for partition, records in enumerate(after):
        store = await node.partition(partition)
        first = store.statistics().first_transaction_id
        assert store.last_id == first + len(records) - 1, f"last is {store.last_id} after a second crash, expected {first + len(records) - 1}"
        assert await read_all(store, CHECKING_SESSION, first, store.last_id) == records
    await node.close()


async def _check_partition(store: PartitionStore, model: PartitionModel) -> list[bytes]:
    """Returns the records that the partition holds afterwards."""
    reported = store.statistics()
    first, last = reported.first_transaction_id, reported.last_transaction_id
    assert last in model.lasts, f"last transaction is {last}, expected {model.lasts}"
    assert first in model.firsts, f"first transaction is {first}, expected {model.firsts}"
    assert reported.fence in model.fences, f"fence is {reported.fence}, expected {model.fences}"
    state = await store.open_session(CHECKING_SESSION)
    assert last >= model.received or state.may_lack, f"{model.received} was acknowledged, {last} is there, and nobody is told"
    assert state.mark in model.marks, f"mark is {state.mark}, expected {model.marks}"
    following = block_of(store.partition, last + 1, [9, 9], salt=CHECKING_SESSION)
    await append(store, CHECKING_SESSION, [following])
    records = [*model.records[first : last + 1], *records_of(following)]
    assert await read_all(store, CHECKING_SESSION, first, last + 2) == records, "other bytes than were appended"
    return records
