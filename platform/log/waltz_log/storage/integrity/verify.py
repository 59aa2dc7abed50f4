"""Verifies one segment: its data, its index and its times, each by itself and against each other. Reads and reports; changes nothing.

A record is trusted by its own checksums, id and partition, never by the index; the index must then match the position of each record. After damage,
the scan continues at the next intact record that the index points to, so that one corrupt record gives one finding.

In the last segment of a partition, which a node may be appending to, damage above everything that the index or the local low-water mark covers was
never acknowledged: it is reported as a tail, not as a finding. In a closed segment every byte counts.

Work is done in steps of about a megabyte (`run` yields the bytes of each), so that the caller can pause between them; a step bounds the memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from waltz_log.core.formats.record_layout import HEADER_BYTES, ID, RECORD_OVERHEAD_BYTES, length_of
from waltz_log.core.formats.segment_format import DATA, FILE_HEADER_BYTES, INDEX, TIME_ENTRY_BYTES, TIMES, SegmentHeader, decode_times
from waltz_log.core.ports import Disk, DiskFile
from waltz_log.errors import CorruptData, WaltzError
from waltz_log.storage.segments.holes import end_of_data, skip_hole
from waltz_log.storage.segments.scan import RECORD_BYTES_MAX, Scan
from waltz_log.storage.segments.segment import segment_path

__all__ = ["Finding", "SegmentCheck", "written_entries"]

Part = Literal["header", "data", "index", "times", "control"]

SLICE_BYTES: Final = 1024 * 1024
FINDINGS_MAX: Final = 1000
"""Per segment. A longer list of a completely corrupt file would not help."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong, and where. `transaction_id` to `last_transaction_id`: the transactions that cannot be served because of it, -1 if none is
    lost."""

    part: Part
    file: str
    offset: int
    transaction_id: int
    last_transaction_id: int
    reason: str


class SegmentCheck:
    """For one check: `run` to the end, then read the findings. `following`: the next segment's first id. None for the last segment, in which records
    up to `known_good` must be intact."""

    def __init__(
        self, disk: Disk, directory: str, key: UUID, partition: int, first: int, *, following: int | None = None, known_good: int = -1
    ) -> None:
        self.first = first
        self.following = following
        self.findings: list[Finding] = []
        self.records = 0
        self.data_bytes = 0
        self.tail_bytes = 0
        """In the last segment: the bytes after the last intact record, in the middle of being written or torn by a crash."""
        self.last_id = first - 1
        self.times: int | None = None
        """Entries of the times, None if there is no such file (the original wrote none)."""
        self.untimed: list[tuple[int, int]] = []
        """Ranges of transactions whose append time is reported wrong because an entry of the times is damaged."""
        self._disk = disk
        self._key = key
        self._partition = partition
        self._known_good = known_good
        self._paths = {kind: segment_path(directory, first, kind) for kind in (DATA, INDEX, TIMES)}
        self._indexed_end = 0
        self._index_wrong = 0

    def run(self) -> Iterator[int]:
        """Yields how many bytes were read since the last step. Raises `OSError` if the disk cannot read them."""
        if not self._disk.exists(self._paths[DATA]):
            self._find("data", DATA, 0, self.first, "is not there", last=self._end() - 1)
            return
        opened: dict[str, DiskFile] = {}
        try:
            # Read the index before the data: each record that it lists is then written.
            for kind in (INDEX, TIMES, DATA):
                if self._disk.exists(self._paths[kind]):
                    opened[kind] = self._disk.open(self._paths[kind], "read")
            index_bytes = opened[INDEX].size() if INDEX in opened else 0
            self._headers(opened)
            yield FILE_HEADER_BYTES * len(opened)
            yield from self._data(opened[DATA], opened.get(INDEX), index_bytes)
            if TIMES in opened:
                yield from self._append_times(opened[TIMES])
        finally:
            for file in opened.values():
                file.close()

    def bad_ranges(self) -> list[tuple[int, int]]:
        """Ranges of transactions that are damaged or missing, in order."""
        return [(found.transaction_id, found.last_transaction_id) for found in self.findings if found.part == "data" and found.transaction_id >= 0]

    def _end(self) -> int:
        """The id after the last one that must be there, as far as it is known."""
        return self.following if self.following is not None else max(self._indexed_end, self._known_good + 1, self.first)

    def _find(self, part: Part, kind: str, offset: int, transaction_id: int, reason: str, *, last: int = -1) -> None:
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(Finding(part, self._paths[kind], offset, transaction_id, last, reason))

    # ---- headers ---------------------------------------------------------------------------------------------------------------------------------

    def _headers(self, opened: dict[str, DiskFile]) -> None:
        created: dict[str, int] = {}
        for kind in (DATA, INDEX, TIMES):
            if kind not in opened:
                if kind == INDEX:
                    self._find("index", INDEX, 0, -1, "is not there")
                continue
            try:
                header = SegmentHeader.from_bytes(opened[kind].read(0, FILE_HEADER_BYTES), self._paths[kind])
                header.expect(self._key, self._partition, self.first, self._paths[kind])
                created[kind] = header.creation_time_ms
            except WaltzError as error:
                self._find("header", kind, 0, -1, error.reason if isinstance(error, CorruptData) else str(error))
        # Times use the header of the data. That of the index may differ: the original wrote it a millisecond later, and it is never read.
        if TIMES in created and DATA in created and created[DATA] != created[TIMES]:
            near = created.get(INDEX, created[DATA])
            wrong = max((DATA, TIMES), key=lambda kind: abs(created[kind] - near))
            self._find("header", wrong, 4, -1, f"another creation time than the segment's other files: {created[wrong]}")

    # ---- records and their index -----------------------------------------------------------------------------------------------------------------

    def _data(self, data: DiskFile, index: DiskFile | None, index_bytes: int) -> Iterator[int]:
        entries = max(0, index_bytes - FILE_HEADER_BYTES) // 8
        self._indexed_end = self.first + written_entries(index, entries) if index is not None else self.first
        size = data.size()
        next_id, offset = self.first, FILE_HEADER_BYTES
        where = self._paths[DATA]
        while True:
            scan = Scan(data, where, self._partition, next_id=next_id, offset=offset, end=size)
            begin, begin_id = offset, next_id
            for offsets in scan.run():
                self._compare(index, begin_id, offsets)
                yield scan.offset - begin + (8 * len(offsets) if index is not None else 0)
                begin, begin_id = scan.offset, scan.next_id
            self.records += scan.next_id - next_id
            self.last_id = max(self.last_id, scan.next_id - 1)
            self.data_bytes += scan.offset - offset
            next_id, offset = scan.next_id, scan.offset
            if scan.damage is None:
                break
            if next_id >= self._end():
                self._behind_the_end(data, offset, size, scan.damage)
                break
            found = self._next_whole(data, index, next_id, offset, size)
            resumed_id, resumed = found or (self._end(), size)
            self._find("data", DATA, offset, next_id, scan.damage.reason, last=resumed_id - 1)
            yield min(resumed - offset, SLICE_BYTES)  # at most a slice of it was read
            if found is None:
                break
            next_id, offset = resumed_id, resumed
        reported = any(last >= self._end() - 1 for _, last in self.bad_ranges())
        if self.last_id + 1 < self._end() and not reported:
            self._find("data", DATA, offset, self.last_id + 1, "transactions are missing at the end", last=self._end() - 1)
        self._lengths(index, entries)

    def _behind_the_end(self, data: DiskFile, offset: int, size: int, damage: CorruptData) -> None:
        if self.following is None:
            self.tail_bytes = size - offset
        elif data.read(offset, min(size - offset, SLICE_BYTES)).strip(b"\0"):
            self._find("data", DATA, offset, -1, f"bytes after the last record: {damage.reason}")

    def _lengths(self, index: DiskFile | None, entries: int) -> None:
        if index is None:
            return
        if self.following is not None and entries != self.following - self.first:
            self._find("index", INDEX, FILE_HEADER_BYTES, -1, f"{entries} entries for {self.following - self.first} transactions")
        if self.following is not None and self.last_id >= self.following:
            self._find("data", DATA, 0, -1, f"overlaps the next segment: last_transaction_id={self.last_id}")
        if self._index_wrong:
            self._find("index", INDEX, self._index_wrong, -1, "an entry does not tell where its record is")

    def _compare(self, index: DiskFile | None, first_id: int, offsets: NDArray[np.int64]) -> None:
        """Remembers the offset of the first wrong entry. An entry that was not written yet is not wrong."""
        if index is None or self._index_wrong:
            return
        place = FILE_HEADER_BYTES + 8 * (first_id - self.first)
        raw = index.read(place, 8 * len(offsets))
        indexed = np.frombuffer(raw[: len(raw) // 8 * 8], dtype=">i8").astype(np.int64)
        wrong = np.flatnonzero(indexed != offsets[: len(indexed)])
        if len(wrong) and first_id + int(wrong[0]) < self._indexed_end:
            self._index_wrong = place + 8 * int(wrong[0])

    def _next_whole(self, data: DiskFile, index: DiskFile | None, bad_id: int, bad_offset: int, size: int) -> tuple[int, int] | None:
        """The next intact record after the bad one, with the id that the index states; None if there is none."""
        position = bad_id + 1
        while index is not None and position < self._indexed_end:
            place = FILE_HEADER_BYTES + 8 * (position - self.first)
            position += (skip_hole(index, place, 8) - place) // 8  # entries in a hole are zeros
            raw = index.read(FILE_HEADER_BYTES + 8 * (position - self.first), SLICE_BYTES // 8)
            offsets = np.frombuffer(raw[: len(raw) // 8 * 8], dtype=">i8").astype(np.int64)
            if not len(offsets):
                break
            for at in np.flatnonzero((offsets > bad_offset) & (offsets < size)).tolist():
                if self._is_whole(data, position + at, int(offsets[at]), size):
                    return position + at, int(offsets[at])
            position += len(offsets)
        return None

    def _is_whole(self, data: DiskFile, transaction_id: int, offset: int, size: int) -> bool:
        header = data.read(offset, HEADER_BYTES)
        if len(header) < HEADER_BYTES or ID.unpack_from(header)[0] != transaction_id:
            return False
        length = length_of(header)
        if not RECORD_OVERHEAD_BYTES <= length <= min(RECORD_BYTES_MAX, size - offset):
            return False
        one = Scan(data, "", self._partition, next_id=transaction_id, offset=offset, end=offset + length)
        return sum(len(offsets) for offsets in one.run()) == 1 and one.damage is None

    # ---- times -----------------------------------------------------------------------------------------------------------------------------------

    def _append_times(self, file: DiskFile) -> Iterator[int]:
        self.times = 0
        place, size = FILE_HEADER_BYTES, file.size()
        before = self.first - 1
        slice_bytes = SLICE_BYTES // TIME_ENTRY_BYTES * TIME_ENTRY_BYTES
        while place < size:
            skipped = min(size, skip_hole(file, place, slice_bytes)) - place
            if skipped:  # entries in a hole are zeros, and none was written so
                self._torn_hole(place, skipped, before, at_the_end=place + skipped >= size)
                place += skipped
                continue
            raw = file.read(place, min(slice_bytes, size - place))
            if not raw:
                break
            firsts, _, _ = decode_times(raw)
            whole = len(raw) // TIME_ENTRY_BYTES
            self.times += len(firsts)
            if len(firsts) < whole or len(raw) % TIME_ENTRY_BYTES:
                self._torn_times(raw, place, before, at_the_end=place + len(raw) >= size)
            if len(firsts) and (int(firsts[0]) <= before or (self.following is not None and int(firsts[-1]) >= self.following)):
                self._find("times", TIMES, place, -1, f"ids out of order or of another segment: {int(firsts[0])}..{int(firsts[-1])}")
            before = int(firsts[-1]) if len(firsts) else before
            place += len(raw)
            yield len(raw)

    def _torn_times(self, raw: bytes, place: int, before: int, *, at_the_end: bool) -> None:
        """Reports damaged entries, unless a crash tore them or they were not written yet: in the last segment, with nothing after them."""
        wrong: int | None = None
        for at in range(0, len(raw), TIME_ENTRY_BYTES):
            firsts, _, _ = decode_times(raw[at : at + TIME_ENTRY_BYTES])
            if not len(firsts):
                wrong = at if wrong is None else wrong
            else:
                if wrong is not None:
                    self._untimed(place + wrong, before, int(firsts[0]) - 1)
                wrong, before = None, int(firsts[0])
        if wrong is not None and not (self.following is None and at_the_end):
            self._untimed(place + wrong, before, max(self.last_id, self._end() - 1))

    def _torn_hole(self, place: int, length: int, before: int, *, at_the_end: bool) -> None:
        if not (self.following is None and at_the_end):
            self._untimed(place, before, max(self.last_id, self._end() - 1))
            self._find("times", TIMES, place, -1, f"a hole of {length} bytes")

    def _untimed(self, place: int, before: int, last: int) -> None:
        self.untimed.append((max(before, self.first), last))
        self._find("times", TIMES, place, -1, "an entry does not match its checksum")


def written_entries(index: DiskFile, entries: int) -> int:
    """How many entries there are, without unwritten ones at the end: preallocated space reads as zeros."""
    while entries > 0:
        count = min(entries, SLICE_BYTES // 8)
        found = np.frombuffer(index.read(FILE_HEADER_BYTES + 8 * (entries - count), 8 * count), dtype=">i8")
        used = np.flatnonzero(found)
        if len(used):
            return entries - count + int(used[-1]) + 1
        entries -= count
        entries = max(0, end_of_data(index, SLICE_BYTES, FILE_HEADER_BYTES + 8 * entries) - FILE_HEADER_BYTES) // 8
    return 0
