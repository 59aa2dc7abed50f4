"""A backup of a running node is a cut of its logs, whole and verified; what is restored from it knows that it was."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Literal

import pytest

from verification.crashes.storage_model import KEY, FixedClock, block_of
from waltz_log.core.formats.backup_manifest import MANIFEST, BackupManifest
from waltz_log.core.formats.control_format import SessionMark
from waltz_log.core.ports import Disk
from waltz_log.errors import CorruptData, InvalidSetting, Unavailable
from waltz_log.filesystem import FileSystemDisk, ReadOnlyFileSystemDisk
from waltz_log.storage.control.control import ControlFiles
from waltz_log.storage.control.storage_directory import read_directory
from waltz_log.storage.integrity.verify_directory import verify_directory, verify_small_files
from waltz_log.storage.offline.backup import backup
from waltz_log.storage.offline.restore import checked_file, disown, is_restored, read_manifest, restore
from waltz_log.storage.offline.staging import staged
from waltz_log.storage.segments.segment_log import SegmentLog
from waltz_log.testing.disk import Operation, SimulatedDisk

NOW = 1_700_000_000_000
Source = SimulatedDisk | FileSystemDisk


def _verified(disk: Disk) -> BackupManifest:
    """Raises `CorruptData` for the first file that differs from the manifest."""
    manifest = read_manifest(disk)
    for file in manifest.files:
        for _ in checked_file(disk, file):
            pass
    return manifest


def write(disk: Source, blocks: int = 40) -> SegmentLog:
    """A directory with one partition of some segments, clean up to 49 in session 3. The log stays open, as a running node's."""
    ControlFiles.create(disk, FixedClock(), KEY, 2)
    control = ControlFiles.open(disk)
    control.count_start()
    control.raise_fence(0, 4)
    control.set_mark(0, SessionMark(3, 50, 49))
    control.close()
    log = SegmentLog.open(disk, FixedClock(), KEY, 0, 4096, -1)
    add(log, 0, blocks)
    return log


def add(log: SegmentLog, first: int, blocks: int, *, salt: int = 1) -> None:
    for number in range(first, first + blocks):
        log.append([block_of(0, number * 5, [90] * 5, salt=salt)])


def records(disk: Source) -> bytes:
    """All records of partition 0 in a directory, in order."""
    found = b""
    for name in disk.list("0"):
        if name.endswith(".seg"):
            file = disk.open(f"0/{name}", "read")
            found += file.read(128, file.size() - 128)
            file.close()
    return found


def expected(blocks: int) -> bytes:
    return b"".join(block_of(0, number * 5, [90] * 5, salt=1).records for number in range(blocks))


def well(disk: Source) -> bool:
    findings, notes = verify_small_files(disk, read_directory(disk))
    reports = list(verify_directory(disk))
    return not findings and not notes and not any(report.findings or report.notes for report in reports)


def copied(source: Source) -> SimulatedDisk:
    copy = SimulatedDisk()
    backup(source, copy, NOW)
    return copy


def restored(copy: SimulatedDisk) -> SimulatedDisk:
    disk = SimulatedDisk()
    restore(copy, disk, NOW)
    return disk


# ---- what is in it -----------------------------------------------------------------------------------------------------------------------------


def test_a_restored_directory_holds_what_was_acknowledged_and_knows_that_it_was_restored() -> None:
    disk = SimulatedDisk()
    log = write(disk)
    copy = copied(disk)
    manifest = _verified(copy)
    assert (manifest.cluster_key, manifest.start, manifest.partition_count, manifest.taken_time_ms) == (KEY, 1, 2, NOW)
    assert [(each.first_transaction_id, each.last_transaction_id, each.mark, each.fence) for each in manifest.partitions] == [
        (0, 199, SessionMark(3, 50, 49), 4),
        (0, -1, SessionMark(), -1),
    ]
    found = restored(copy)
    assert well(found)
    assert records(found) == expected(40)
    control = ControlFiles.open(found)
    assert (control.mark(0), control.fence(0), control.start) == (SessionMark(-NOW, 50, 49), 4, 1)
    assert is_restored(read_directory(found))
    assert not is_restored(read_directory(disk))
    again = SegmentLog.open(found, FixedClock(), KEY, 0, 4096, 49)
    assert again.tail.last_id == 199
    log.close()


def test_no_node_starts_on_a_backup() -> None:
    disk = SimulatedDisk()
    write(disk)
    with pytest.raises(InvalidSetting, match="not a storage directory"):
        read_directory(copied(disk))


