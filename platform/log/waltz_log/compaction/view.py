"""A compacted view on its disk: opening, reading, and the one way in which it changes.

    <namespace>/<topic>/<partition>/metadata          what the view is (`manifest`), replaced as a whole
                                   /N.wal             live and dead values, by transaction id, from N on
                                   /N.wal.index       their keys

A change writes its files under other names (`N.wal.<commit>`), syncs them and their names, and replaces `metadata`: that is the moment it takes
effect. Then its files get their names and the replaced files are removed. A crash before that moment leaves leftovers, which opening removes. A
crash after it leaves files without their names, which opening renames. There is never a mix.

Decides what is on the disk, never what is folded (`compactor`). A reader works on a snapshot: it keeps its files open, even if other files get their
names meanwhile. Every record is checked when it is read. Blocks; any thread, one writer. After a failed write or sync nothing more is written: the
view must be opened again, and then holds what took effect.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from threading import Lock
from typing import Final

from waltz_log.compaction.index import IndexChunk, IndexWriter, decode_index, read_index
from waltz_log.compaction.manifest import METADATA, METADATA_BYTES_MAX, Manifest, ViewFile
from waltz_log.core.formats.wal_records import WalRecord, decode_wal_record
from waltz_log.core.ports import Disk, DiskFile
from waltz_log.core.topics.topic_names import TopicName
from waltz_log.errors import CorruptData, InvalidRequest, StorageFailed

__all__ = ["CompactedView", "ViewSnapshot", "make_folders", "read_metadata", "replace_metadata", "walk_live", "walk_records"]

READ_BYTES: Final = 1 << 20
RECORD_BYTES_MAX: Final = 17 << 20
"""No record is larger: its data was a transaction's, of 16 MiB at most. What does not verify within that much is damaged, and not only cut."""


