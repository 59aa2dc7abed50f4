"""Folds a log into a compacted view, step by step, and keeps the view's files few and mostly live.

A step reads the log from the view's bound as far as its keys fit in the key cache, reads it again and writes the latest value of each key. Values of
these keys in older files are dead from then on. Adjacent files are merged so that each file is at most half as large as the one before: the number of
copies of a value grows only with the logarithm of the view. A file with too many dead values, or with tombstones whose time is over, is rewritten
alone.

Memory: the keys of one step, the keys of one chunk of the file that is written and of one of an older file, nine bytes for each record of that
file, a byte for each record of the view. Holds no lock while it reads or writes.
Blocks; one at a time for each view.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh64_intdigest

from waltz_log.compaction.index import ENTRY_BYTES, IndexChunk, IndexWriter
from waltz_log.compaction.manifest import Manifest, ViewFile
from waltz_log.compaction.settings import CompactionSettings
from waltz_log.compaction.view import CompactedView
from waltz_log.core.formats.envelope import key_of, split_keyed
from waltz_log.core.formats.wal_records import WalRecord, encode_wal_record
from waltz_log.core.ports import DiskFile
from waltz_log.errors import CorruptData
from waltz_log.loggers import get_logger

__all__ = ["Compactor", "FileWriter", "Folded", "LogRecord", "ReadLog"]

log = get_logger(__name__)

WRITE_BYTES: Final = 1 << 20

MERGE_PIECE_BYTES: Final = 4 << 20
"""Rewritten by one piece of a merge: small enough that a caller that paces the pieces keeps the disk's load even, whatever the size of the files."""


class LogRecord(NamedTuple):
    transaction_id: int
    time_ms: int
    header: int
    data: bytes


ReadLog = Callable[[int, int], Iterable[Sequence[LogRecord]]]
"""(first id, end id) to the log's records of that range, in order, in batches of any size. The same each time: only committed ids are asked for."""


@dataclass(frozen=True, slots=True)
class Folded:
    """`transactions`: how many of the log were read; `kept`: how many of them are in the view; `copied_bytes`: written by merging."""

    transactions: int
    kept: int
    written_bytes: int
    copied_bytes: int


