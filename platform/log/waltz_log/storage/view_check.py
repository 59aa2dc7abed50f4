"""Verifies one file of a compacted view against what `metadata` says of it, and its index against the file. Reads and tells; changes nothing.

Work goes in steps of about a megabyte (`run` yields the bytes each has read), so that who paces it can wait between them. Memory: the index, which
compaction holds as well, and one record.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from waltz_log.compaction.index import IndexChunk, decode_index
from waltz_log.compaction.manifest import ViewFile
from waltz_log.compaction.view import walk_records
from waltz_log.core.ports import DiskFile
from waltz_log.errors import CorruptData
from waltz_log.storage.verify import Finding

__all__ = ["ViewFileCheck"]

STEP_BYTES: Final = 1 << 20


class ViewFileCheck:
    """Made for one look at open files, which `run` closes; then read what it found."""

    def __init__(self, folder: str, file: ViewFile, data: DiskFile, index: DiskFile) -> None:
        self.findings: list[Finding] = []
        self.records = 0
        self._file = file
        self._data = data
        self._index = index
        self._data_path = f"{folder}/{file.name}"
        self._index_path = f"{folder}/{file.index_name}"

    def run(self) -> Iterator[int]:
        """Yields how many bytes were read since the last time. `OSError` where the disk does not give them."""
        try:
            read = self._index.size()
            named = self._named()
            yield read
            read = 0
            last, astray = self._file.first - 1, False
            for offset, record, whole in walk_records(self._data, self._file, where=self._data_path):
                if record.transaction_id <= last or (not self.records and record.transaction_id != self._file.first):
                    reason = f"is not {self._file.first}" if not self.records else f"is not above {last}"
                    raise CorruptData(where=self._data_path, offset=offset, transaction_id=record.transaction_id, reason=reason)
                astray |= named is not None and next(named, None) != (offset, record.key)
                last = record.transaction_id
                self.records += 1
                read += len(whole)
                if read >= STEP_BYTES:
                    yield read
                    read = 0
            if astray or (named is not None and next(named, None) is not None):
                self._find("index", self._index_path, 0, "names other keys or places than its file holds")
            if self._data.size() != self._file.size_bytes:
                self._find("data", self._data_path, self._file.size_bytes, f"goes on to {self._data.size()}")
            yield read
        except CorruptData as error:
            self._find("data", error.where, error.offset, error.reason)
        finally:
            self._data.close()
            self._index.close()

    def _named(self) -> Iterator[tuple[int, bytes]] | None:
        """Where the index says that which key is, in order of places; None where it cannot be read."""
        raw = self._index.read(0, self._index.size())
        try:
            if len(raw) != self._file.index_bytes:
                raise CorruptData(where=self._index_path, offset=len(raw), transaction_id=-1, reason=f"wants {self._file.index_bytes} bytes")
            return _in_order(list(decode_index(raw, where=self._index_path)))
        except CorruptData as error:
            self._find("index", error.where, error.offset, error.reason)
            return None

    def _find(self, part: str, where: str, offset: int, reason: str) -> None:
        self.findings.append(Finding("index" if part == "index" else "data", where, offset, -1, -1, reason))


def _in_order(chunks: list[IndexChunk]) -> Iterator[tuple[int, bytes]]:
    if not chunks:
        return
    offsets = np.concatenate([chunk.offsets for chunk in chunks])
    begins = np.cumsum([0, *(len(chunk) for chunk in chunks)])
    for at in np.argsort(offsets, kind="stable"):
        number = int(np.searchsorted(begins, at, side="right")) - 1
        yield int(offsets[at]), chunks[number].key(int(at - begins[number]))