class CompactedView:
    """`open` makes the view if there is none."""

    def __init__(self, disk: Disk, folder: str, manifest: Manifest) -> None:
        self._disk = disk
        self._folder = folder
        self._manifest = manifest
        self._lock = Lock()
        self._failed: OSError | None = None

    @classmethod
    def open(
        cls, disk: Disk, topic: TopicName, partition: int, *, start: int, now_ms: int, properties: Mapping[str, str], log_partition: int = -1
    ) -> CompactedView:
        """`start`: where the log begins for a view that is made now; `log_partition`: whose fold it is then. Raises `InvalidRequest` if the folder
        is another topic's or has other properties, `CorruptData` if what took effect is not readable, `StorageFailed` if the disk does not do
        it."""
        folder = f"{topic.namespace}/{topic.topic}/{partition}"
        path = f"{folder}/{METADATA}"
        try:
            found = read_metadata(disk, path) if disk.exists(path) else None
            if found is None or found.type == "regular":
                view = cls(disk, folder, Manifest(str(topic), partition, dict(properties), now_ms, start, start, log_partition=log_partition))
                make_folders(disk, folder)
                view._replace_manifest(view._manifest)
                view._tidy()
                return view
            view = cls(disk, folder, found)
            if (found.topic, found.partition) != (str(topic), partition) or dict(found.properties) != dict(properties):
                told = f"topic {found.topic} partition {found.partition} with properties {dict(found.properties)}"
                raise InvalidRequest(reason=f"{folder} belongs to {told}")
            if log_partition != found.log_partition and -1 not in (log_partition, found.log_partition):
                raise InvalidRequest(reason=f"{folder} is the compacted view of log partition {found.log_partition}, not of {log_partition}")
            disk.sync_directory(folder)  # the name of a manifest that a killed process gave, before anything is removed for it
            view._tidy()
            return view
        except OSError as error:
            raise StorageFailed(partition=partition, reason=f"{folder}: {error}") from error

    @property
    def manifest(self) -> Manifest:
        return self._manifest

    @property
    def bound(self) -> int:
        return self._manifest.bound

    def snapshot(self) -> ViewSnapshot:
        """What the view is now, to be read whatever happens to it. Close it."""
        with self._lock:
            manifest = self._manifest
            handles: list[DiskFile] = []
            try:
                for file in manifest.files:
                    handles.append(self._disk.open(self._path(file.name), "read"))
            except OSError:
                for handle in handles:
                    handle.close()
                raise
        return ViewSnapshot(self._folder, manifest, handles)

    @property
    def folder(self) -> str:
        return self._folder

    def open_file(self, file: ViewFile) -> tuple[DiskFile, DiskFile] | None:
        """A file's records and its index, which the caller closes; None if another file replaced it. `OSError` if one is missing."""
        with self._lock:
            if all((each.first, each.commit) != (file.first, file.commit) for each in self._manifest.files):
                return None
            data = self._disk.open(self._path(file.name), "read")
            try:
                return data, self._disk.open(self._path(file.index_name), "read")
            except OSError:
                data.close()
                raise

    def expect_metadata(self) -> None:
        """Raises `CorruptData` if `metadata` does not say any more what the view is."""
        path = self._path(METADATA)
        with self._lock:
            told, wanted = _whole(self._disk, path), self._manifest.to_bytes()
        if told != wanted:
            raise CorruptData(where=path, offset=0, transaction_id=-1, reason="lacks the description of the view")

    def index_of(self, file: ViewFile) -> Iterator[IndexChunk]:
        """The keys of a file, a chunk at a time. Raises `CorruptData` if the index is damaged or not there; what it gave before is right."""
        path = self._path(file.index_name)
        try:
            handle = self._disk.open(path, "read")
        except FileNotFoundError:
            raise CorruptData(where=path, offset=0, transaction_id=-1, reason="is not there") from None
        try:
            if handle.size() != file.index_bytes:
                raise CorruptData(where=path, offset=handle.size(), transaction_id=-1, reason=f"must have {file.index_bytes} bytes")
            yield from read_index(handle, where=path)
        finally:
            handle.close()

    def keys_of(self, file: ViewFile) -> Iterator[IndexChunk]:
        """The same from the file's records, for one whose index is damaged. Raises `CorruptData`."""
        path = self._path(file.name)
        handle = self._disk.open(path, "read")
        index = IndexWriter(self._manifest.created_ms)
        try:
            for offset, record, _ in walk_records(handle, file, where=path):
                yield from decode_index(index.add(record.key, offset), where=path)
            yield from decode_index(index.rest(), where=path)
        finally:
            handle.close()

    def create(self, file_name: str, commit: int) -> DiskFile:
        """A file of a change that has not taken effect."""
        path = self._path(f"{file_name}.{commit}")
        if self._disk.exists(path):  # of a change that failed before its files were named in a manifest
            self._disk.remove(path)
        return self._disk.open(path, "create")

    def change(self, manifest: Manifest) -> None:
        """Makes the change take effect as a whole. The files that it adds are written and synced. Raises `StorageFailed`; the view must be opened
        again then."""
        if self._failed is not None:
            raise self._storage_failed(f"failed before: {self._failed}")
        try:
            with self._lock:
                if any(file.commit == manifest.commit for file in manifest.files):
                    self._disk.sync_directory(self._folder)
                self._replace_manifest(manifest)
                self._manifest = manifest
                self._tidy()
        except OSError as error:
            self._failed = error
            raise self._storage_failed(str(error)) from error

    def fail(self, error: OSError) -> StorageFailed:
        """What a writer of a change met. Nothing took effect."""
        self._failed = error
        return self._storage_failed(str(error))

    def _storage_failed(self, reason: str) -> StorageFailed:
        return StorageFailed(partition=self._manifest.partition, reason=f"{self._folder}: {reason}")

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}"

    def _replace_manifest(self, manifest: Manifest) -> None:
        replace_metadata(self._disk, self._folder, manifest)

    def _tidy(self) -> None:
        """Gives the names that took effect and removes what did not, or does not any more."""
        names = set(self._disk.list(self._folder))
        wanted = {METADATA}
        changed = False
        for file in self._manifest.files:
            for name in (file.name, file.index_name):
                wanted.add(name)
                if file.staged(name) in names:
                    self._disk.rename(self._path(file.staged(name)), self._path(name))
                    names.discard(file.staged(name))
                    changed = True
                elif name not in names:
                    raise CorruptData(where=self._path(name), offset=0, transaction_id=file.first, reason="is not there")
        for name in names - wanted:
            self._disk.remove(self._path(name))
            changed = True
        if changed:
            self._disk.sync_directory(self._folder)


