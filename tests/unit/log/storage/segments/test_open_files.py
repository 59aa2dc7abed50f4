"""The bound on open files: who uses one that is not open gets it opened, whatever was closed for it."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Literal
from uuid import UUID

import pytest

from waltz_log.core.formats.block import Block
from waltz_log.core.formats.records import encode_record
from waltz_log.core.ports import DiskFile
from waltz_log.filesystem import FileSystemDisk
from waltz_log.storage.segments.open_files import OpenFiles
from waltz_log.storage.segments.segment_log import SegmentLog
from waltz_log.testing.disk import Operation, SimulatedDisk


class CountingDisk(SimulatedDisk):
    """Knows how many files are open, and how many ever were at once."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.most = 0

    def open(self, path: str, mode: Literal["read", "write", "create"]) -> DiskFile:
        file = super().open(path, mode)
        self.count += 1
        self.most = max(self.most, self.count)
        close = file.close

        def counted() -> None:
            self.count -= 1
            close()

        file.close = counted  # type: ignore[method-assign]
        return file


def put(disk: SimulatedDisk | FileSystemDisk, names: list[str]) -> None:
    for name in names:
        file = disk.open(name, "create")
        file.write(0, name.encode())
        file.sync()
        file.close()


def test_no_more_files_are_open_than_allowed_and_the_least_used_goes_first() -> None:
    disk = CountingDisk()
    put(disk, [f"f{n}" for n in range(5)])
    files = OpenFiles(disk, 3)
    opened = [files.reading(f"f{n}") for n in range(5)]
    for n in (0, 1, 2, 0, 3, 4):
        assert opened[n].read(0, 9) == f"f{n}".encode()
    assert disk.most == files.count == 3
    before = disk.most
    disk.most = 0
    opened[0].read(0, 1)
    assert disk.most == 0, "the one that was used again was kept"
    opened[1].read(0, 1)
    assert disk.most == before


def test_readers_of_a_path_share_one_file() -> None:
    disk = CountingDisk()
    put(disk, ["a"])
    files = OpenFiles(disk, 9)
    first, second = files.reading("a"), files.reading("a")
    assert (first.read(0, 1), second.read(0, 1)) == (b"a", b"a")
    assert first is second
    assert disk.count == 1


def test_written_bytes_are_synced_before_their_file_is_closed_for_another() -> None:
    disk = CountingDisk()
    put(disk, ["a", "b"])
    disk.sync_directory("")
    files = OpenFiles(disk, 1)
    written = files.writing("a")
    written.write(0, b"xyz")
    files.reading("b").read(0, 1)
    assert disk.crash().content("a") == b"xyz"


def test_a_file_without_unsynced_bytes_is_closed_rather_than_one_with() -> None:
    disk = CountingDisk()
    put(disk, ["a", "b", "c"])
    files = OpenFiles(disk, 2)
    written = files.writing("a")
    written.write(0, b"xyz")
    files.reading("b").read(0, 1)
    done = len(disk.operations)
    files.reading("c").read(0, 1)
    assert disk.operations[done:] == []


def test_a_sync_that_fails_before_a_file_is_closed_is_raised_at_its_next_use_and_never_tried_again() -> None:
    disk = CountingDisk()
    put(disk, ["a", "b"])
    files = OpenFiles(disk, 1)
    written = files.writing("a")
    written.write(0, b"xyz")

    def before(operation: Operation) -> None:
        if operation.kind == "sync":
            raise OSError(5, "Input/output error", operation.path)

    disk.before = before
    assert files.reading("b").read(0, 1) == b"b"
    disk.before = lambda operation: None
    done = len(disk.operations)
    changes: list[Callable[[], None]] = [lambda: written.write(0, b"a"), written.sync, lambda: written.truncate(0), lambda: written.allocate(9)]
    for change in changes:
        with pytest.raises(OSError, match="Input/output"):
            change()
    written.close()
    assert disk.operations[done:] == []


