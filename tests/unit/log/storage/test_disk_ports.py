"""One suite for the disk port, on the simulated disk and on the file system; then what only the simulated one does."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from random import Random

import pytest

from waltz_log.core.ports import Disk
from waltz_log.filesystem import FileSystemDisk, ReadOnlyFileSystemDisk, ThreadOffload
from waltz_log.testing.disk import Operation, SimulatedDisk
from waltz_log.testing.medium import LOST, WHOLE


@pytest.fixture(params=["simulated", "file system"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    return SimulatedDisk() if request.param == "simulated" else FileSystemDisk(tmp_path / "root")


def test_a_file_is_created_once_and_must_exist_to_be_opened(disk: Disk) -> None:
    with pytest.raises(FileNotFoundError):
        disk.open("a", "read")
    with pytest.raises(FileNotFoundError):
        disk.open("a", "write")
    disk.open("a", "create").close()
    with pytest.raises(FileExistsError):
        disk.open("a", "create")
    assert disk.exists("a")
    assert not disk.exists("b/c")


def test_bytes_are_written_at_offsets_and_read_up_to_the_end(disk: Disk) -> None:
    file = disk.open("a", "create")
    file.write(3, b"abc")
    assert file.size() == 6
    assert file.read(0, 100) == b"\0\0\0abc"
    file.write(4, b"X")
    assert file.read(3, 3) == b"aXc"
    assert file.read(6, 10) == b""
    assert file.read(100, 10) == b""
    file.sync()
    file.truncate(4)
    assert (file.size(), disk.open("a", "read").read(0, 9)) == (4, b"\0\0\0a")
    file.truncate(6)
    assert file.read(0, 9) == b"\0\0\0a\0\0"


def test_allocated_space_reads_as_zeros_and_keeps_what_is_there(disk: Disk) -> None:
    file = disk.open("a", "create")
    file.write(0, b"abc")
    file.allocate(1000)
    assert (file.size(), file.read(0, 5)) == (1000, b"abc\0\0")
    file.allocate(10)
    assert file.size() == 1000, "it never shortens a file"
    with pytest.raises(OSError):
        file.allocate(1 << 60)
    assert file.size() == 1000
    with pytest.raises(OSError):
        disk.open("a", "read").allocate(2000)


def test_a_file_opened_for_reading_is_not_written_and_a_closed_one_not_at_all(disk: Disk) -> None:
    disk.open("a", "create").close()
    file = disk.open("a", "read")
    with pytest.raises(OSError):
        file.write(0, b"x")
    file.close()
    file.close()
    with pytest.raises(OSError):
        file.read(0, 1)


def test_names_are_listed_in_order_renamed_linked_and_removed(disk: Disk) -> None:
    assert disk.list("d/e") == []
    disk.make_directory("d/e")
    disk.make_directory("d/e")
    for name in ("z", "b"):
        disk.open(f"d/e/{name}", "create").write(0, name.encode())
    assert disk.list("d/e") == ["b", "z"]
    assert disk.list("") == ["d"]
    disk.rename("d/e/z", "d/e/b")
    assert disk.open("d/e/b", "read").read(0, 9) == b"z"
    disk.link("d/e/b", "d/c")
    with pytest.raises(FileExistsError):
        disk.link("d/e/b", "d/c")
    disk.remove("d/e/b")
    assert disk.open("d/c", "read").read(0, 9) == b"z"
    with pytest.raises(FileNotFoundError):
        disk.remove("d/e/b")
    with pytest.raises(FileNotFoundError):
        disk.rename("d/e/b", "d/x")
    disk.sync_directory("d/e")
    disk.sync_directory("")
    with pytest.raises(OSError):
        disk.open("none/a", "create")
    assert 0 < disk.free_bytes() <= disk.total_bytes()


def test_a_directory_is_removed_when_it_is_empty(disk: Disk) -> None:
    disk.make_directory("d/e")
    disk.open("d/e/a", "create").close()
    with pytest.raises(OSError):
        disk.remove("d/e")
    disk.remove("d/e/a")
    disk.remove("d/e")
    assert (disk.list("d"), disk.exists("d/e"), disk.exists("d")) == ([], False, True)
    with pytest.raises(FileNotFoundError):
        disk.remove("d/e")


def test_who_opens_one_of_a_files_names_for_writing_changes_that_one_alone(disk: Disk) -> None:
    disk.make_directory("d")
    file = disk.open("d/a", "create")
    file.write(0, b"abc")
    file.sync()
    file.close()
    disk.link("d/a", "kept")
    disk.open("d/a", "write").write(1, b"xy")
    assert disk.open("d/a", "read").read(0, 9) == b"axy"
    assert disk.open("kept", "read").read(0, 9) == b"abc"
    assert disk.list("d") == ["a"]
    disk.open("kept", "write").write(0, b"z")
    assert disk.open("d/a", "read").read(0, 9) == b"axy"


def test_a_copy_for_writing_that_finds_no_room_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FileSystemDisk(tmp_path)
    disk.open("a", "create").write(0, b"abc")
    disk.link("a", "kept")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("waltz_log.filesystem.shutil.copyfileobj", full)
    with pytest.raises(OSError, match="No space"):
        disk.open("a", "write")
    assert disk.list("") == ["a", "kept"]


def test_a_directory_is_locked_once_until_it_is_unlocked(tmp_path: Path) -> None:
    simulated = SimulatedDisk()
    for first, second in ((simulated, simulated), (FileSystemDisk(tmp_path), FileSystemDisk(tmp_path))):
        first.lock()
        with pytest.raises(OSError):
            second.lock()
        first.unlock()
        first.unlock()
        second.lock()
        second.unlock()


def test_a_node_that_starts_waits_for_its_predecessors_lock(tmp_path: Path) -> None:
    predecessor = FileSystemDisk(tmp_path)
    predecessor.lock()
    with pytest.raises(BlockingIOError):
        FileSystemDisk(tmp_path, lock_within_s=0.3).lock()
    ending = threading.Timer(0.5, predecessor.unlock)
    ending.start()
    disk = FileSystemDisk(tmp_path, lock_within_s=60)
    disk.lock()
    ending.join()
    with pytest.raises(BlockingIOError):
        predecessor.lock()
    disk.unlock()


def test_a_large_write_reaches_the_file_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waltz_log.filesystem.WRITE_BYTES_MAX", 1000)
    file = FileSystemDisk(tmp_path).open("a", "create")
    data = bytes(range(256)) * 20
    file.write(7, data)
    assert file.read(7, len(data)) == data


async def test_offloaded_calls_run_beside_the_event_loop() -> None:
    offload = ThreadOffload(2)
    assert await offload(lambda a, b: (a + b, threading.current_thread().name[:10]), 1, 2) == (3, "waltz-disk")
    with pytest.raises(ZeroDivisionError):
        await offload(lambda: 1 // 0)
    await asyncio.gather(offload(int), offload(int))
    offload.close()


# ---- crashes -------------------------------------------------------------------------------------------------------------------------------------


def test_unsynced_records_are_lost_in_a_crash() -> None:
    disk = SimulatedDisk()
    file = disk.open("a", "create")
    file.write(0, b"abc")
    assert not disk.crash().exists("a"), "neither the name nor the bytes were synced"
    disk = SimulatedDisk()
    file = disk.open("a", "create")
    file.write(0, b"abc")
    disk.sync_directory("")
    assert disk.crash().content("a") == b"", "the name was synced"
    disk = SimulatedDisk()
    file = disk.open("a", "create")
    file.write(0, b"abc")
    file.sync()
    disk.sync_directory("")
    file.write(3, b"def")
    file.truncate(1)
    assert disk.crash().content("a") == b"abc"
    disk = disk.crash()
    disk.open("a", "write").allocate(10)
    assert disk.crash().content("a") == b"abc", "allocated space is a change like any other until it is synced"


def test_a_killed_process_leaves_all_it_wrote_but_not_on_the_medium() -> None:
    disk = SimulatedDisk()
    file = disk.open("a", "create")
    disk.sync_directory("")
    file.write(0, b"abc")
    after = disk.crash(keep=True)
    assert after.content("a") == b"abc"
    assert after.crash().content("a") == b""
    after = disk.crash(keep=True)
    after.open("a", "write").sync()
    assert after.crash().content("a") == b"abc"


def test_names_and_bytes_of_unsynced_changes_come_in_every_combination() -> None:
    seen = set()
    for seed in range(1000):
        disk = SimulatedDisk()
        for name in ("a", "b"):
            disk.open(name, "create").write(0, name.encode() * 3)
        after = disk.crash(Random(seed))
        seen.add(tuple((name, after.content(name)) for name in after.list("")))
    assert () in seen
    assert (("b", b"bbb"),) in seen
    assert (("a", b""), ("b", b"b")) in seen
    assert len(seen) > 15


def test_the_same_seed_tears_the_same_way() -> None:
    def run() -> bytes:
        disk = SimulatedDisk()
        file = disk.open("a", "create")
        disk.sync_directory("")
        for n in range(20):
            file.write(5 * n, b"abcde")
        return disk.crash(Random(4)).content("a")

    assert run() == run()


def test_a_dead_machine_does_nothing_more() -> None:
    disk = SimulatedDisk()
    file = disk.open("a", "create")
    disk.crash()
    for call in (lambda: file.write(0, b"x"), lambda: file.read(0, 1), lambda: disk.list(""), disk.lock):
        with pytest.raises(OSError):
            call()


def test_faults_are_planted_before_an_operation_and_a_full_disk_accepts_what_fits() -> None:
    disk = SimulatedDisk(total=5)
    seen: list[Operation] = []
    disk.before = seen.append
    file = disk.open("a", "create")
    with pytest.raises(OSError, match="no space"):
        file.write(0, b"abcdefg")
    assert file.read(0, 9) == b"abcde"
    assert disk.free_bytes() == 0
    file.sync()
    assert seen == [Operation("create", "a"), Operation("write", "a"), Operation("sync", "a")]


def test_every_fate_of_every_unsynced_change_can_be_had() -> None:
    disk = SimulatedDisk()
    file = disk.open("a", "create")
    file.write(0, b"abc")
    file.sync()
    file.write(2, b"CDE")
    file.truncate(4)
    name, write, cut = disk.pending()
    assert [each.size for each in (name, write, cut)] == [0, 3, 0]
    found = {
        tuple(after.content("a") if after.exists("a") else None for after in (disk.survivor([called, torn, shorter]),))
        for called in (LOST, WHOLE)
        for torn in range(4)
        for shorter in (LOST, WHOLE)
    }
    # a cut to four bytes of three makes one of zero
    assert found == {(None,), (b"abc",), (b"abc\0",), (b"abC",), (b"abC\0",), (b"abCD",), (b"abCDE",)}
    assert file.read(0, 9) == b"abCD", "a survivor leaves the disk as it is"


def test_sectors_of_a_write_reach_the_medium_in_any_order() -> None:
    disk = SimulatedDisk()
    file = disk.open("a", "create")
    disk.sync_directory("")
    file.write(500, b"x" * 600)
    (write,) = disk.pending()
    assert write.sectors == 3, "bytes 500..511, 512..1023, 1024..1099"
    assert disk.survivor([(False, True, False)]).content("a") == bytes(512) + b"x" * 512 + bytes(76)
    assert disk.survivor([(True, False, True)]).content("a") == bytes(500) + b"x" * 12 + bytes(512) + b"x" * 76
    assert disk.survivor([(False, False, False)]).content("a") == bytes(1100), "the length came, the bytes did not"


def test_bytes_of_a_failed_sync_are_not_written_by_the_next_one() -> None:
    disk = SimulatedDisk()
    file = disk.open("a", "create")
    disk.sync_directory("")
    file.write(0, b"lost")

    def fail(operation: Operation) -> None:
        if operation.kind == "sync":
            raise OSError(5, "Input/output error")

    disk.before = fail
    with pytest.raises(OSError):
        file.sync()
    disk.before = lambda operation: None
    file.write(4, b"kept")
    file.sync()
    assert file.read(0, 9) == b"lostkept", "who has the file open sees no difference"
    assert disk.fork().crash().content("a") == b"\0\0\0\0kept"
    assert disk.fork().open("a", "write").read(0, 9) == b"\0\0\0\0kept", "who opens it to go on writing sees the medium"


def test_a_fork_shares_nothing_with_the_disk_it_came_from() -> None:
    disk = SimulatedDisk()
    file = disk.open("a", "create")
    file.write(0, b"abc")
    disk.link("a", "b")
    fork = disk.fork()
    file.write(0, b"X")
    disk.remove("b")
    assert (fork.content("a"), fork.list("")) == (b"abc", ["a", "b"])
    assert len(fork.pending()) == 3
    fork.replace("a", b"aYc")
    assert (fork.content("b"), disk.content("a")) == (b"aYc", b"Xbc"), "links to one file stay links to one file"
    assert fork.image() != disk.image()
    assert fork.image() == fork.fork().image()


def test_allocated_space_needs_no_memory_until_it_is_written() -> None:
    disk = SimulatedDisk()
    file = disk.open("a", "create")
    file.allocate(1 << 38)
    file.sync()
    assert (file.size(), file.read((1 << 38) - 2, 9)) == (1 << 38, b"\0\0")
    assert disk.free_bytes() == disk.total_bytes() - (1 << 38)


def test_a_read_only_disk_changes_nothing_and_opens_beside_readers_but_not_beside_a_writer(tmp_path: Path) -> None:
    with pytest.raises(NotADirectoryError):
        ReadOnlyFileSystemDisk(tmp_path / "none")
    writer = FileSystemDisk(tmp_path)
    writer.open("a", "create").write(0, b"abc")
    (tmp_path / "copied").mkdir()
    never_used = ReadOnlyFileSystemDisk(tmp_path / "copied")
    never_used.lock()
    assert list((tmp_path / "copied").iterdir()) == []
    writer.lock()
    looking = ReadOnlyFileSystemDisk(tmp_path)
    with pytest.raises(BlockingIOError):
        looking.lock()
    writer.unlock()
    looking.lock()
    also_looking = ReadOnlyFileSystemDisk(tmp_path)
    also_looking.lock()
    with pytest.raises(BlockingIOError):
        writer.lock()
    assert looking.open("a", "read").read(0, 10) == b"abc"
    assert looking.list("") == ["a", "copied", "waltz.lock"]
    for attempt in (
        lambda: looking.open("a", "write"),
        lambda: looking.open("b", "create"),
        lambda: looking.open("a", "read").write(0, b"x"),
        lambda: looking.make_directory("c"),
        lambda: looking.rename("a", "b"),
        lambda: looking.link("a", "b"),
        lambda: looking.remove("a"),
        lambda: looking.sync_directory(""),
    ):
        with pytest.raises(OSError):
            attempt()
    assert (tmp_path / "a").read_bytes() == b"abc"
    looking.unlock()
    also_looking.unlock()
    writer.lock()
    writer.unlock()
