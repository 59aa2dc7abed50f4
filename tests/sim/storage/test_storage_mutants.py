"""Bugs that a log storage must not have, planted one at a time: each is caught by the check that is there for it, or that check is worth nothing.

Most are planted in the disk that the engine works on, as what an engine with that bug would have done; so they stay when the engine is rewritten.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import pytest

from verification.crashes.crashes import SHORT, CrashFound, enumerate_crashes
from verification.crashes.storage_corruption import CorruptionFound, flips
from verification.crashes.storage_crashes import SCENARIOS, crash
from verification.crashes.storage_model import StorageLife, append, block_of, check, silent_logs
from waltz_log.core.formats import columns
from waltz_log.core.formats.block import Block
from waltz_log.core.ports import DiskFile
from waltz_log.errors import CorruptData, StorageFailed
from waltz_log.storage.replica.unsynced import UnsyncedMark
from waltz_log.storage.replica.write_rounds import WriteRounds
from waltz_log.storage.segments.segment import ActiveSegment
from waltz_log.storage.segments.segment_log import SegmentLog
from waltz_log.testing.disk import Operation, SimulatedDisk
from waltz_log.testing.medium import LOST


@pytest.fixture(autouse=True)
def _silent() -> Iterator[None]:
    with silent_logs():
        yield


class MutantFile:
    """A file whose syncs are `sync`'s."""

    def __init__(self, file: DiskFile, sync: Callable[[DiskFile], None]) -> None:
        self._file = file
        self._sync = sync

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def sync(self) -> None:
        self._sync(self._file)


class MutantDisk(SimulatedDisk):
    """`sync` does what should be a sync of the files that end with `name`; directories of which `forgets` is true are not synced."""

    def __init__(self, name: str = "-", sync: Callable[[DiskFile], None] | None = None, forgets: Callable[[str], bool] | None = None) -> None:
        super().__init__()
        self.name = name
        self.sync = sync or DiskFile.sync
        self.forgets = forgets or (lambda path: False)
        self.fault: Callable[[Operation], None] = lambda operation: None

    def _operate(self, kind: str, path: str) -> None:
        super()._operate(kind, path)
        self.fault(Operation(kind, path))

    def open(self, path: str, mode: Literal["read", "write", "create"]) -> DiskFile:
        file = super().open(path, mode)
        return MutantFile(file, self.sync) if path.endswith(self.name) else file

    def sync_directory(self, path: str) -> None:
        if not self.forgets(path):
            super().sync_directory(path)


def no_sync(file: DiskFile) -> None:
    pass


async def test_nothing_is_found_without_a_mutant() -> None:
    assert (await crash("append", SHORT, disk=MutantDisk())).checked > 50


# ---- caught by going through the crashes ---------------------------------------------------------------------------------------------------------


async def test_acknowledging_before_the_sync_is_caught() -> None:
    with pytest.raises(CrashFound, match="last transaction is"):
        await crash("append", SHORT, disk=MutantDisk(".seg", no_sync))


async def test_a_fence_that_is_not_synced_is_caught() -> None:
    with pytest.raises(CrashFound, match=r"starts went back|fence is"):
        await crash("marks", SHORT, disk=MutantDisk("waltz-storage.fence", no_sync))


async def test_a_mark_that_is_not_synced_is_caught() -> None:
    with pytest.raises(CrashFound, match="mark is"):
        await crash("marks", SHORT, disk=MutantDisk("waltz-storage.ctl", no_sync))


async def test_skipping_the_directory_sync_of_a_roll_is_caught() -> None:
    with pytest.raises(CrashFound):
        await crash("roll", SHORT, disk=MutantDisk(forgets=lambda path: path == "0"))


async def test_skipping_the_directory_sync_of_a_new_node_is_caught() -> None:
    with pytest.raises(CrashFound, match="the node is gone"):
        await crash("grow", SHORT, disk=MutantDisk(forgets=lambda path: path == ""))


async def test_rolling_without_the_files_synced_is_caught() -> None:
    with pytest.raises(CrashFound):
        await crash("roll", SHORT, disk=MutantDisk(".seg.new", no_sync))


async def test_a_second_sync_after_a_failed_one_is_caught() -> None:
    class Failing(StorageLife):
        async def before(self) -> None:
            self.create(1)
            await self.open()
            await self.session(0, 1)
            await self.append(0, 1, [10])

        async def steps(self) -> None:
            assert isinstance(self.disk, MutantDisk)
            failures = iter([True])

            def fault(operation: Operation) -> None:
                if operation.kind == "sync" and operation.path.endswith(".seg") and next(failures, False):
                    raise OSError(5, "Input/output error")

            self.disk.fault = fault
            try:
                await self.append(0, 1, [20, 30])
            except StorageFailed:
                done = len(self.disk.operations)
                with pytest.raises(StorageFailed):
                    await append(await self.node.partition(0), 1, [block_of(0, 1, [40], salt=2)])
                assert len(self.disk.operations) == done, "a partition that failed leaves its files alone"

    def again(file: DiskFile) -> None:
        try:
            file.sync()
        except OSError:
            file.sync()

    assert (await enumerate_crashes("failing", Failing, check, SHORT, disk=MutantDisk())).points >= 3
    with pytest.raises(CrashFound, match=r"last transaction is 0|acknowledged transactions are missing"):
        await enumerate_crashes("failing", Failing, check, SHORT, disk=MutantDisk(".seg", again))