class Compactor:
    def __init__(self, view: CompactedView, settings: CompactionSettings) -> None:
        self._view = view
        self._settings = settings

    def fold(self, read: ReadLog, until: int, now_ms: int) -> Folded:
        """Brings the view to `until`, which must be committed, in as many steps as needed. Raises `StorageFailed`, and `CorruptData` if the log is
        damaged. Completed steps stay."""
        begun = self._view.bound
        kept = written = copied = 0
        while self._view.bound < until:
            step = self.fold_step(read, until, now_ms)
            kept, written = kept + step[0], written + step[1]
            copied += self.merge(now_ms)
        return Folded(self._view.bound - begun, kept, written, copied)

    # ---- a step --------------------------------------------------------------------------------------------------------------------------------

    def fold_step(self, read: ReadLog, until: int, now_ms: int) -> tuple[int, int]:
        """Brings the view towards `until`, as far as the key cache holds the keys, and merges nothing. Returns how many transactions were kept, and
        the bytes that were written. Raises as `fold` does."""
        manifest = self._view.manifest
        latest, bound, not_keyed = self._gather(read, manifest.bound, until)
        new = manifest.next(bound=bound, not_keyed=manifest.not_keyed + not_keyed)
        writer = FileWriter(self._view, new.commit, self._settings.segment_bytes, now_ms)
        try:
            last = set(latest.values())
            for batch in read(manifest.bound, bound) if last else ():
                for transaction_id, time_ms, header, data in batch:
                    if transaction_id in last and (keyed := split_keyed(data)) is not None:
                        record = WalRecord(transaction_id, time_ms, header, keyed.key, keyed.value)
                        writer.put(record, encode_wal_record(record))
            made = writer.finish()
        except OSError as error:
            raise self._view.fail(error) from error
        finally:
            writer.close()
        older = self._superseded(manifest.files, latest)
        self._view.change(replace(new, files=(*older, *made)))
        return len(latest), sum(file.size_bytes for file in made)

    def _gather(self, read: ReadLog, first: int, until: int) -> tuple[dict[bytes, int], int, int]:
        """The last transaction of each key, as far as the cache holds the keys; where that ends; how many had none."""
        latest: dict[bytes, int] = {}
        room = self._settings.key_cache_bytes
        not_keyed, bound = 0, first
        for batch in read(first, until):
            for transaction_id, _, _, data in batch:
                key = key_of(data)
                if key is None:
                    not_keyed += 1
                else:
                    if key not in latest:
                        room -= len(key) + ENTRY_BYTES
                    latest[key] = transaction_id
                if transaction_id != bound:
                    raise _not_whole(bound, transaction_id)
                bound += 1
                if room <= 0:
                    return latest, bound, not_keyed
        if bound != until:
            raise _not_whole(bound, until)
        return latest, bound, not_keyed

    def _superseded(self, files: Sequence[ViewFile], latest: dict[bytes, int]) -> list[ViewFile]:
        """The files, with replaced values marked dead. A file without live values is left out."""
        if not latest:
            return list(files)
        hashes = np.sort(np.fromiter(map(xxh64_intdigest, latest), np.uint64, len(latest)))
        found = []
        for file in files:
            try:
                offsets, dead_offsets = _places(file, self._view.index_of(file), hashes, latest)
            except CorruptData as error:
                log.warning("index of a compacted view damaged, reading its records", where=error.where, reason=error.reason)
                offsets, dead_offsets = _places(file, self._view.keys_of(file), hashes, latest)
            found.append(_marked(file, offsets, dead_offsets))
        # Tombstones among the dead are still counted: at worst a file is rewritten sooner.
        return [file for file in found if file.live]

    # ---- merging -------------------------------------------------------------------------------------------------------------------------------

    def merge(self, now_ms: int) -> int:
        """Rewrites every file that is due. Returns the bytes of records that were written."""
        return sum(self.merge_pieces(now_ms))

    def merge_pieces(self, now_ms: int) -> Generator[int, None, None]:
        """The same in pieces of about `MERGE_PIECE_BYTES`: yields the bytes of records that each piece wrote, so that the caller can pace them.
        Nothing else may change the view until the iterator is exhausted or closed. Closed early, it leaves the view as the last complete rewrite
        made it. Raises `StorageFailed`, `CorruptData`."""
        while (chosen := self._choose(self._view.manifest, now_ms)) is not None:
            yield from self._rewrite(*chosen, now_ms)

    def _choose(self, manifest: Manifest, now_ms: int) -> tuple[int, int] | None:
        """(first, end) of the files to make one of."""
        files = manifest.files
        for at in range(len(files) - 1):
            both = files[at].live_bytes + files[at + 1].live_bytes
            if files[at].live_bytes < 2 * files[at + 1].live_bytes and both <= self._settings.segment_bytes:
                return at, at + 2
        for at, file in enumerate(files):
            if file.size_bytes - file.live_bytes > self._settings.dead_ratio * file.size_bytes or self._over(file, now_ms):
                return at, at + 1
        return None

    def _over(self, file: ViewFile, now_ms: int) -> bool:
        return file.tombstones > 0 and file.oldest_tombstone_ms + self._settings.tombstone_retention_s * 1000 < now_ms

    def renew(self, files: Sequence[ViewFile], now_ms: int) -> None:
        """Writes files and their indexes again, as far as the view still has them, and `metadata`."""
        for file in files:
            for at, each in enumerate(self._view.manifest.files):
                if (each.first, each.commit) == (file.first, file.commit):
                    for _ in self._rewrite(at, at + 1, now_ms):
                        pass
                    break
        self._view.change(self._view.manifest.next())

    def _rewrite(self, first: int, end: int, now_ms: int) -> Generator[int, None, None]:
        manifest = self._view.manifest
        new = manifest.next()
        over_ms = now_ms - self._settings.tombstone_retention_s * 1000
        writer = FileWriter(self._view, new.commit, self._settings.segment_bytes, now_ms)
        piece = 0
        try:
            with self._view.snapshot() as snapshot:
                for record, whole in snapshot.walk(first, end):
                    if not record.is_tombstone or record.time_ms >= over_ms:
                        writer.put(record, whole)
                        piece += len(whole)
                    if piece >= MERGE_PIECE_BYTES:
                        yield piece
                        piece = 0
            made = writer.finish()
        except OSError as error:
            raise self._view.fail(error) from error
        finally:
            writer.close()
        self._view.change(replace(new, files=(*manifest.files[:first], *made, *manifest.files[end:])))
        yield piece


