"""Converts the directory of a Java Waltz 0.13 storage in place: adds a control file and a fence file of ours and keeps the segments.

The order makes a crash at any step harmless: the fences are written, then a copy of the original's control file under a name that says what it is,
then the new control file is renamed over the old one. Until then the directory is the original's, from then on ours. Each file is renamed from a
synced temporary one, so none is ever incomplete. A second run does nothing.

Refused (`InvalidSetting`, `CorruptData`) if a node holds the directory, if the two structs do not show which of them is valid, if a file of an
earlier conversion has other content, if the segments are damaged or do not reach what the control file says was acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from waltz_log.core.formats.control_format import (
    CONTROL_FILE,
    CONTROL_HEADER_BYTES,
    FENCE_FILE,
    SessionMark,
    encode_counter,
    encode_entry,
)
from waltz_log.core.formats.java_control_format import JAVA_ENTRY_BYTES
from waltz_log.core.ports import Disk
from waltz_log.errors import CorruptData, InvalidSetting, StorageFailed
from waltz_log.storage.control.storage_directory import StorageDirectory, partition_directories, read_directory, read_file
from waltz_log.storage.integrity.verify_directory import verify_directory, verify_small_files
from waltz_log.storage.offline.locked import locked

__all__ = ["JAVA_CONTROL_FILE", "Migration", "migrate"]

JAVA_CONTROL_FILE: Final = "waltz-storage.ctl.java-0.13"
"""Where the original's control file is kept. Renamed back, it lets the original start again."""


@dataclass(frozen=True, slots=True)
class Migration:
    """`done` is False if the directory was ours already. `last_transaction_ids`: by partition, of those that have files."""

    done: bool
    marks: tuple[SessionMark, ...]
    last_transaction_ids: dict[int, int]


def _nothing(_bytes: int) -> None:
    pass


def migrate(disk: Disk, on_bytes: Callable[[int], None] = _nothing) -> Migration:
    """Verifies all segments first; `on_bytes` receives the bytes of each step."""
    with locked(disk):
        try:
            return _migrate(disk, on_bytes)
        except OSError as error:
            raise StorageFailed(partition=-1, reason=f"cannot migrate: {error}") from None


def _migrate(disk: Disk, on_bytes: Callable[[int], None]) -> Migration:
    found = read_directory(disk)
    if found.java is None:
        if not disk.exists(JAVA_CONTROL_FILE):
            raise InvalidSetting(name="directory", reason="holds no control file of Java Waltz: there is nothing to migrate", nearest=None)
        return Migration(False, tuple(entry.mark or SessionMark() for entry in found.entries), {})
    marks = _marks(disk, found)
    last_ids = _verified(disk, found, on_bytes)
    header = found.header.to_bytes()
    # The sessions of the original's servers ended with it; the next owner has a later session than the marks.
    fences = header + b"".join(2 * encode_counter(value) for value in (0, *(mark.session for mark in marks)))
    _put(disk, FENCE_FILE, fences)
    _put(disk, JAVA_CONTROL_FILE, read_file(disk, CONTROL_FILE))
    _replace(disk, CONTROL_FILE, header + b"".join(encode_entry(partition, mark) for partition, mark in enumerate(marks)))
    return Migration(True, marks, last_ids)


def _marks(disk: Disk, found: StorageDirectory) -> tuple[SessionMark, ...]:
    findings, _ = verify_small_files(disk, found)
    if findings:
        first = findings[0]
        raise CorruptData(where=first.file, offset=first.offset, transaction_id=-1, reason=first.reason)
    marks = []
    for place, entry in enumerate(found.entries):
        mark = entry.mark
        assert mark is not None, "two invalid structs are a finding"
        if not -1 <= mark.local_low_water_mark <= mark.low_water_mark or mark.session < -1:
            where = CONTROL_HEADER_BYTES + place * JAVA_ENTRY_BYTES
            raise CorruptData(where=CONTROL_FILE, offset=where, transaction_id=-1, reason=f"impossible marks partition={place} {mark}")
        marks.append(mark)
    return tuple(marks)


def _verified(disk: Disk, found: StorageDirectory, on_bytes: Callable[[int], None]) -> dict[int, int]:
    """The last id of each partition. Raises the first finding, if any: it must be repaired first, by the original or from another storage."""
    last_ids: dict[int, int] = {}
    for report in verify_directory(disk, on_bytes=on_bytes):
        if report.findings:
            first = report.findings[0]
            raise CorruptData(where=first.file, offset=first.offset, transaction_id=first.transaction_id, reason=first.reason)
        last_ids[report.partition] = report.last_transaction_id
    for partition in range(found.header.partitions):
        known_good, last = found.known_good(partition), last_ids.get(partition, -1)
        if known_good > last:
            reason = f"acknowledged transactions are missing: known_good={known_good}"
            raise CorruptData(where=str(partition), offset=0, transaction_id=last + 1, reason=reason)
    foreign = [partition for partition in partition_directories(disk) if partition >= found.header.partitions]
    if foreign:
        reason = f"holds files of partitions that its control file does not know: {foreign[:10]}"
        raise InvalidSetting(name="directory", reason=reason, nearest=None)
    return last_ids


def _put(disk: Disk, path: str, content: bytes) -> None:
    """Writes the file, or accepts it if an earlier, interrupted conversion wrote it. Refuses to overwrite a file with other content."""
    if disk.exists(path):
        if read_file(disk, path) != content:
            raise InvalidSetting(name="directory", reason=f"holds a {path} that says something else: move it away if it is not needed", nearest=None)
        return
    _replace(disk, path, content)


def _replace(disk: Disk, path: str, content: bytes) -> None:
    temporary = f"{path}.new"
    if disk.exists(temporary):
        disk.remove(temporary)
    file = disk.open(temporary, "create")
    try:
        file.write(0, content)
        file.sync()
    finally:
        file.close()
    disk.rename(temporary, path)
    disk.sync_directory("")
