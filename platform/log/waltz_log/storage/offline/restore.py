"""Makes a storage directory from a backup, or from a copy that was made in any other way: one that knows that it was restored.

What a restored replica once acknowledged it may have forgotten, and what it holds above its low-water mark may have been cut since. So the session of
each partition becomes a number below every real one (the time of the restoring, negative, which also tells two restorings apart): an owner then sees
a session that went backwards, cuts the replica to its low-water mark, counts it as absent in votes, and fills it from its peers; only when it holds
everything again does it get a session and a voice (docs/decisions/0008). No reader is served by it before that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Final

from waltz_log.core.formats.backup_manifest import MANIFEST, BackupFile, BackupManifest
from waltz_log.core.formats.control_format import (
    CONTROL_FILE,
    CONTROL_HEADER_BYTES,
    FENCE_FILE,
    ControlHeader,
    SessionMark,
    encode_counter,
    encode_entry,
)
from waltz_log.core.ports import Disk
from waltz_log.errors import CorruptData, InvalidSetting
from waltz_log.storage.control.directory import StorageDirectory, read_directory, read_file
from waltz_log.storage.offline.backup import PARTITIONS
from waltz_log.storage.segments.segment import put_file

__all__ = ["checked_file", "disown", "is_restored", "read_manifest", "restore", "verify_backup"]

COPY_BYTES: Final = 1024 * 1024


def _nothing(_bytes: int) -> None:
    pass


def read_manifest(disk: Disk) -> BackupManifest:
    """Raises `InvalidSetting` where it is no backup, or one that was not finished; `CorruptData` where the manifest is damaged."""
    if not disk.exists(MANIFEST):
        raise InvalidSetting(name="backup", reason=f"is no backup: it holds no {MANIFEST}", nearest=None)
    return BackupManifest.from_bytes(read_file(disk, MANIFEST))


def verify_backup(disk: Disk, told: Callable[[int], None] = _nothing) -> BackupManifest:
    """Reads every file and compares it with the manifest. Raises `CorruptData` for the first that differs."""
    manifest = read_manifest(disk)
    for file in manifest.files:
        for chunk in checked_file(disk, file):
            told(len(chunk))
    return manifest


def checked_file(disk: Disk, expected: BackupFile) -> Iterable[bytes]:
    """The file's bytes; the last of them only if all match. A linked file may be longer by now: what is beyond is none of the backup's."""
    try:
        file = disk.open(expected.path, "read")
    except FileNotFoundError:
        raise CorruptData(where=expected.path, offset=0, transaction_id=-1, reason="is missing in the backup") from None
    digest, done = sha256(), 0
    held = b""
    try:
        while done < expected.size:
            chunk = file.read(done, min(COPY_BYTES, expected.size - done))
            if not chunk:
                raise CorruptData(where=expected.path, offset=done, transaction_id=-1, reason=f"is cut off: bytes={done} expected={expected.size}")
            digest.update(chunk)
            done += len(chunk)
            if held:
                yield held
            held = chunk
    finally:
        file.close()
    if digest.hexdigest() != expected.sha256:
        raise CorruptData(where=expected.path, offset=0, transaction_id=-1, reason="is not what was backed up: checksum does not match")
    yield held


def restore(source: Disk, target: Disk, now_ms: int, told: Callable[[int], None] = _nothing) -> BackupManifest:
    """Fills an empty `target` from a backup; everything is on the medium when it returns. Raises `CorruptData` where the backup is not whole."""
    manifest = read_manifest(source)
    directories = {str(partition.partition) for partition in manifest.partitions if partition.last_transaction_id >= 0}
    for file in manifest.files:
        path = _place(file.path)
        directories.add(path.partition("/")[0])
        target.make_directory(path.partition("/")[0])
        made = target.open(path, "create")
        try:
            done = 0
            for chunk in checked_file(source, file):
                made.write(done, chunk)
                done += len(chunk)
                told(len(chunk))
            made.sync()
        finally:
            made.close()
    for directory in sorted(directories):
        target.sync_directory(directory)
    header = ControlHeader(manifest.creation_time_ms, manifest.cluster_key, manifest.partition_count).to_bytes()
    fences = [manifest.start, *(partition.fence for partition in manifest.partitions)]
    _put(target, FENCE_FILE, header + b"".join(2 * encode_counter(value) for value in fences))
    marks = [_restored(partition.mark, now_ms) for partition in manifest.partitions]
    _put(target, CONTROL_FILE, header + b"".join(encode_entry(partition, mark) for partition, mark in enumerate(marks)))
    return manifest


def _place(path: str) -> str:
    """Where a file of the backup goes. Raises where the manifest names a place outside of it."""
    parts = path.split("/")
    if len(parts) != 3 or parts[0] != PARTITIONS or not parts[1].isdigit() or parts[2].startswith("."):
        raise CorruptData(where=MANIFEST, offset=0, transaction_id=-1, reason=f"names a file that no backup has: {path}")
    return f"{parts[1]}/{parts[2]}"


def _restored(mark: SessionMark, now_ms: int) -> SessionMark:
    return SessionMark(min(-2, -now_ms), mark.low_water_mark, mark.local_low_water_mark)


def is_restored(directory: StorageDirectory) -> bool:
    """Whether no partition was clean in any session since the directory was restored."""
    return all(entry.mark is not None and entry.mark.session < -1 for entry in directory.entries)


def disown(disk: Disk, now_ms: int) -> None:
    """Makes of a directory, in place, one that knows that it was restored: of a copy that nobody marked. Raises what `read_directory` raises."""
    directory = read_directory(disk)
    marks = []
    for place, entry in enumerate(directory.entries):
        if entry.mark is None:
            where = CONTROL_HEADER_BYTES
            raise CorruptData(where=CONTROL_FILE, offset=where, transaction_id=-1, reason=f"both structs are invalid partition={place}")
        marks.append(_restored(entry.mark, now_ms))
    _put(disk, CONTROL_FILE, directory.header.to_bytes() + b"".join(encode_entry(place, mark) for place, mark in enumerate(marks)))


def _put(disk: Disk, path: str, content: bytes) -> None:
    put_file(disk, f"{path}.new", content)
    disk.rename(f"{path}.new", path)
    disk.sync_directory("")
