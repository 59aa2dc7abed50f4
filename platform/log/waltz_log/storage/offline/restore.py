"""Makes a storage directory that is marked as restored from a backup or any other copy.

A restored replica may lack transactions that it once acknowledged, and transactions above its low-water mark may have been truncated since. So the
session of each partition becomes a number below every real one (the negative time of the restore, which also distinguishes two restores). An owner
then sees a session that went backwards, truncates the replica to its low-water mark, counts it as absent in votes, and fills it from its peers. Only
when it holds everything again does it get a session and a vote (docs/decisions/0008). Until then it serves no reader.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Final

from waltz_log.core.formats.backup_manifest import MANIFEST, PARTITIONS, BackupFile, BackupManifest
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
from waltz_log.storage.control.storage_directory import StorageDirectory, read_directory, read_file
from waltz_log.storage.segments.holes import refuse_hole
from waltz_log.storage.segments.segment import put_file

__all__ = ["checked_file", "disown", "is_restored", "read_manifest", "restore"]

COPY_BYTES: Final = 1024 * 1024


def _nothing(_bytes: int) -> None:
    pass


def read_manifest(disk: Disk) -> BackupManifest:
    """Raises `InvalidSetting` if it is no backup, or an unfinished one; `CorruptData` if the manifest is damaged."""
    if not disk.exists(MANIFEST):
        raise InvalidSetting(name="backup", reason=f"is not a backup: it holds no {MANIFEST}", nearest=None)
    return BackupManifest.from_bytes(read_file(disk, MANIFEST))


def checked_file(disk: Disk, expected: BackupFile) -> Iterable[bytes]:
    """The file's bytes; the last of them only if all match. A linked file may be longer by now: the excess does not belong to the backup."""
    try:
        file = disk.open(expected.path, "read")
    except (FileNotFoundError, NotADirectoryError):
        raise CorruptData(where=expected.path, offset=0, transaction_id=-1, reason="is missing in the backup") from None
    digest, done = sha256(), 0
    held = b""
    try:
        while done < expected.size:
            chunk = file.read(done, min(COPY_BYTES, expected.size - done))
            refuse_hole(file, done, expected.path)
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


def restore(source: Disk, target: Disk, now_ms: int, on_bytes: Callable[[int], None] = _nothing, *, keep_session: bool = False) -> BackupManifest:
    """Fills an empty `target` from a backup; everything is durable when it returns. Raises `CorruptData` if the backup is damaged.

    `keep_session`: for a cluster whose replicas are all lost. The sessions stay as in the backup, so that the directories can be adopted. Its count
    of starts begins again, so a cluster that knows the node refuses it until the adoption."""
    manifest = read_manifest(source)
    needed, free = sum(file.size for file in manifest.files), target.free_bytes()
    if needed > free:
        raise OSError(errno.ENOSPC, f"the backup has {needed} bytes and the disk {free} free")
    directories = {str(partition.partition) for partition in manifest.partitions if partition.last_transaction_id >= 0}
    for file in manifest.files:
        path = file.path.removeprefix(f"{PARTITIONS}/")
        directories.add(path.partition("/")[0])
        target.make_directory(path.partition("/")[0])
        made = target.open(path, "create")
        try:
            done = 0
            for chunk in checked_file(source, file):
                made.write(done, chunk)
                done += len(chunk)
                on_bytes(len(chunk))
            made.sync()
        finally:
            made.close()
    for directory in sorted(directories):
        target.sync_directory(directory)
    header = ControlHeader(manifest.creation_time_ms, manifest.cluster_key, manifest.partition_count).to_bytes()
    fences = [0 if keep_session else manifest.start, *(partition.fence for partition in manifest.partitions)]
    _put(target, FENCE_FILE, header + b"".join(2 * encode_counter(value) for value in fences))
    marks = [partition.mark if keep_session else _restored(partition.mark, now_ms) for partition in manifest.partitions]
    _put(target, CONTROL_FILE, header + b"".join(encode_entry(partition, mark) for partition, mark in enumerate(marks)))
    return manifest


def _restored(mark: SessionMark, now_ms: int) -> SessionMark:
    return SessionMark(min(-2, -now_ms), mark.low_water_mark, mark.local_low_water_mark)


def is_restored(directory: StorageDirectory) -> bool:
    """Whether no partition has been clean in any session since the directory was restored."""
    return all(entry.mark is not None and entry.mark.session < -1 for entry in directory.entries)


def disown(disk: Disk, now_ms: int) -> None:
    """Marks a directory in place as restored: for a copy that was not made by `restore`. Raises the errors of `read_directory`."""
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
