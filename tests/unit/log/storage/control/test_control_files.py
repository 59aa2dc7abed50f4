from __future__ import annotations

import errno
from random import Random
from uuid import UUID

import pytest

from waltz_log.core.formats.control_format import CONTROL_FILE, FENCE_FILE, SessionMark, counter_offset, mark_offset
from waltz_log.errors import ClusterKeyMismatch, CorruptData, InvalidSetting, StorageFailed, StorageFull
from waltz_log.storage.base.settings import StorageSettings
from waltz_log.storage.control.control import ControlFiles
from waltz_log.storage.node.node import StorageNode
from waltz_log.testing.disk import Operation, SimulatedDisk
from waltz_log.testing.offload import run_in_place

KEY = UUID("00112233-4455-6677-8899-aabbccddeeff")


class FixedClock:
    def now_ms(self) -> int:
        return 1_600_000_000_000


def new_disk(partitions: int = 3) -> SimulatedDisk:
    disk = SimulatedDisk()
    ControlFiles.create(disk, FixedClock(), KEY, partitions)
    return disk


def damage(disk: SimulatedDisk, path: str, offset: int) -> None:
    content = bytearray(disk.content(path))
    content[offset] ^= 0x40
    disk.replace(path, bytes(content))


def node_on(disk: SimulatedDisk) -> StorageNode:
    settings = StorageSettings.load(None, prefix="NONE", environment={}, name="storage-0", directory="unused", coordinator="test")
    return StorageNode(settings, disk, FixedClock(), run_in_place)


def test_a_new_control_file_has_the_documented_bytes() -> None:
    header = bytes.fromhex("0000000000000174876e800000112233445566778899aabbccddeeff00000003") + bytes(96)
    fresh = b"\xff" * 24 + bytes.fromhex("04ed1498")
    # the same checksum covers 24 bytes of ones here as in the original's files, whose structs have more fields
    content = new_disk().content(CONTROL_FILE)
    assert content[:128] == header
    assert len(content) == 128 + 3 * 60
    for partition in range(3):
        entry = content[128 + 60 * partition :][:60]
        assert entry[:4] == partition.to_bytes(4, "big")
        assert entry[4:28] == entry[32:56] == fresh[:24]
        assert entry[28:32] == entry[56:60]


def test_structs_are_written_alternately_and_one_torn_write_costs_only_itself() -> None:
    disk = new_disk()
    control = ControlFiles.open(disk)
    for session in range(1, 6):
        control.set_mark(1, SessionMark(session, 10 * session, 10 * session))
    control.close()
    newer = max((0, 1), key=lambda which: disk.content(CONTROL_FILE)[mark_offset(1, which) + 7])
    for offset in range(28):
        damage(disk, CONTROL_FILE, mark_offset(1, newer) + offset)
        again = ControlFiles.open(disk)
        assert again.mark(1) == SessionMark(4, 40, 40)
        assert again.mark(0) == SessionMark()
        assert again.damaged == [1]
        again.close()
        damage(disk, CONTROL_FILE, mark_offset(1, newer) + offset)
    whole = ControlFiles.open(disk)
    assert whole.mark(1) == SessionMark(5, 50, 50)
    assert whole.damaged == []


async def test_a_node_that_uses_the_other_struct_of_a_damaged_pair_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    disk = new_disk()
    damage(disk, CONTROL_FILE, mark_offset(1, 0) + 3)
    node = node_on(disk)
    await node.open(KEY)
    await node.close()
    assert "control file has damaged structs, their other copies are used" in "".join(capsys.readouterr())


async def test_a_partition_with_two_invalid_structs_does_not_open_and_the_others_do() -> None:
    for path, offsets in (
        (CONTROL_FILE, (mark_offset(1, 0), mark_offset(1, 1))),
        (FENCE_FILE, (counter_offset(2, 0), counter_offset(2, 1))),
    ):
        disk = new_disk()
        for offset in offsets:
            damage(disk, path, offset)
        node = node_on(disk)
        await node.open(KEY)
        with pytest.raises(CorruptData) as caught:
            await node.partition(1)
        assert caught.value.where == path
        await node.partition(0)
        await node.partition(2)
        assert list(node.statistics().stopped) == [1]
        await node.close()