def test_a_tail_that_is_being_written_is_cut_at_a_record_border() -> None:
    disk = SimulatedDisk()
    write(disk)
    path = f"0/{max(name for name in disk.list('0') if name.endswith('.seg'))}"
    following = block_of(0, 200, [90] * 5, salt=1).records
    for kept in (1, 50, 130, 500, len(following)):  # written, not indexed: no caller got an answer
        whole = disk.content(path)
        disk.replace(path, whole + following[:kept])
        found = restored(copied(disk))
        assert records(found) == expected(40)
        assert well(found)
        disk.replace(path, whole)


def test_preallocated_space_is_not_copied() -> None:
    disk = SimulatedDisk()
    ControlFiles.create(disk, FixedClock(), KEY, 1)
    log = SegmentLog.open(disk, FixedClock(), KEY, 0, 1 << 20, -1, preallocate_bytes=1 << 16)
    add(log, 0, 3)
    found = restored(copied(disk))
    assert records(found) == expected(3)
    assert well(found)


def test_an_empty_node_is_backed_up_too() -> None:
    disk = SimulatedDisk()
    ControlFiles.create(disk, FixedClock(), KEY, 1)
    SegmentLog.open(disk, FixedClock(), KEY, 0, 4096, -1)
    found = restored(copied(disk))
    assert records(found) == b""
    assert well(found)


# ---- beside a running node ---------------------------------------------------------------------------------------------------------------------


class Beside:
    """A source on which something happens at the n-th opening of a file."""

    def __init__(self, disk: SimulatedDisk, at: int, act: Callable[[], None]) -> None:
        self._disk = disk
        self._at = at
        self._act = act
        self.opened = 0

    def open(self, path: str, mode: Literal["read", "write", "create"]) -> Any:
        self.opened += 1
        if self.opened == self._at:
            self._act()
        return self._disk.open(path, mode)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)


SHORT = 18
"""Blocks: two closed segments and a bit."""


def at_every_step(act: Callable[[SegmentLog], None], check: Callable[[SimulatedDisk], None]) -> int:
    """Backs up with `act` happening before each opening of a file; how many there were."""
    step = 0
    while True:
        step += 1
        disk = SimulatedDisk()
        log = write(disk, SHORT)
        source = Beside(disk, step, lambda log=log: act(log))  # type: ignore[misc]
        copy = SimulatedDisk()
        backup(source, copy, NOW)
        _verified(copy)
        found = restored(copy)
        assert well(found)
        check(found)
        if source.opened < step:
            return step


def test_appends_and_rolls_at_any_moment_leave_a_prefix_of_the_log() -> None:
    def check(found: SimulatedDisk) -> None:
        assert expected(SHORT + 20).startswith(records(found))
        assert len(records(found)) >= len(expected(SHORT))

    assert at_every_step(lambda log: add(log, SHORT, 20), check) > 25


def test_a_log_that_is_cut_and_goes_on_differently_is_copied_as_it_is_before_or_after_and_never_mixed() -> None:
    def cut(log: SegmentLog) -> None:
        log.truncate(49)
        add(log, 10, 12, salt=2)

    after = expected(10) + b"".join(block_of(0, number * 5, [90] * 5, salt=2).records for number in range(10, 22))
    seen = set()

    def check(found: SimulatedDisk) -> None:
        whole = records(found)
        assert whole == expected(SHORT) or (after.startswith(whole) and len(whole) >= 60 * 130)
        seen.add(after.startswith(whole))

    at_every_step(cut, check)
    assert seen == {True, False}


def test_a_log_that_is_trimmed_is_copied_from_where_it_begins() -> None:
    def check(found: SimulatedDisk) -> None:
        assert expected(SHORT).endswith(records(found))

    at_every_step(lambda log: log.trim(45), check)


def test_a_log_that_never_holds_still_is_given_up() -> None:
    disk = SimulatedDisk()
    log = write(disk)

    class Restless(Beside):
        def open(self, path: str, mode: Literal["read", "write", "create"]) -> Any:
            if path.endswith(".idx"):
                log.truncate(log.tail.last_id - 5)
            return super().open(path, mode)

    with pytest.raises(Unavailable, match="again and again"):
        backup(Restless(disk, -1, lambda: None), SimulatedDisk(), NOW)


# ---- links -------------------------------------------------------------------------------------------------------------------------------------


def linked_backup(source: Path, target: Path) -> BackupManifest:
    with staged(target, source) as disk:

        def link(path: str, to: str) -> bool:
            os.link(source / path, target.with_name(target.name + ".incomplete") / to)
            return True

        return backup(ReadOnlyFileSystemDisk(source), disk, NOW, link=link)


