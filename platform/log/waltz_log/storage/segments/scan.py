"""Reads the records of a segment data file in order and verifies each, to establish what is intact after a stop or a crash.

Never changes anything. The caller decides what to do about damage.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import pack
from typing import Final

import numpy as np
from numpy.typing import NDArray

from waltz_log.core.formats.columns import offsets_array, verify_records
from waltz_log.core.formats.record_layout import RECORD_OVERHEAD_BYTES, length_of
from waltz_log.core.formats.records import measure_records
from waltz_log.core.ports import DiskFile
from waltz_log.errors import CorruptData

__all__ = ["CHUNK_BYTES", "RECORD_BYTES_MAX", "Scan"]

RECORD_BYTES_MAX: Final = 16 * 1024 * 1024
"""No record is larger, because it would not fit into a message. A length above it is damage."""

CHUNK_BYTES: Final = 1024 * 1024


class Scan:
    """From `offset`, where the record of `next_id` is expected, to `end` or past the record of `last`. `damage` is the reason if it stopped
    earlier."""

    def __init__(self, file: DiskFile, where: str, partition: int, *, next_id: int, offset: int, end: int, last: int | None = None) -> None:
        self._file = file
        self._where = where
        self._partition = partition
        self._end = end
        self._last = last
        self.next_id = next_id
        self.offset = offset
        self.damage: CorruptData | None = None

    def run(self) -> Iterator[NDArray[np.int64]]:
        """The offsets of good records, in chunks. `next_id` and `offset` are then after the records returned."""
        size = CHUNK_BYTES
        while self.offset < self._end and self.damage is None and (self._last is None or self.next_id <= self._last):
            chunk = self._file.read(self.offset, min(size, self._end - self.offset))
            size = CHUNK_BYTES
            lengths, used = measure_records(chunk)
            if self._last is not None and len(lengths) > self._last - self.next_id + 1:
                lengths = lengths[: self._last - self.next_id + 1]
                used = sum(lengths)
            if lengths:
                yield from self._verified(chunk[:used], lengths)
            elif (needed := self._needed(chunk)) is not None:
                size = needed

    def _verified(self, records: bytes, lengths: list[int]) -> Iterator[NDArray[np.int64]]:
        packed = pack(f">{len(lengths)}i", *lengths)
        good = len(records)
        try:
            verify_records(records, packed, first_transaction_id=self.next_id, partition=self._partition, where=self._where)
        except CorruptData as error:
            good = error.offset
            self._damaged(error.reason, offset=self.offset + good, transaction_id=error.transaction_id)
        starts = offsets_array(packed)[:-1]
        starts = starts[: int(np.searchsorted(starts, good))]
        if len(starts):
            found = starts + self.offset
            self.next_id += len(starts)
            self.offset += good
            yield found

    def _needed(self, chunk: bytes) -> int | None:
        """For a chunk without a complete record: how many bytes must be read for it, or None if there is none."""
        if len(chunk) < RECORD_OVERHEAD_BYTES:
            self._damaged(f"cut off: bytes={len(chunk)}")
            return None
        length = length_of(chunk)
        data_length = length - RECORD_OVERHEAD_BYTES
        if data_length < 0 or length > RECORD_BYTES_MAX:
            self._damaged(f"impossible length: data_length={data_length}")
        elif self.offset + length > self._end or length <= len(chunk):
            self._damaged(f"cut off: data_length={data_length} left={self._end - self.offset}")
        return length if self.damage is None else None

    def _damaged(self, reason: str, *, offset: int | None = None, transaction_id: int | None = None) -> None:
        self.damage = CorruptData(
            where=self._where,
            offset=self.offset if offset is None else offset,
            transaction_id=self.next_id if transaction_id is None else transaction_id,
            reason=reason,
        )