class ViewSnapshot:
    """The latest value of each key as of `bound`, by transaction id. A tombstone is included until its retention ends; then the key is left out."""

    def __init__(self, folder: str, manifest: Manifest, handles: Sequence[DiskFile]) -> None:
        self._folder = folder
        self._manifest = manifest
        self._handles = list(handles)

    @property
    def start(self) -> int:
        """The first transaction that the view ever read."""
        return self._manifest.start

    @property
    def bound(self) -> int:
        """Where the log continues."""
        return self._manifest.bound

    def records(self, first: int = 0) -> Iterator[WalRecord]:
        """From a transaction id on. Raises `CorruptData` at a record that is damaged."""
        for record, _ in self.stored(first):
            yield record

    def stored(self, first: int = 0) -> Iterator[tuple[WalRecord, bytes]]:
        """The same, with the bytes of each record."""
        for number, (file, handle) in enumerate(zip(self._manifest.files, self._handles, strict=True)):
            following = self._manifest.files[number + 1 : number + 2]
            if following and following[0].first <= first:
                continue
            for record, whole in walk_live(handle, file, where=f"{self._folder}/{file.name}"):
                if record.transaction_id >= first:
                    yield record, whole

    def walk(self, first: int, end: int) -> Iterator[tuple[WalRecord, bytes]]:
        """The live records, with their bytes, of the files from one place to another."""
        for file, handle in list(zip(self._manifest.files, self._handles, strict=True))[first:end]:
            yield from walk_live(handle, file, where=f"{self._folder}/{file.name}")

    def close(self) -> None:
        while self._handles:
            self._handles.pop().close()

    def __enter__(self) -> ViewSnapshot:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def walk_live(handle: DiskFile, file: ViewFile, *, where: str) -> Iterator[tuple[WalRecord, bytes]]:
    """The live records of a file with their bytes, in order. Raises `CorruptData`."""
    dead = file.dead.tobytes()  # one byte each, which is ten times faster to scan
    for number, (_, record, whole) in enumerate(walk_records(handle, file, where=where)):
        if not dead[number]:
            yield record, whole


def walk_records(handle: DiskFile, file: ViewFile, *, where: str) -> Iterator[tuple[int, WalRecord, bytes]]:
    """All records of a file, dead ones too: (offset, record, its bytes), in order. Raises `CorruptData`."""
    number, data, base = 0, b"", 0
    offset = 0
    while base + offset < file.size_bytes or number < file.records:
        try:
            record, end = decode_wal_record(data, offset, where=where)
        except CorruptData as error:
            # Perhaps only cut by the end of what was read: from its beginning, twice as much.
            held = len(data) - offset
            more = handle.read(base + offset, max(READ_BYTES, 2 * held)) if held < RECORD_BYTES_MAX else b""
            if len(more) <= held:
                raise CorruptData(where=where, offset=base + offset, transaction_id=-1, reason=error.reason) from None
            base, data, offset = base + offset, more, 0
            continue
        if number >= file.records:
            break
        yield base + offset, record, data[offset:end]
        number += 1
        offset = end
    if number != file.records or base + offset != file.size_bytes:
        reason = f"must hold {file.records} records in {file.size_bytes} bytes, has {number} in {base + offset}"
        raise CorruptData(where=where, offset=base + offset, transaction_id=-1, reason=reason)


def read_metadata(disk: Disk, path: str) -> Manifest:
    """Raises `CorruptData`, `OSError`."""
    return Manifest.from_bytes(_whole(disk, path))


def _whole(disk: Disk, path: str) -> bytes:
    handle = disk.open(path, "read")
    try:
        size = handle.size()
        if size > METADATA_BYTES_MAX:
            raise CorruptData(where=path, offset=0, transaction_id=-1, reason=f"has {size} bytes, more than the metadata of a view")
        return handle.read(0, size)
    finally:
        handle.close()


def replace_metadata(disk: Disk, folder: str, manifest: Manifest) -> None:
    """Durable when it returns. Raises `OSError`."""
    new = f"{folder}/{METADATA}.new"
    if disk.exists(new):
        disk.remove(new)
    handle = disk.open(new, "create")
    try:
        handle.write(0, manifest.to_bytes())
        handle.sync()
    finally:
        handle.close()
    disk.rename(new, f"{folder}/{METADATA}")
    disk.sync_directory(folder)


def make_folders(disk: Disk, folder: str) -> None:
    """With each name on the medium."""
    parts = folder.split("/")
    disk.make_directory(folder)
    for depth in range(len(parts)):
        disk.sync_directory("/".join(parts[:depth]))