async def test_removing_the_oldest_segment_first_in_a_truncation_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    class Cut(StorageLife):
        async def before(self) -> None:
            self.create(1)
            await self.open()
            await self.session(0, 1)
            for size in (3000, 3100, 3200, 3300):
                await self.append(0, 1, [size])

        async def steps(self) -> None:
            await self.truncate(0, 1, 0)

    def oldest_first(log: SegmentLog, last_id: int) -> None:
        disk = log.files.disk
        for first in sorted({int(name[:19]) for name in disk.list("0")}):
            if first > last_id:
                for name in [name for name in disk.list("0") if int(name[:19]) == first]:
                    disk.remove(f"0/{name}")
                disk.sync_directory("0")
        log.tail = log.tail._replace(last_id=last_id)

    assert (await enumerate_crashes("cut", Cut, check, SHORT)).checked > 10
    monkeypatch.setattr(SegmentLog, "truncate", oldest_first)
    with pytest.raises(CrashFound):
        await enumerate_crashes("cut", Cut, check, SHORT)


async def names_given_too_early(disk: SimulatedDisk) -> list[str]:
    """Which files of closed segments were not on the medium whole when the next segment got its name. What a crash leaves then is healed, so going
    through the crashes does not show it; it costs a scan of a segment that should not be needed."""
    found: list[str] = []

    def before(operation: Operation) -> None:
        if operation.kind == "rename" and operation.path.endswith(".seg"):
            medium = disk.survivor([LOST] * len(disk.pending()))
            closed = [f"0/{name}" for name in disk.list("0") if not name.endswith(".new") and int(name[:19]) < int(operation.path[2:21])]
            found.extend(path for path in closed if not medium.exists(path) or medium.content(path) != disk.content(path))

    life = SCENARIOS["roll"]()
    await life.prepare(disk)
    disk.before = before
    await life.run(disk)
    return found


async def test_rolling_without_the_index_is_caught() -> None:
    assert await names_given_too_early(MutantDisk()) == []
    assert {path[-4:] for path in await names_given_too_early(MutantDisk(".idx", no_sync))} == {".idx"}
    assert {path[-4:] for path in await names_given_too_early(MutantDisk(".tix", no_sync))} == {".tix"}


async def test_rolling_without_the_index_is_caught_if_no_opening_repairs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SegmentLog, "repair_index", lambda log, first: False)
    assert (await crash("roll", SHORT, disk=MutantDisk())).checked > 50
    with pytest.raises(CrashFound, match="CorruptData"):
        await crash("roll", SHORT, disk=MutantDisk(".idx", no_sync))


# ---- caught where transactions are acknowledged before they are on disk ----------------------------------------------------------------------------


async def test_an_index_that_is_newer_than_its_data_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def index_first(segment: ActiveSegment, blocks: Sequence[Block], allocate_to: int, *, sync: bool = True) -> None:
        written(segment, blocks, allocate_to, sync=False)
        segment._index.write(segment._index_offset(segment.synced_id), b"".join(segment._entries))
        if sync:
            segment.sync()

    written = ActiveSegment.append
    monkeypatch.setattr(ActiveSegment, "append", index_first)
    with pytest.raises(CrashFound, match="CorruptData"):
        await crash("memory", SHORT)


async def test_claiming_what_is_not_synced_to_be_clean_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(rounds: WriteRounds) -> None:
        """Counts what is written as synced."""
        rounds._log.tail = rounds._log.tail._replace(last_id=rounds._log.written_id)

    monkeypatch.setattr(WriteRounds, "sync", nothing)
    with pytest.raises(CrashFound, match=r"last transaction is|acknowledged transactions are missing"):
        await crash("memory", SHORT)


async def test_not_reporting_that_something_may_be_lacking_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgets(mark: UnsyncedMark, log: SegmentLog) -> None:
        mark.there = True

    monkeypatch.setattr(UnsyncedMark, "put", forgets)
    monkeypatch.setattr(UnsyncedMark, "settle", lambda mark, log: None)
    with pytest.raises(CrashFound, match="nobody is told"):
        await crash("memory", SHORT)


# ---- caught by flipping bits ---------------------------------------------------------------------------------------------------------------------


def replace_everywhere(monkeypatch: pytest.MonkeyPatch, old: Callable[..., Any], new: Callable[..., Any]) -> None:
    """Puts a function in the place of another in every module of the engine that uses it."""
    places = 0
    for name, module in list(sys.modules.items()):
        if name.startswith("waltz_log.storage") and getattr(module, old.__name__, None) is old:
            monkeypatch.setattr(module, old.__name__, new)
            places += 1
    assert places, f"the engine does not use {old.__name__} any more"


async def test_accepting_a_record_with_a_bad_data_checksum_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    verify = columns.verify_records

    def careless(*arguments: Any, **named: Any) -> None:
        try:
            verify(*arguments, **named)
        except CorruptData as error:
            if "checksum" not in error.reason:
                raise

    replace_everywhere(monkeypatch, verify, careless)
    with pytest.raises(CorruptionFound, match="other bytes than were appended"):
        await flips("seg", 200)


async def test_truncating_below_good_data_on_corruption_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = SegmentLog.open.__func__  # type: ignore[attr-defined]

    def careless(cls: type[SegmentLog], disk: SimulatedDisk, *arguments: Any, **named: Any) -> SegmentLog:
        try:
            return opened(cls, disk, *arguments, **named)  # type: ignore[no-any-return]
        except CorruptData as error:
            file = disk.open(error.where, "write")
            file.truncate(error.offset)
            file.sync()
            disk.remove(error.where.replace(".seg", ".idx"))
            return opened(cls, disk, *arguments, **named)  # type: ignore[no-any-return]

    monkeypatch.setattr(SegmentLog, "open", classmethod(careless))
    with pytest.raises(CorruptionFound, match="the log ends at"):
        await flips("seg", 1000)
