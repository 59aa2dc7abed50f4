"""What a replica acknowledges before it is on disk, and what of received blocks it keeps in memory."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from verification.crashes.storage_model import KEY, FixedClock, block_of, node_on, read_all, records_of
from waltz_log.core.flushing import Flushing
from waltz_log.errors import StorageFailed
from waltz_log.storage import StorageNode, StorageSettings
from waltz_log.storage.replica.appender import Appender
from waltz_log.storage.replica.partition_store import PartitionStore
from waltz_log.storage.replica.writer_memory import WriterMemory
from waltz_log.testing.disk import Operation, SimulatedDisk
from waltz_log.testing.offload import SlowOffload
from waltz_log.testing.virtual_time import run_in_virtual_time

LONG = Flushing(3600.0, 1 << 40)


async def opened(disk: SimulatedDisk, partitions: int = 1) -> StorageNode:
    if not StorageNode.exists(disk):
        StorageNode.create(disk, FixedClock(), KEY, partitions)
    node = node_on(disk)
    await node.open(KEY)
    return node


async def received(store: PartitionStore, appender: Appender, first: int, sizes: list[int]) -> list[bytes]:
    block = block_of(0, first, sizes, salt=1)
    await store.append(appender, block)
    while appender.received != block.last_transaction_id and appender.acknowledged != block.last_transaction_id:
        await appender.changed()
        if appender.failed is not None:
            raise appender.failed
    return records_of(block)


async def attached(store: PartitionStore, flushing: Flushing) -> Appender:
    appender = await store.attach(1, 1 << 20)
    appender.flushing = flushing
    return appender


def test_it_is_synced_after_the_period_and_to_sync_twice_is_harmless() -> None:
    async def scenario() -> None:
        disk = SimulatedDisk()
        node = await opened(disk)
        store = await node.partition(0)
        appender = await attached(store, Flushing(0.005, 1 << 40))
        syncs = [0]

        def count(operation: Operation) -> None:
            syncs[0] += operation.kind == "sync" and operation.path.endswith(".seg")

        disk.before = count
        records = await received(store, appender, 0, [10, 20])
        records += await received(store, appender, 2, [30])
        assert (syncs[0], store.last_id, appender.acknowledged) == (0, -1, None)
        await asyncio.sleep(0.012)
        assert (syncs[0], store.last_id, appender.acknowledged) == (1, 2, 2)
        store.flush()
        store.flush()
        await asyncio.sleep(0.012)
        assert syncs[0] == 1
        assert await read_all(store, 1, 0, 2) == records
        await node.close()

    run_in_virtual_time(scenario())


async def test_nothing_is_served_that_is_not_synced_and_a_session_syncs_first() -> None:
    node = await opened(SimulatedDisk())
    store = await node.partition(0)
    records = await received(store, await attached(store, LONG), 0, [10, 20])
    assert await read_all(store, 1, 0, 1) == []
    assert (await store.open_session(2)).last_id == 1
    assert await read_all(store, 2, 0, 1) == records
    await node.close()


async def test_a_crash_leaves_a_prefix_and_the_replica_reports_that_it_may_lack_the_rest() -> None:
    disk = SimulatedDisk()
    node = await opened(disk)
    store = await node.partition(0)
    appender = await attached(store, LONG)
    records = await received(store, appender, 0, [10, 20])
    store.flush()
    while store.last_id < 1:
        await asyncio.sleep(0)
    for number in range(2, 6):
        records += await received(store, appender, number, [100])
    assert not (await node.partition(0)).statistics().failed
    after = await opened(disk.crash())
    state = await (await after.partition(0)).open_session(2)
    assert (state.last_id, state.may_lack) == (1, True)
    await (await after.partition(0)).set_low_water_mark(2, 1)
    assert not (await (await after.partition(0)).open_session(2)).may_lack
    await after.close()


async def test_a_kill_of_the_process_loses_nothing_of_it() -> None:
    disk = SimulatedDisk()
    node = await opened(disk)
    store = await node.partition(0)
    records = await received(store, await attached(store, LONG), 0, [10, 20, 3000])
    records += await received(store, next(iter(store._rounds.appenders)), 3, [2000])
    after = await opened(disk.crash(keep=True))
    again = await after.partition(0)
    assert (await again.open_session(2)).last_id == 3
    assert await read_all(again, 2, 0, 3) == records
    await after.close()


async def test_a_disk_that_is_full_at_any_operation_costs_nothing_that_was_received() -> None:
    for failing in range(12):
        disk = SimulatedDisk()
        node = await opened(disk)
        store = await node.partition(0)
        appender = await attached(store, LONG)
        records = await received(store, appender, 0, [100, 200])
        operations = iter(range(10_000))

        def full(operation: Operation, operations: object = operations, failing: int = failing) -> None:
            if operation.kind in ("write", "create", "allocate") and next(operations) >= failing:  # type: ignore[call-overload]
                raise OSError(errno.ENOSPC, "no space left on device", operation.path)

        disk.before = full
        store.flush()
        for _ in range(100):
            await asyncio.sleep(0)
        disk.before = lambda operation: None
        assert (await store.open_session(2)).last_id == 1
        assert await read_all(store, 2, 0, 1) == records
        await node.close()


async def test_a_sync_that_fails_is_final_and_every_waiter_gets_the_error() -> None:
    disk = SimulatedDisk()
    node = await opened(disk)
    store = await node.partition(0)
    appender = await attached(store, LONG)
    await received(store, appender, 0, [100])

    def fail(operation: Operation) -> None:
        if operation.kind == "sync":
            raise OSError(errno.EIO, "input/output error", operation.path)

    disk.before = fail
    store.flush()
    while appender.failed is None:
        await asyncio.sleep(0)
    assert isinstance(appender.failed, StorageFailed)
    done = len(disk.operations)
    with pytest.raises(StorageFailed):
        await store.open_session(2)
    await node.close()
    assert len(disk.operations) == done


# ---- memory ----------------------------------------------------------------------------------------------------------------------------------------

PARTITIONS = 12
OWN = 256 * 1024
TOTAL = 1024 * 1024
BLOCK = 100 * 1024


async def _streams_on_a_slow_disk() -> tuple[int, int]:
    """The most that all partitions held at once, and the most of one."""
    settings = StorageSettings(
        name="slow", directory=Path("unused"), coordinator="test", pending_bytes_max=OWN, writer_bytes_max=TOTAL, scrub_bytes_per_s=0
    )
    disk = SimulatedDisk()
    StorageNode.create(disk, FixedClock(), KEY, PARTITIONS)
    node = StorageNode(settings, disk, FixedClock(), SlowOffload(lambda: 0.5))
    await node.open(KEY)
    stores = [await node.partition(partition) for partition in range(PARTITIONS)]
    highest = 0

    async def stream(store: PartitionStore, appender: Appender) -> None:
        """As the service reads a stream's messages."""
        nonlocal highest
        for number in range(12):
            await store.append(appender, block_of(store.partition, number, [BLOCK], salt=1))
            highest = max(highest, store.statistics().writer_bytes)
            await appender.wait_for_capacity()
        while appender.acknowledged != 11:
            await appender.changed()

    appenders = [await store.attach(1, settings.pending_bytes_max) for store in stores]
    await asyncio.gather(*(stream(store, appender) for store, appender in zip(stores, appenders, strict=True)))
    reported = node.statistics()
    await node.close()
    assert reported.writer_bytes == 0
    return reported.writer_bytes_highest, highest


def test_unwritten_blocks_are_bounded_for_each_partition_and_in_total() -> None:
    together, one = run_in_virtual_time(_streams_on_a_slow_disk())
    record = BLOCK + 40
    assert one <= OWN + record
    assert TOTAL < together <= TOTAL + PARTITIONS * record


def test_a_bound_that_is_not_kept_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WriterMemory, "full", False)
    together, _ = run_in_virtual_time(_streams_on_a_slow_disk())
    assert together > TOTAL + PARTITIONS * (BLOCK + 40)