def test_a_path_that_means_another_file_is_opened_again() -> None:
    disk = CountingDisk()
    put(disk, ["a", "b"])
    files = OpenFiles(disk, 9)
    reader = files.reading("a")
    assert reader.read(0, 1) == b"a"
    disk.rename("b", "a")
    assert reader.read(0, 1) == b"a"
    files.forget("a")
    assert reader.read(0, 1) == b"b"
    disk.remove("a")
    files.forget("a")
    with pytest.raises(FileNotFoundError):
        reader.read(0, 1)
    assert files.count == disk.count == 0


def test_many_threads_share_few_files(tmp_path: Path) -> None:
    disk = FileSystemDisk(tmp_path)
    names = [f"f{n}" for n in range(20)]
    put(disk, names)
    files = OpenFiles(disk, 4)
    writers = [files.writing(name) for name in names[:6]]
    wrong: list[str] = []
    most = 0
    begin = threading.Barrier(8)

    def work(seed: int) -> None:
        nonlocal most
        random = Random(seed)
        begin.wait()
        for step in range(300):
            n = random.randrange(20)
            if files.reading(names[n]).read(0, len(names[n])) != names[n].encode():
                wrong.append(names[n])
            if n == seed < 6:
                writers[n].write(100, step.to_bytes(4, "big"))
                if writers[n].read(100, 4) != step.to_bytes(4, "big"):
                    wrong.append(f"written {n}")
            if n == 19:
                files.forget(names[random.randrange(6, 19)])
            most = max(most, files.count)

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(work, seed) for seed in range(8)]:
            done.result()
    assert not wrong
    assert most <= 4 + 2 * 8 + 8, "two places for each thread, and a file that was forgotten while the thread uses it"
    files.reading("f0").read(0, 1)
    files.reading("f1").read(0, 1)
    assert files.count <= 4
    for name in names:
        files.forget(name)
    assert files.count == 0


def test_an_owner_can_write_while_a_reader_opens_the_file(tmp_path: Path) -> None:
    entered, go_on = threading.Event(), threading.Event()

    class SlowDisk(FileSystemDisk):
        def open(self, path: str, mode: Literal["read", "write", "create"]) -> DiskFile:
            file = super().open(path, mode)
            if mode == "read":
                entered.set()
                go_on.wait(10)
            return file

    disk = SlowDisk(tmp_path)
    put(disk, ["a"])
    files = OpenFiles(disk, 4)
    with ThreadPoolExecutor(2) as pool:
        reading = pool.submit(files.reading("a").read, 0, 1)
        assert entered.wait(10)
        writing = pool.submit(files.writing, "a")
        with pytest.raises(TimeoutError):
            writing.result(0.05)
        go_on.set()
        assert reading.result() == b"a"
        owner = writing.result()
    owner.write(0, b"z")
    assert owner.read(0, 1) == b"z"


class FixedClock:
    def now_ms(self) -> int:
        return 1_600_000_000_000


def test_two_hundred_partitions_live_with_a_few_files_and_keep_what_they_acknowledged() -> None:
    disk = CountingDisk()
    files = OpenFiles(disk, 12)
    key = UUID(int=5)
    logs = [SegmentLog.open(disk, FixedClock(), key, partition, 4096, -1, files=files) for partition in range(200)]
    for first in range(2):
        for log in logs:
            record = encode_record(1, 1, log.partition, 0, 0, b"x" * 50, first)
            log.append([Block(first, struct.pack(">i", len(record)), record, 1000 + first)])
    assert files.count <= 12
    assert disk.most <= 14, "a file that is made new is open for a moment besides"
    for log in logs[::19]:
        (found,) = log.read(log.reader(0), 1, 1, 1 << 20)
        assert found.append_time_ms == 1001
    survivor = disk.crash()
    for partition in range(0, 200, 19):
        assert SegmentLog.open(survivor, FixedClock(), key, partition, 4096, -1).tail.last_id == 1