def _not_whole(wanted: int, found: int) -> CorruptData:
    return CorruptData(where="log", offset=0, transaction_id=wanted, reason=f"the log continues at {found} instead")


def _contains(sorted_hashes: NDArray[np.uint64], hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
    places = np.searchsorted(sorted_hashes, hashes)
    places[places == len(sorted_hashes)] = 0
    return np.asarray(sorted_hashes[places] == hashes)


def _places(
    file: ViewFile, chunks: Iterable[IndexChunk], hashes: NDArray[np.uint64], latest: Container[bytes]
) -> tuple[NDArray[np.int64], list[int]]:
    """The offsets of the records of a file, in order; and those among them whose keys have a later value."""
    offsets = np.empty(file.records, np.int64)
    dead: list[int] = []
    held = 0
    for chunk in chunks:
        if held + len(chunk) <= file.records:
            offsets[held : held + len(chunk)] = np.sort(chunk.offsets)
        held += len(chunk)
        for entry in np.flatnonzero(_contains(hashes, chunk.hashes)):
            if chunk.key(int(entry)) in latest:  # not the hash alone: another key may have the same
                dead.append(int(chunk.offsets[entry]))
    if held != file.records:
        raise CorruptData(where=file.index_name, offset=0, transaction_id=file.first, reason=f"names {held} records of {file.records}")
    return offsets, dead


def _marked(file: ViewFile, offsets: NDArray[np.int64], dead_offsets: Sequence[int]) -> ViewFile:
    if not dead_offsets:
        return file
    dead = file.dead.copy()
    places = np.searchsorted(offsets, np.array(dead_offsets, np.int64))
    places = places[~dead[places]]
    ends = np.where(places + 1 < len(offsets), offsets[np.minimum(places + 1, len(offsets) - 1)], file.size_bytes)
    dead[places] = True
    return replace(file, dead=dead, live_bytes=file.live_bytes - int((ends - offsets[places]).sum()))


class FileWriter:
    """The files of one change: in order, none above a size unless a single record is."""

    def __init__(self, view: CompactedView, commit: int, segment_bytes: int, now_ms: int) -> None:
        self._view = view
        self._commit = commit
        self._segment_bytes = segment_bytes
        self._now_ms = now_ms
        self._made: list[ViewFile] = []
        self._begin()

    def _begin(self) -> None:
        self._first = -1
        self._handle: DiskFile | None = None
        self._index: DiskFile | None = None
        self._written = self._size = self._indexed = 0
        self._pending: list[bytes] = []
        self._keys = IndexWriter(self._now_ms)
        self._records = 0
        self._tombstones = 0
        self._oldest_tombstone_ms = 0

    def put(self, record: WalRecord, whole: bytes) -> None:
        if self._records and self._size + len(whole) > self._segment_bytes:
            self._end()
        if not self._records:
            self._first = record.transaction_id
        if record.is_tombstone:
            self._oldest_tombstone_ms = min(record.time_ms, self._oldest_tombstone_ms) if self._tombstones else record.time_ms
            self._tombstones += 1
        self._records += 1
        if chunk := self._keys.add(record.key, self._size):
            self._write_index(chunk)
        self._pending.append(whole)
        self._size += len(whole)
        if self._size - self._written >= WRITE_BYTES:
            self._write()

    def _write(self) -> None:
        if self._handle is None:
            self._handle = self._view.create(f"{self._first}.wal", self._commit)
        data = b"".join(self._pending)
        self._handle.write(self._written, data)
        self._written += len(data)
        self._pending.clear()

    def _write_index(self, chunk: bytes) -> None:
        if self._index is None:
            self._index = self._view.create(f"{self._first}.wal.index", self._commit)
        self._index.write(self._indexed, chunk)
        self._indexed += len(chunk)

    def _end(self) -> None:
        self._write()
        self._write_index(self._keys.rest())
        assert self._handle is not None
        assert self._index is not None
        for file in (self._handle, self._index):
            file.sync()
        self.close()
        alive = np.zeros(self._records, np.bool_)
        self._made.append(
            ViewFile(self._first, self._commit, self._size, self._indexed, alive, self._size, self._tombstones, self._oldest_tombstone_ms)
        )
        self._begin()

    def finish(self) -> list[ViewFile]:
        if self._records:
            self._end()
        return self._made

    def close(self) -> None:
        for file in (self._handle, self._index):
            if file is not None:
                file.close()
        self._handle = self._index = None
