"""Two workers of one storage node in one directory, which a supervisor holds for them."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from waltz_log.core.formats.control_format import FENCE_FILE, SessionMark, counter_offset, encode_counter
from waltz_log.core.topics.sharding import SUPERVISOR, Shard
from waltz_log.errors import ClusterKeyMismatch, InvalidSetting, NotOwner, Unavailable
from waltz_log.storage import StorageNode, StorageSettings
from waltz_log.storage.control.control import ControlFiles
from waltz_log.testing.disk import SimulatedDisk
from waltz_log.testing.offload import run_in_place

KEY = UUID("00112233-4455-6677-8899-aabbccddeeff")
WORKERS = 2
PARTITIONS = 4
OF_0, OF_1 = (0, 2), (1, 3)
"""Partitions of each worker."""


class FixedClock:
    def now_ms(self) -> int:
        return 1_600_000_000_000


def node(disk: SimulatedDisk, worker: int, asked: list[int] | None = None) -> StorageNode:
    settings = StorageSettings(name="storage-0", directory=Path("unused"), coordinator="test", workers=WORKERS)
    ask = None if asked is None else asked.append
    return StorageNode(settings, disk, FixedClock(), run_in_place, shard=Shard(worker, WORKERS), request_growth=ask)


@pytest.fixture
def disk() -> SimulatedDisk:
    disk = SimulatedDisk()
    StorageNode.create(disk, FixedClock(), KEY, PARTITIONS)
    return disk


async def test_the_supervisor_counts_the_start_and_workers_join_it_as_often_as_they_are_started(disk: SimulatedDisk) -> None:
    supervisor = node(disk, SUPERVISOR)
    await supervisor.open(KEY, PARTITIONS)
    assert supervisor.start == 1
    for _ in range(3):
        worker = node(disk, 1)
        await worker.join(KEY)
        assert worker.start == 1
        await worker.close()
    with pytest.raises(InvalidSetting, match="in use by another process"):
        await node(disk, SUPERVISOR).open(KEY)  # a worker that closes does not give the directory back
    await supervisor.close()
    again = node(disk, SUPERVISOR)
    await again.open(KEY)
    assert again.start == 2


async def test_a_worker_opens_and_serves_its_own_partitions_and_no_others(disk: SimulatedDisk) -> None:
    workers = [node(disk, worker) for worker in range(WORKERS)]
    for worker, own in zip(workers, (OF_0, OF_1), strict=True):
        await worker.join(KEY)
        for partition in own:
            await (await worker.partition(partition)).open_session(5)
    for worker, foreign in zip(workers, (OF_1, OF_0), strict=True):
        for partition in foreign:
            with pytest.raises(NotOwner):
                await worker.partition(partition)
    for worker in workers:
        await worker.close()
    again = [node(disk, worker) for worker in (0, 1, SUPERVISOR)]
    for worker in again:
        await worker.join(KEY)
    assert [[each.partition for each in worker.statistics().partitions] for worker in again] == [list(OF_0), list(OF_1), []]


async def test_a_worker_of_another_cluster_is_refused(disk: SimulatedDisk) -> None:
    with pytest.raises(ClusterKeyMismatch):
        await node(disk, 0).join(UUID(int=1))


async def test_a_worker_asks_for_room_and_makes_none_itself(disk: SimulatedDisk) -> None:
    asked: list[int] = []
    worker = node(disk, 0, asked)
    await worker.join(KEY)
    await worker.grow_control_file(PARTITIONS)
    assert asked == []
    with pytest.raises(Unavailable, match="control file is being extended"):
        await worker.grow_control_file(PARTITIONS + 2)
    assert asked == [PARTITIONS + 2]
    assert worker.control.header.partitions == PARTITIONS


def test_opening_the_control_files_leaves_what_is_being_written_for_others_alone(disk: SimulatedDisk) -> None:
    """The other worker is between the two writes of a fence: the half that an open would repair is the one that it writes next."""
    other = ControlFiles.open(disk, Shard(1, WORKERS).owns)
    for session in (4, 5):
        other.raise_fence(OF_1[0], session)
        other.raise_fence(OF_1[1], session)
    file = disk.open(FENCE_FILE, "write")
    for partition in (OF_0[0], OF_1[0]):
        file.write(counter_offset(1 + partition, 1), encode_counter(4))
    file.sync()
    file.close()
    before = disk.content(FENCE_FILE)
    ControlFiles.open(disk, Shard(0, WORKERS).owns).close()
    after = disk.content(FENCE_FILE)
    changed = {at for at in range(len(before)) if before[at] != after[at]}
    own = counter_offset(1 + OF_0[0], 0)
    assert changed <= set(range(own, counter_offset(2 + OF_0[0], 0)))
    assert changed, "its own it does mend"


def test_workers_write_their_marks_and_fences_into_the_same_files(disk: SimulatedDisk) -> None:
    files = [ControlFiles.open(disk, Shard(worker, WORKERS).owns) for worker in range(WORKERS)]
    for session in range(1, 6):
        for own, control in zip((OF_0, OF_1), files, strict=True):
            for partition in own:
                control.raise_fence(partition, 10 * partition + session)
                control.set_mark(partition, SessionMark(session, partition, partition))
    for control in files:
        control.close()
    found = ControlFiles.open(disk)
    assert [found.fence(partition) for partition in range(PARTITIONS)] == [10 * partition + 5 for partition in range(PARTITIONS)]
    assert [found.mark(partition) for partition in range(PARTITIONS)] == [SessionMark(5, partition, partition) for partition in range(PARTITIONS)]
