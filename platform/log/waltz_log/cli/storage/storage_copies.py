"""The commands of `waltz storage` that write: a converted directory, corrected times, a backup, a directory from a backup."""

from __future__ import annotations

import fcntl
import os
from dataclasses import asdict
from pathlib import Path

from waltz_log.cli.printing import print_data, print_line, print_result
from waltz_log.cli.storage.storage_tools import Pacer
from waltz_log.cli.times import parse_time
from waltz_log.core.formats.backup_manifest import BackupManifest
from waltz_log.core.formats.control_format import CONTROL_FILE
from waltz_log.errors import InvalidSetting
from waltz_log.exit_codes import OK
from waltz_log.filesystem import FileSystemDisk, ReadOnlyFileSystemDisk
from waltz_log.processes.clock import WallClock
from waltz_log.storage.offline.append_times import correct_append_times
from waltz_log.storage.offline.backup import backup
from waltz_log.storage.offline.migrate import JAVA_CONTROL_FILE, migrate
from waltz_log.storage.offline.partition_copy import copy_partition
from waltz_log.storage.offline.restore import restore
from waltz_log.storage.offline.staging import SUFFIX, staged

__all__ = ["backup_directory", "copy_one_partition", "correct_times", "migrate_directory", "restore_directory"]


def migrate_directory(directory: Path, output: str) -> int:
    _expect_directory(directory)
    _refuse_the_originals(directory / CONTROL_FILE)
    done = migrate(FileSystemDisk(directory))
    if output != "table":
        fields = {"migrated": done.done, "kept": JAVA_CONTROL_FILE, "marks": [asdict(mark) for mark in done.marks]}
        print_data(fields | {"last_transaction_ids": done.last_transaction_ids}, output)
        return OK
    if not done.done:
        print_line(f"nothing to do: {directory} was migrated before, {JAVA_CONTROL_FILE} is the file it had")
        return OK
    for partition, mark in enumerate(done.marks):
        last = done.last_transaction_ids.get(partition, -1)
        print_line(f"partition {partition}: session={mark.session} low_water_mark={mark.low_water_mark} last_transaction_id={last}")
    print_line(f"migrated {directory}, the original's control file is kept as {JAVA_CONTROL_FILE}")
    return OK


def _expect_directory(directory: Path) -> None:
    if not (directory / CONTROL_FILE).is_file():
        raise InvalidSetting(name="directory", reason=f"is not a storage directory: it holds no {CONTROL_FILE}: {directory}", nearest=None)


def _refuse_the_originals(control_file: Path) -> None:
    """The original locks its control file for as long as it runs, in the way of `fcntl`, which knows nothing of ours."""
    descriptor = os.open(control_file, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise InvalidSetting(name="directory", reason=f"is in use by a storage node of Java Waltz: {error.strerror}", nearest=None) from None
    finally:
        os.close(descriptor)


def copy_one_partition(source: Path, target: Path, partition: int, mib_per_s: float, output: str = "table") -> int:
    _expect_directory(source)
    _expect_directory(target)
    if os.path.samefile(source, target):
        raise InvalidSetting(name="target", reason=f"is the source itself: {target}", nearest=None)
    done = copy_partition(ReadOnlyFileSystemDisk(source), FileSystemDisk(target), partition, WallClock(), Pacer(mib_per_s))
    line = f"partition {partition}: kept up to {done.kept}, copied up to {done.last}"
    if done.last == done.kept:
        line = f"partition {partition}: nothing to copy, the target stays as it is, clean up to {done.kept}, the source not beyond that"
    print_result({"partition": partition, "kept_up_to": done.kept, "copied_up_to": done.last}, [line], output)
    return OK


def correct_times(directory: Path, latest: str, partitions: set[int] | None, output: str) -> int:
    _expect_directory(directory)
    found = correct_append_times(FileSystemDisk(directory), parse_time("--latest", latest, WallClock().now_ms()), partitions)
    if output != "table":
        print_data({"corrected_blocks": found}, output)
        return OK
    for partition, count in sorted(found.items()):
        print_line(f"partition {partition}: corrected the time of {count} blocks")
    if not found:
        print_line(f"nothing to do: no append time in {directory} is later than {latest}")
    return OK


def backup_directory(source: Path, target: Path, mib_per_s: float, output: str) -> int:
    _expect_directory(source)
    with staged(target, source) as disk:
        making = target.absolute().with_name(target.name + SUFFIX)

        def link(path: str, to: str) -> bool:
            try:
                os.link(source / path, making / to)
            except FileNotFoundError:
                raise
            except OSError:
                return False  # another file system, or one without links
            return True

        manifest = backup(ReadOnlyFileSystemDisk(source), disk, WallClock().now_ms(), link=link, on_bytes=Pacer(mib_per_s))
    _print_manifest("backup", target, manifest, output)
    return OK


def restore_directory(source: Path, target: Path, mib_per_s: float, output: str, *, keep_session: bool = False) -> int:
    if not source.is_dir():
        raise InvalidSetting(name="backup", reason=f"is not a directory: {source}", nearest=None)
    with staged(target, source) as disk:
        manifest = restore(ReadOnlyFileSystemDisk(source), disk, WallClock().now_ms(), Pacer(mib_per_s), keep_session=keep_session)
    _print_manifest("restored", target, manifest, output)
    return OK


def _print_manifest(what: str, target: Path, manifest: BackupManifest, output: str) -> None:
    linked = sum(file.size for file in manifest.files if file.linked)
    size = sum(file.size for file in manifest.files)
    if output != "table":
        partitions = [asdict(partition) for partition in manifest.partitions]
        fields = {what: str(target), "cluster_key": str(manifest.cluster_key), "taken_time_ms": manifest.taken_time_ms, "bytes": size}
        print_data(fields | {"linked_bytes": linked, "files": len(manifest.files), "partitions": partitions}, output)
        return
    for partition in manifest.partitions:
        ids = f"{partition.first_transaction_id}..{partition.last_transaction_id}"
        print_line(
            f"partition {partition.partition}: transactions={ids} session={partition.mark.session} clean_up_to={partition.mark.local_low_water_mark}"
        )
    print_line(f"{what} {target}: files={len(manifest.files)} bytes={size} linked_bytes={linked} cluster_key={manifest.cluster_key}")