def test_a_backup_of_links_stays_what_it_was_whatever_the_node_does_later(tmp_path: Path) -> None:
    node = tmp_path / "node"
    log = write(FileSystemDisk(node))
    manifest = linked_backup(node, tmp_path / "backup")
    linked = [file for file in manifest.files if file.linked]
    assert len(linked) >= 3 * 4
    assert all(os.stat(tmp_path / "backup" / file.path).st_nlink == 2 for file in linked)
    before = {file.path: (tmp_path / "backup" / file.path).read_bytes() for file in manifest.files}
    log.truncate(52)  # into what was closed
    add(log, 11, 30, salt=2) if log.tail.last_id == 54 else log.append([block_of(0, 53, [90] * 40, salt=2)])
    log.close()
    again = SegmentLog.open(FileSystemDisk(node), FixedClock(), KEY, 0, 4096, 49)
    again.trim(40)
    again.close()
    assert {file.path: (tmp_path / "backup" / file.path).read_bytes() for file in manifest.files} == before
    _verified(FileSystemDisk(tmp_path / "backup"))
    with staged(tmp_path / "again", tmp_path / "backup") as disk:
        restore(ReadOnlyFileSystemDisk(tmp_path / "backup"), disk, NOW)
    found = FileSystemDisk(tmp_path / "again")
    assert records(found) == expected(40)
    assert not any(os.stat(path).st_nlink > 1 for path in (tmp_path / "again").rglob("*") if path.is_file())


def test_backing_up_and_restoring_change_nothing_of_what_they_read(tmp_path: Path) -> None:
    node = tmp_path / "node"
    log = write(FileSystemDisk(node))

    def state(directory: Path) -> dict[str, tuple[bytes, int]]:
        return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in sorted(directory.rglob("*")) if path.is_file()}

    before = state(node)
    linked_backup(node, tmp_path / "backup")
    assert state(node) == before
    kept = state(tmp_path / "backup")
    with staged(tmp_path / "again", tmp_path / "backup") as disk:
        restore(ReadOnlyFileSystemDisk(tmp_path / "backup"), disk, NOW)
    assert (state(node), state(tmp_path / "backup")) == (before, kept)
    log.close()


# ---- what goes wrong ---------------------------------------------------------------------------------------------------------------------------


def flip(disk: SimulatedDisk, path: str, offset: int) -> None:
    content = bytearray(disk.content(path))
    content[offset] ^= 4
    disk.replace(path, bytes(content))


def test_corruption_is_not_backed_up() -> None:
    disk = SimulatedDisk()
    write(disk)
    segment = sorted(name for name in disk.list("0") if name.endswith(".seg"))[1]
    flip(disk, f"0/{segment}", 2000)
    copy = SimulatedDisk()
    with pytest.raises(CorruptData, match="not backed up") as caught:
        backup(disk, copy, NOW)
    assert caught.value.where == f"0/{segment}"
    assert not copy.exists(MANIFEST)


def test_a_backup_that_changed_in_any_file_is_not_restored() -> None:
    disk = SimulatedDisk()
    write(disk)
    copy = copied(disk)
    rng = Random(3)
    files = [file.path for file in _verified(copy).files]
    for path in [*files, MANIFEST]:
        whole = copy.content(path)
        flip(copy, path, rng.randrange(len(whole)))
        with pytest.raises(CorruptData):
            restored(copy)
        copy.replace(path, whole[:-2])
        with pytest.raises(CorruptData):
            restored(copy)
        copy.replace(path, whole)
    copy.remove(files[3])
    with pytest.raises(CorruptData, match="missing in the backup"):
        restored(copy)


def test_a_manifest_that_names_places_outside_is_refused() -> None:
    disk = SimulatedDisk()
    write(disk)
    copy = copied(disk)
    manifest = _verified(copy)
    for path in ("partitions/../x", "partitions/0/../../x", "/etc/passwd", "partitions/0/.x", "partitions/a/x"):
        file = manifest.files[0].__class__(path, 0, manifest.files[0].sha256, False)
        forged = BackupManifest(KEY, 0, 0, 0, 2, manifest.partitions, (file,))
        copy.replace(MANIFEST, forged.to_bytes())
        with pytest.raises(CorruptData, match="no backup has"):
            restored(copy)


def test_a_crash_or_a_full_disk_at_any_step_leaves_no_backup_or_a_whole_one() -> None:
    source = SimulatedDisk()
    write(source, blocks=15)
    step, finished = 0, False
    while not finished:
        target = SimulatedDisk()

        def before(operation: Operation, target: SimulatedDisk = target, last: int = step) -> None:
            if len(target.operations) > last:
                raise OSError(28, "no space left on device")

        target.before = before
        try:
            backup(source, target, NOW)
            finished = True
        except OSError:
            pass
        for seed in range(2):
            after = target.crash(Random(seed)) if seed else target.crash(keep=True)
            if after.exists(MANIFEST):
                assert records(restored(after)) == expected(15)
            else:
                assert not finished
        step += 3
    assert step > 30


