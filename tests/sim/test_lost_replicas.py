"""Replicas that come back with less than they acknowledged: emptied, restored from a backup, or set back to an earlier state. Each counts as absent
until it has caught up, in the very case in which counting it would lose what was acknowledged to a client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from waltz_log.cli.cluster import cluster as cluster_command
from waltz_log.client import ClientSettings, WaltzClient
from waltz_log.coordination.survey import survey
from waltz_log.core.formats.block import Block
from waltz_log.core.formats.record_layout import RECORD_OVERHEAD_BYTES
from waltz_log.core.formats.segment_format import DATA, FILE_HEADER_BYTES, INDEX
from waltz_log.core.topics.access import CLUSTER_PRINCIPAL
from waltz_log.errors import Unavailable, WaltzError
from waltz_log.exit_codes import OK, UNAVAILABLE
from waltz_log.server.replication.replica_session import ReplicaSession
from waltz_log.storage import StorageNode
from waltz_log.storage.offline.backup import backup
from waltz_log.storage.offline.restore import disown, restore
from waltz_log.storage.segments.segment import segment_path
from waltz_log.storage.segments.segment_log import SegmentLog
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.testing.disk import SimulatedDisk
from waltz_log.testing.virtual_time import run_in_virtual_time
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb

EARLY, LATE = 20, 60
SETTINGS = ClientSettings(retry_base_s=0.01, retry_cap_s=0.1, request_timeout_s=3.0)

Change = Callable[[MemoryCluster, SimulatedDisk], SimulatedDisk]


def emptied(cluster: MemoryCluster, _copy: SimulatedDisk) -> SimulatedDisk:
    disk = SimulatedDisk()
    StorageNode.create(disk, cluster.clock, cluster.key, 1)
    return disk


def restored(cluster: MemoryCluster, copy: SimulatedDisk) -> SimulatedDisk:
    disk = SimulatedDisk()
    restore(copy, disk, cluster.clock.now_ms())
    return disk


def set_back_and_started_as_a_replacement(cluster: MemoryCluster, copy: SimulatedDisk) -> SimulatedDisk:
    """Files of an earlier state that have no mark, made with `--replace`."""
    disk = restored(cluster, copy)
    disown(disk, cluster.clock.now_ms())
    return disk


def without_its_tail(cluster: MemoryCluster, _copy: SimulatedDisk) -> SimulatedDisk:
    """The disk lied about a sync: the newest records are gone, with their index entries. All else says that the replica is clean."""
    disk = cluster.disks["storage-0"]
    log = SegmentLog.open(disk, cluster.clock, cluster.key, 0, 1 << 20, -1)
    log.truncate(EARLY + (log.tail.last_id - EARLY) // 2)
    return disk


async def append(client: WaltzClient, first: int, last: int) -> None:
    for number in range(first, last):
        receipt = await client.append(0, b"%d" % number, timeout_s=60)
        assert receipt.transaction_id == number


async def stored(cluster: MemoryCluster, name: str) -> bytes:
    """What a replica serves of the log to a caller that asks for any session."""
    request = pb.ReadRequest(
        cluster_key=cluster.key.bytes, partition=0, session=0, last_transaction_id=LATE - 1, max_bytes=1 << 20, principal=CLUSTER_PRINCIPAL
    )
    stream = cluster.network.connect(cluster.storages[name][1].address).read(methods.READ, request)
    found = b""
    while (answer := await stream.receive()) is not None:
        found += b"".join(block.records for block in answer.blocks)
    return found


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await condition():
            await asyncio.sleep(0.1)


async def agree(cluster: MemoryCluster) -> bool:
    try:
        found = [await stored(cluster, f"storage-{place}") for place in range(3)]
    except WaltzError:
        return False
    return found[0] == found[1] == found[2] and found[0].count(b"%d" % (LATE - 1)) > 0


def copy_of(cluster: MemoryCluster, name: str) -> SimulatedDisk:
    """A backup of the running node."""
    copy = SimulatedDisk()
    backup(cluster.disks[name], copy, cluster.clock.now_ms())
    return copy


async def lose(cluster: MemoryCluster, name: str, change: Change, copy: SimulatedDisk) -> None:
    """The machine dies with its disk; the node comes back on another."""
    await cluster.kill_storage(name)
    cluster.disks[name] = change(cluster, copy)
    await cluster.start_storage(name)


async def _two_faults(change: Change, *, owner_notices: bool) -> None:
    cluster = MemoryCluster(servers=2)
    await cluster.start()
    client = await cluster.connect(SETTINGS)
    await append(client, 0, EARLY)
    await until(lambda: _has(cluster, "storage-2", EARLY))
    addresses = {name: listener.address for name, (_, listener) in cluster.storages.items()}
    cluster.network.cut(addresses["storage-2"])  # slow: it has the beginning alone
    copy = copy_of(cluster, "storage-0")
    await append(client, EARLY, LATE)  # acknowledged by storage-0 and storage-1
    cluster.network.cut(addresses["storage-1"])
    if not owner_notices:
        for name in list(cluster.servers):
            await cluster.kill_server(name)
    await lose(cluster, "storage-0", change, copy)
    await asyncio.sleep(5)  # the owner meets what came back
    for name in list(cluster.servers):
        await cluster.kill_server(name)
    cluster.network.heal(addresses["storage-2"])
    await cluster.start_server("server-2")
    await asyncio.sleep(30)
    # storage-1 alone holds what was acknowledged last: without it nothing may be decided.
    with pytest.raises((WaltzError, TimeoutError)):
        async with asyncio.timeout(5):
            assert await client.high_water_mark(0) >= LATE - 1, "acknowledged and lost"
    cluster.network.heal(addresses["storage-1"])
    async with asyncio.timeout(60):
        assert await client.high_water_mark(0) == LATE - 1
    await until(lambda: agree(cluster))
    await client.append(0, b"after", timeout_s=60)
    await client.close()
    await cluster.stop()


async def _has(cluster: MemoryCluster, name: str, count: int) -> bool:
    store = await cluster.storages[name][0].partition(0)
    return store.last_id >= count - 1


def test_recovery_waits_for_it_too_if_the_owner_saw_that_a_replica_lost_its_tail() -> None:
    run_in_virtual_time(_two_faults(without_its_tail, owner_notices=True))


@pytest.mark.parametrize("owner_notices", [True, False], ids=["in the same session", "between two sessions"])
@pytest.mark.parametrize("change", [emptied, restored, set_back_and_started_as_a_replacement], ids=lambda change: change.__name__)
def test_recovery_waits_for_the_only_replica_with_acknowledged_transactions(change: Change, owner_notices: bool) -> None:
    run_in_virtual_time(_two_faults(change, owner_notices=owner_notices))


async def _catches_up(change: Change) -> None:
    cluster = MemoryCluster(servers=1)
    await cluster.start()
    client = await cluster.connect(SETTINGS)
    await append(client, 0, EARLY)
    copy = copy_of(cluster, "storage-0")
    await append(client, EARLY, LATE - 10)
    await lose(cluster, "storage-0", change, copy)
    with pytest.raises(WaltzError, match="older session"):
        await stored(cluster, "storage-0")
    await append(client, LATE - 10, LATE)
    await until(lambda: agree(cluster))
    # It counts again: with one other replica it is a majority.
    await cluster.kill_storage("storage-1")
    await append(client, LATE, LATE + 5)
    assert (await cluster.storages["storage-0"][0].partition(0)).last_id == LATE + 4
    await client.close()
    await cluster.stop()


@pytest.mark.parametrize("change", [emptied, restored, set_back_and_started_as_a_replacement], ids=lambda change: change.__name__)
def test_it_serves_no_reader_before_it_has_caught_up_and_counts_afterwards(change: Change) -> None:
    run_in_virtual_time(_catches_up(change))


async def _catches_up_after_a_loss_within_its_session(restarts: int) -> None:
    cluster = MemoryCluster(servers=1)
    await cluster.start()
    client = await cluster.connect(SETTINGS)
    await append(client, 0, LATE - 10)
    for _ in range(restarts):
        await lose(cluster, "storage-0", without_its_tail, SimulatedDisk())
    await append(client, LATE - 10, LATE)
    await until(lambda: agree(cluster))
    # It counts again: with one other replica it is a majority.
    await cluster.kill_storage("storage-1")
    await append(client, LATE, LATE + 5)
    assert (await cluster.storages["storage-0"][0].partition(0)).last_id == LATE + 4
    await client.close()
    await cluster.stop()


@pytest.mark.parametrize("restarts", [1, 3])
def test_a_replica_that_lost_synced_records_within_its_session_catches_up_by_itself(restarts: int) -> None:
    run_in_virtual_time(_catches_up_after_a_loss_within_its_session(restarts))


def with_a_damaged_record_that_the_index_does_not_list(cluster: MemoryCluster, _copy: SimulatedDisk) -> SimulatedDisk:
    """One bit of one record in the newest segment. The records behind it are intact."""
    disk = cluster.disks["storage-0"]
    data, index = segment_path("0", 0, DATA), segment_path("0", 0, INDEX)
    assert len(disk.content(index)) <= FILE_HEADER_BYTES + 8 * EARLY, "the index is written later than the records"
    offset = FILE_HEADER_BYTES + sum(RECORD_OVERHEAD_BYTES + len(b"%d" % number) for number in range(EARLY))
    content = bytearray(disk.content(data))
    assert content[offset + RECORD_OVERHEAD_BYTES - 4 :].startswith(b"%d" % EARLY)
    content[offset + RECORD_OVERHEAD_BYTES - 4] ^= 1
    disk.replace(data, bytes(content))
    return disk


async def _exit_code(cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch, *, complete: bool) -> int:
    class Session:
        @staticmethod
        async def connect(_address: str, *, timeout_s: float) -> Any:
            return cluster.ensemble.session()

    monkeypatch.setattr(cluster_command, "ZooKeeperCoordinator", Session)
    monkeypatch.setattr(cluster_command, "GrpcNetwork", lambda: cluster.network)
    return await cluster_command.status("memory/test", output="json", wait_s=0.0, complete=complete, timeout_s=1)


async def _catches_up_after_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = MemoryCluster(servers=1)
    await cluster.start()
    client = await cluster.connect(SETTINGS)
    await append(client, 0, LATE)
    await until(lambda: agree(cluster))
    assert await _exit_code(cluster, monkeypatch, complete=True) == OK
    may_fill, original = asyncio.Event(), ReplicaSession._in_turns

    async def held(self: ReplicaSession, runs: AsyncGenerator[list[Block], None]) -> AsyncGenerator[list[Block], None]:
        await may_fill.wait()
        async for run in original(self, runs):
            yield run

    monkeypatch.setattr(ReplicaSession, "_in_turns", held)
    with capture_logs() as logs:
        await lose(cluster, "storage-0", with_a_damaged_record_that_the_index_does_not_list, SimulatedDisk())
        await asyncio.sleep(10)
    (lost,) = [each for each in logs if each["event"] == "replica lost acknowledged data"]
    assert (lost["log_level"], lost["partition"], lost["last"]) == ("warning", 0, EARLY - 1)
    # While it is filled it is not clean: it serves no reader, and with one other replica it is no majority.
    with pytest.raises(WaltzError, match="older session"):
        await stored(cluster, "storage-0")
    assert await _exit_code(cluster, monkeypatch, complete=False) == OK
    assert await _exit_code(cluster, monkeypatch, complete=True) == UNAVAILABLE
    found = await survey(cluster.ensemble.session(), cluster.network, "memory/test")
    assert found.missing.startswith("replicas that do not count: 0 (storage-0 "), found.missing
    await cluster.kill_storage("storage-1")
    late = await client.append_nowait(0, b"%d" % LATE, timeout_s=60)
    await asyncio.sleep(5)
    assert not late.done(), "a replica that lost what it had acknowledged counts towards the majority"
    may_fill.set()
    assert (await late).transaction_id == LATE
    await cluster.start_storage("storage-1")
    await until(lambda: agree(cluster))

    async def complete() -> bool:
        return await _exit_code(cluster, monkeypatch, complete=True) == OK

    await until(complete)
    await client.close()
    await cluster.stop()


def test_a_replica_with_a_damaged_record_that_its_index_does_not_list_catches_up_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """When it is opened, the record and the intact ones behind it look like the torn tail of an append, and are truncated."""
    run_in_virtual_time(_catches_up_after_damage(monkeypatch))


async def _own_tail() -> None:
    """A copy made in session 1 holds transactions above its low-water mark that another session gave to others."""
    cluster = MemoryCluster(servers=1)
    await cluster.start()
    client = await cluster.connect(SETTINGS)
    await append(client, 0, EARLY)
    addresses = {name: listener.address for name, (_, listener) in cluster.storages.items()}
    for name in ("storage-1", "storage-2"):
        cluster.network.cut(addresses[name])
    lonely = [asyncio.ensure_future(client.append(0, b"never committed", timeout_s=2)) for _ in range(7)]
    await until(lambda: _has(cluster, "storage-0", EARLY + 7))
    copy = copy_of(cluster, "storage-0")
    await cluster.kill_storage("storage-0")
    await cluster.kill_server("server-0")
    await asyncio.gather(*lonely, return_exceptions=True)
    for name in ("storage-1", "storage-2"):
        cluster.network.heal(addresses[name])
    await cluster.start_server("server-1")
    await append(client, EARLY, LATE - 30)
    await cluster.kill_server("server-1")  # the next session begins above all that the copy holds
    await cluster.start_server("server-2")
    await append(client, LATE - 30, LATE - 20)
    cluster.disks["storage-0"] = restored(cluster, copy)
    await cluster.start_storage("storage-0")
    await append(client, LATE - 20, LATE)
    await until(lambda: agree(cluster))
    assert b"never committed" not in await stored(cluster, "storage-0")
    await client.close()
    await cluster.stop()


def test_a_restored_copy_is_truncated_to_its_mark_before_it_is_filled() -> None:
    run_in_virtual_time(_own_tail())


async def _acknowledgment_is_gone(change: Change) -> None:
    cluster = MemoryCluster(servers=1)
    await cluster.start()
    client = await cluster.connect(SETTINGS)
    await append(client, 0, EARLY)
    copy = copy_of(cluster, "storage-0")
    addresses = {name: listener.address for name, (_, listener) in cluster.storages.items()}
    for name in ("storage-1", "storage-2"):
        cluster.network.cut(addresses[name])
    appending = asyncio.ensure_future(client.append(0, b"%d" % EARLY, timeout_s=120))
    await until(lambda: _has(cluster, "storage-0", EARLY + 1))
    await lose(cluster, "storage-0", change, copy)
    await asyncio.sleep(2)  # the owner meets it
    cluster.network.cut(cluster.storages["storage-0"][1].address)
    cluster.network.heal(addresses["storage-1"])
    await until(lambda: _has(cluster, "storage-1", EARLY + 1))
    await asyncio.sleep(5)
    assert not appending.done(), "one replica has it, and one that had it"
    cluster.network.heal(addresses["storage-2"])
    assert (await appending).transaction_id == EARLY
    await client.close()
    await cluster.stop()


@pytest.mark.parametrize("change", [emptied, restored], ids=lambda change: change.__name__)
def test_acknowledgments_of_a_replica_that_lost_its_data_do_not_count(change: Change) -> None:
    run_in_virtual_time(_acknowledgment_is_gone(change))


def test_transactions_that_a_late_call_truncates_are_not_counted_as_clean() -> None:
    run_in_virtual_time(_cut_on_the_way())


async def _cut_on_the_way() -> None:
    cluster = MemoryCluster(servers=2)
    await cluster.start()
    client = await cluster.connect(SETTINGS)
    await append(client, 0, EARLY)
    cluster.network.cut(cluster.storages["storage-2"][1].address)
    await append(client, EARLY, LATE)  # acknowledged by storage-0 and storage-1
    store = await cluster.storages["storage-0"][0].partition(0)
    make_clean = store._set_low_water_mark
    cut: list[int] = []

    async def late_truncation_first(session: int, mark: int, stream_epoch: int) -> int:
        if not cut:
            cut.append(mark)
            await store._truncate(session, EARLY - 1)
        return await make_clean(session, mark, stream_epoch)

    store._set_low_water_mark = late_truncation_first  # type: ignore[method-assign, assignment]
    for name in list(cluster.servers):
        await cluster.kill_server(name)
    await cluster.start_server("server-2")
    assert await client.high_water_mark(0) == LATE - 1
    assert cut == [LATE - 1]
    assert (await stored(cluster, "storage-0")).count(b"%d" % (LATE - 1)) > 0, "the session opened on a replica that does not hold what was counted"
    await client.close()
    await cluster.stop()


def test_a_replica_that_was_cut_before_its_session_counted_it_does_not_refuse_the_next_owner() -> None:
    run_in_virtual_time(_cut_before_it_counted())


async def _cut_before_it_counted() -> None:
    cluster = MemoryCluster(servers=1)
    await cluster.start()
    client = await cluster.connect(SETTINGS)
    await append(client, 0, EARLY)
    cluster.network.cut(cluster.storages["storage-2"][1].address)
    await append(client, EARLY, LATE)  # acknowledged by storage-0 and storage-1
    cluster.network.heal(cluster.storages["storage-2"][1].address)
    store = await cluster.storages["storage-0"][0].partition(0)
    make_clean = store._set_low_water_mark
    appended, repeated = asyncio.Event(), asyncio.Event()
    marks: list[int] = []

    async def cut_and_then_fail(session: int, mark: int, stream_epoch: int) -> int:
        marks.append(mark)
        if len(marks) > 1:
            repeated.set()
            raise Unavailable(reason="the test keeps the replica out of the session")
        await store._truncate(session, EARLY - 1)
        await appended.wait()
        return await make_clean(session, mark, stream_epoch)

    store._set_low_water_mark = cut_and_then_fail  # type: ignore[method-assign, assignment]
    await cluster.kill_server("server-0")
    await cluster.start_server("server-1")
    await append(client, LATE, LATE + 10)
    appended.set()
    await repeated.wait()
    assert marks[0] == LATE - 1
    store._set_low_water_mark = make_clean  # type: ignore[method-assign]
    await cluster.kill_server("server-1")
    await cluster.start_server("server-2")
    await append(client, LATE + 10, LATE + 20)
    await client.close()
    await cluster.stop()
