"""Verifies one file of a compacted view against its entry in `metadata`, and its index against the file. Reads and reports; changes nothing.

Work is done in steps of about a megabyte (`run` yields the bytes of each), so that the caller can pause between them. Memory: one step, and one chunk
of the index.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from waltz_log.compaction.index import read_index
from waltz_log.compaction.manifest import ViewFile
from waltz_log.compaction.view import walk_records
from waltz_log.core.ports import DiskFile
from waltz_log.errors import CorruptData
from waltz_log.storage.integrity.verify import Finding

__all__ = ["ViewFileCheck"]

STEP_BYTES: Final = 1 << 20


class ViewFileCheck:
    """For one check of open files, which `run` closes; then read the findings."""

    def __init__(self, folder: str, file: ViewFile, data: DiskFile, index: DiskFile) -> None:
        self.findings: list[Finding] = []
        self.records = 0
        self._file = file
        self._data = data
        self._index = index
        self._data_path = f"{folder}/{file.name}"
        self._index_path = f"{folder}/{file.index_name}"

    def run(self) -> Iterator[int]:
        """Yields how many bytes were read since the last step. Raises `OSError` if the disk cannot read them."""
        try:
            named: Iterator[tuple[int, bytes]] | None = self._named()
            read, last = self._index.size(), self._file.first - 1
            for offset, record, whole in walk_records(self._data, self._file, where=self._data_path):
                if record.transaction_id <= last or (not self.records and record.transaction_id != self._file.first):
                    reason = f"is not {self._file.first}" if not self.records else f"is not above {last}"
                    raise CorruptData(where=self._data_path, offset=offset, transaction_id=record.transaction_id, reason=reason)
                named = self._agreed(named, (offset, record.key))
                last = record.transaction_id
                self.records += 1
                read += len(whole)
                if read >= STEP_BYTES:
                    yield read
                    read = 0
            self._agreed(named, None)
            if self._data.size() != self._file.size_bytes:
                self._find("data", self._data_path, self._file.size_bytes, f"goes on to {self._data.size()}")
            yield read
        except CorruptData as error:
            self._find("data", error.where, error.offset, error.reason)
        finally:
            self._data.close()
            self._index.close()

    def _agreed(self, named: Iterator[tuple[int, bytes]] | None, wanted: tuple[int, bytes] | None) -> Iterator[tuple[int, bytes]] | None:
        """The rest of the index while it matches the records; None after the first mismatch, which is reported."""
        if named is None:
            return None
        try:
            if next(named, None) == wanted:
                return named
            self._find("index", self._index_path, 0, "names other keys or places than its file holds")
        except CorruptData as error:
            self._find("index", error.where, error.offset, error.reason)
        return None

    def _named(self) -> Iterator[tuple[int, bytes]]:
        """The (offset, key) entries of the index, in order of offsets. Raises `CorruptData`."""
        if self._index.size() != self._file.index_bytes:
            reason = f"must have {self._file.index_bytes} bytes"
            raise CorruptData(where=self._index_path, offset=self._index.size(), transaction_id=-1, reason=reason)
        for chunk in read_index(self._index, where=self._index_path):
            for at in np.argsort(chunk.offsets, kind="stable"):
                yield int(chunk.offsets[at]), chunk.key(int(at))

    def _find(self, part: str, where: str, offset: int, reason: str) -> None:
        self.findings.append(Finding("index" if part == "index" else "data", where, offset, -1, -1, reason))