def test_every_start_is_counted_on_the_medium() -> None:
    disk = new_disk()
    for start in range(1, 6):
        control = ControlFiles.open(disk)
        control.count_start()
        assert control.start == start
        disk = disk.crash(Random(start))
    damage(disk, FENCE_FILE, counter_offset(0, 0))
    damage(disk, FENCE_FILE, counter_offset(0, 1))
    with pytest.raises(CorruptData, match="start count"):
        ControlFiles.open(disk)


def test_fences_and_marks_are_durable_when_the_call_returns() -> None:
    disk = new_disk()
    control = ControlFiles.open(disk)
    for session in range(1, 10):
        control.raise_fence(2, 2 * session)
        control.set_mark(2, SessionMark(session, session, -1))
        disk_after = disk.crash(Random(session))
        again = ControlFiles.open(disk_after)
        assert again.fence(2) == 2 * session
        assert again.mark(2) == SessionMark(session, session, -1)
        disk, control = disk_after, again


def test_a_crash_at_any_step_of_creation_leaves_no_node_or_a_whole_one() -> None:
    total = len(new_disk().operations)
    for fails in range(total + 1):
        for seed in range(5):
            disk = SimulatedDisk()

            def before(operation: Operation, disk: SimulatedDisk = disk, fails: int = fails) -> None:
                if len(disk.operations) > fails:
                    raise OSError(5, "crash")

            disk.before = before
            created = True
            try:
                ControlFiles.create(disk, FixedClock(), KEY, 3)
            except OSError:
                created = False
            after = disk.crash(Random(seed))
            if StorageNode.exists(after):
                assert ControlFiles.open(after).header.partitions == 3
            else:
                assert not created
                ControlFiles.create(after, FixedClock(), KEY, 3)


@pytest.mark.parametrize("name", ["waltz-storage.fence.new", "waltz-storage.ctl.new"])
def test_growth_on_a_full_disk_changes_nothing_and_works_once_there_is_room(name: str) -> None:
    disk = new_disk(2)
    control = ControlFiles.open(disk)
    control.raise_fence(1, 9)

    def full(operation: Operation) -> None:
        if operation.kind == "write" and operation.path == name:
            raise OSError(errno.ENOSPC, "full", name)

    disk.before = full
    with pytest.raises(StorageFull, match="no room for the control files of 5 partitions"):
        control.grow(5)
    disk.before = lambda operation: None
    control.set_mark(1, SessionMark(8, 4, 3))
    assert (control.header.partitions, control.fence(1)) == (2, 9)
    control.grow(5)
    again = ControlFiles.open(disk.crash(Random(1)))
    assert (again.header.partitions, again.fence(1), again.mark(1), again.fence(4)) == (5, 9, SessionMark(8, 4, 3), -1)


def test_a_crash_at_any_step_of_growth_leaves_the_old_count_or_the_new_and_every_mark() -> None:
    fails = 0
    finished = False
    while not finished:
        for seed in range(5):
            disk = new_disk(2)
            control = ControlFiles.open(disk)
            control.raise_fence(1, 9)
            control.set_mark(1, SessionMark(8, 4, 3))
            start = len(disk.operations)

            def before(operation: Operation, disk: SimulatedDisk = disk, last: int = start + fails) -> None:
                if len(disk.operations) > last:
                    raise OSError(5, "crash")

            disk.before = before
            try:
                control.grow(5)
                finished = True
            except (OSError, StorageFailed):
                pass
            after = ControlFiles.open(disk.crash(Random(seed)))
            assert after.header.partitions in ((5,) if finished else (2, 5))
            assert (after.fence(1), after.mark(1), after.fence(0)) == (9, SessionMark(8, 4, 3), -1)
            after.grow(5)
            assert (after.header.partitions, after.mark(4), after.fence(4)) == (5, SessionMark(), -1)
        fails += 1
    assert fails > 8