def test_a_restore_that_ends_early_leaves_no_directory_that_a_node_would_open() -> None:
    source = SimulatedDisk()
    write(source, blocks=15)
    copy = copied(source)
    step, finished = 0, False
    while not finished:
        target = SimulatedDisk()

        def before(operation: Operation, target: SimulatedDisk = target, last: int = step) -> None:
            if len(target.operations) > last:
                raise OSError(5, "crash")

        target.before = before
        try:
            restore(copy, target, NOW)
            finished = True
        except OSError:
            pass
        after = target.crash(Random(step))
        try:
            read_directory(after)
        except InvalidSetting:
            assert not finished
        else:
            assert well(after)
            assert records(after) == expected(15)
        step += 3


# ---- the directory it goes to -------------------------------------------------------------------------------------------------------------------


def test_a_directory_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "target"
    with pytest.raises(OSError, match="full"), staged(target, tmp_path / "source") as disk:
        disk.make_directory("0")
        raise OSError("full")
    assert list(tmp_path.iterdir()) == []
    with staged(target, tmp_path / "source") as disk:
        disk.make_directory("0")
        assert not target.exists()
        with pytest.raises(InvalidSetting, match="another process"), staged(target, tmp_path / "source"):
            pass
        assert (tmp_path / "target.incomplete" / "0").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["target"]
    assert [path.name for path in target.iterdir()] == ["0"]


def test_only_an_empty_directory_is_used(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    with staged(target, tmp_path / "source") as disk:
        disk.make_directory("0")
    assert [path.name for path in target.iterdir()] == ["0"]
    other = tmp_path / "other"
    with pytest.raises(InvalidSetting, match="exists already"), staged(other, tmp_path / "source"):
        other.mkdir()
        (other / "somebody's").touch()
    assert [path.name for path in other.iterdir()] == ["somebody's"]


def test_files_of_a_killed_process_are_made_again(tmp_path: Path) -> None:
    left = tmp_path / "target.incomplete"
    (left / "partitions" / "0").mkdir(parents=True)
    (left / "partitions" / "0" / "half").write_text("half")
    (left / MANIFEST).write_text("{")
    with staged(tmp_path / "target", tmp_path / "source") as disk:
        assert disk.list("") == ["waltz.lock"]
    assert not left.exists()


@pytest.mark.parametrize("place", ["source", "source/inside", "."])
def test_a_target_that_is_there_or_within_the_source_is_refused(tmp_path: Path, place: str) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "link").symlink_to("source")
    before = sorted(tmp_path.rglob("*"))
    for source in ("source", "link"):
        with pytest.raises(InvalidSetting, match=r"must not lie within|exists already"), staged(tmp_path / place, tmp_path / source):
            pass
    assert sorted(tmp_path.rglob("*")) == before


def test_an_unmarked_copy_is_recognized() -> None:
    disk = SimulatedDisk()
    write(disk)
    assert not is_restored(read_directory(disk))
    disown(disk, NOW)
    found = read_directory(disk)
    assert is_restored(found)
    assert [entry.mark for entry in found.entries] == [SessionMark(-NOW, 50, 49), SessionMark(-NOW, -1, -1)]
    assert well(disk)


def test_a_directory_restored_with_its_session_is_no_restored_one_and_was_never_started() -> None:
    source, backed_up, target = SimulatedDisk(), SimulatedDisk(), SimulatedDisk()
    log = write(source)
    backup(source, backed_up, NOW)
    log.close()
    restore(backed_up, target, NOW, keep_session=True)
    directory = read_directory(target)
    assert directory.entries[0].mark == SessionMark(3, 50, 49)
    assert not is_restored(directory)
    control = ControlFiles.open(target)
    assert control.start == 0
    assert control.fence(0) == 4
    control.close()


def test_the_pace_counts_each_byte_twice_also_of_linked_files(tmp_path: Path) -> None:
    """docs/guides/operations.md calculates the duration of a backup from this."""
    (tmp_path / "node").mkdir()
    source = FileSystemDisk(tmp_path / "node")
    log = write(source, 100)

    def link(path: str, to: str) -> bool:
        (tmp_path / "linked" / to).hardlink_to(tmp_path / "node" / path)
        return True

    for name, chosen in (("copied", None), ("linked", link)):
        counted: list[int] = []
        (tmp_path / name).mkdir()
        manifest = backup(source, FileSystemDisk(tmp_path / name), NOW, link=chosen, on_bytes=counted.append)
        assert any(file.linked for file in manifest.files) == (chosen is not None)
        assert sum(counted) == pytest.approx(2 * sum(file.size for file in manifest.files), rel=0.02)
    log.close()