def test_files_that_grew_in_use_keep_old_marks_and_accept_new_ones_and_a_failure_in_between_is_final() -> None:
    disk = new_disk(2)
    control = ControlFiles.open(disk)
    control.raise_fence(1, 9)
    control.set_mark(1, SessionMark(8, 4, 3))
    control.grow(5)
    control.grow(4)  # as asked by one who heard of it earlier
    control.raise_fence(1, 11)
    control.raise_fence(4, 2)
    control.set_mark(4, SessionMark(2, 6, 6))
    control.set_mark(1, SessionMark(11, 5, 5))
    after = ControlFiles.open(disk.crash(Random(1)))
    assert after.header.partitions == 5
    assert [after.fence(p) for p in range(5)] == [-1, 11, -1, -1, 2]
    assert [after.mark(p).session for p in range(5)] == [-1, 11, -1, -1, 2]
    before = len(disk.operations)

    def fail(operation: Operation) -> None:
        if len(disk.operations) > before + 3:
            raise OSError(5, "as the test asked for")

    disk.before = fail
    with pytest.raises(StorageFailed):
        control.grow(9)
    disk.before = lambda _: None
    with pytest.raises(StorageFailed):
        control.grow(9)
    with pytest.raises(StorageFailed):
        control.raise_fence(0, 1)
    with pytest.raises(StorageFailed):
        control.set_mark(0, SessionMark(1, 0, 0))
    assert control.header.partitions == 5


def test_after_a_failed_sync_the_control_files_are_not_written_again() -> None:
    disk = new_disk()
    control = ControlFiles.open(disk)

    def before(operation: Operation) -> None:
        if operation.kind == "sync":
            raise OSError(5, "Input/output error")

    disk.before = before
    with pytest.raises(StorageFailed):
        control.set_mark(0, SessionMark(1, 1, 1))
    done = len(disk.operations)
    with pytest.raises(StorageFailed):
        control.set_mark(0, SessionMark(1, 1, 1))
    with pytest.raises(StorageFailed):
        control.raise_fence(1, 3)
    assert len(disk.operations) == done
    assert control.mark(0) == SessionMark()


async def test_a_directory_without_a_node_or_of_another_cluster_or_in_use_is_refused() -> None:
    with pytest.raises(InvalidSetting, match=r"waltz-storage\.ctl"):
        await node_on(SimulatedDisk()).open(KEY)
    disk = new_disk()
    with pytest.raises(InvalidSetting, match="already"):
        StorageNode.create(disk, FixedClock(), KEY, 3)
    with pytest.raises(ClusterKeyMismatch):
        await node_on(disk).open(UUID(int=1))
    first = node_on(disk)
    await first.open(KEY, 5)
    assert first.statistics().start == 1, "neither the refusal nor the growth is a start"
    await first.partition(4)
    with pytest.raises(InvalidSetting, match="another process"):
        await node_on(disk).open(KEY)
    await first.close()
    second = node_on(disk)
    await second.open(KEY, 2)
    await second.partition(4)
    await second.close()


def test_a_directory_that_lost_its_fences_is_refused() -> None:
    disk = new_disk()
    disk.remove(FENCE_FILE)
    with pytest.raises(InvalidSetting, match="fence"):
        ControlFiles.open(disk)


def test_a_control_file_of_another_length_is_refused() -> None:
    disk = new_disk()
    disk.replace(CONTROL_FILE, disk.content(CONTROL_FILE) + b"\0")
    with pytest.raises(CorruptData, match="migrated"):
        ControlFiles.open(disk)


@pytest.mark.parametrize("torn", [None, 0, 1])
def test_a_mark_that_goes_back_is_in_both_structs_or_the_one_before_counts(torn: int | None) -> None:
    """`torn`: which of the two writes is not complete when the machine dies."""
    disk, before, lost = new_disk(), SessionMark(5, 50, 50), SessionMark(-1_600_000_000_000, 50, 30)
    control = ControlFiles.open(disk)
    control.set_mark(1, SessionMark(4, 40, 40))
    control.set_mark(1, before)
    writes: list[str] = []

    def stop(operation: Operation) -> None:
        if operation.kind == "write" and operation.path == CONTROL_FILE:
            writes.append(operation.path)
            if len(writes) == (torn or 0) + 1 and torn is not None:
                raise OSError(errno.EIO, "the machine dies")

    disk.before = stop
    if torn is None:
        control.disown(1, lost)
        assert control.mark(1) == lost
    else:
        with pytest.raises(StorageFailed):
            control.disown(1, lost)
    disk.before = lambda _: None
    again = ControlFiles.open(disk)
    assert again.mark(1) == (before if torn is not None else lost)
    if torn is None:
        for which in (0, 1):  # a corrupt bit in one of them changes nothing
            damage(disk, CONTROL_FILE, mark_offset(1, which))
            assert ControlFiles.open(disk).mark(1) == lost
            damage(disk, CONTROL_FILE, mark_offset(1, which))
        again.set_mark(1, SessionMark(5, 60, 60))
        assert ControlFiles.open(disk).mark(1) == SessionMark(5, 60, 60)
