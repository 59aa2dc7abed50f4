"""The append times of a segment's blocks, looked up in the segment's `.tix` (core/formats/segment_format.py has the bytes).

Entries are in order of ids and of times, so both are found by binary search; nothing is kept in memory, however many blocks a segment has. A torn or
corrupt entry is skipped: its block gets the time of the entry before, or the segment's creation time if there is none.

Never writes. Blocks; any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from waltz_log.core.formats.segment_format import FILE_HEADER_BYTES, TIME_ENTRY_BYTES, decode_times
from waltz_log.core.ports import DiskFile
from waltz_log.storage.segments.holes import end_of_data, skip_hole

__all__ = ["SegmentTimes"]

CHUNK_ENTRIES: Final = 128
CHUNK_BYTES: Final = CHUNK_ENTRIES * TIME_ENTRY_BYTES


class SegmentTimes:
    """`file`: None if there is none; `fallback_ms`: the segment's creation time."""

    def __init__(self, file: DiskFile | None, fallback_ms: int) -> None:
        self._file = file
        self._fallback_ms = fallback_ms

    def between(self, first: int, last: int) -> list[tuple[int, int]]:
        """The append times of the ids `first` to `last` as (first id, time); the first of these ids is at or below `first`. Equal adjacent times are
        one entry."""
        found = [(first, self._fallback_ms)]
        for entries in self._entries_from(self._chunk_of(lambda entry_first, _: entry_first <= first)):
            for entry_first, time_ms in entries:
                if entry_first <= first:
                    found = [(first, time_ms)]
                elif entry_first > last:
                    return found
                elif time_ms != found[-1][1]:
                    found.append((entry_first, time_ms))
        return found

    def first_at(self, time_ms: int) -> int | None:
        """The first id of the first block that was appended at the time or later; None if no entry has one."""
        for entries in self._entries_from(self._chunk_of(lambda _, entry_time: entry_time < time_ms)):
            for entry_first, entry_time in entries:
                if entry_time >= time_ms:
                    return entry_first
        return None

    def earliest_ms(self) -> int:
        """The time of the first entry."""
        return next((entries[0][1] for entries in self._entries_from(0)), self._fallback_ms)

    def latest_ms(self, last: int) -> int | None:
        """The time of the newest entry with an id up to `last`; None if there is none."""
        for chunk in self._backwards():
            for entry_first, time_ms in reversed(self._entries(chunk)):
                if entry_first <= last:
                    return time_ms
        return None

    def end(self, last: int) -> int:
        """The file offset after the entries with ids up to `last`. There may be torn ones between them."""
        for chunk in self._backwards():
            raw = self._raw(chunk)
            if not any(first <= last for first, _ in _decoded(raw)):
                continue
            for place in range(len(raw) // TIME_ENTRY_BYTES - 1, -1, -1):
                entry = _decoded(raw[place * TIME_ENTRY_BYTES : (place + 1) * TIME_ENTRY_BYTES])
                if entry and entry[0][0] <= last:
                    return FILE_HEADER_BYTES + (chunk * CHUNK_ENTRIES + place + 1) * TIME_ENTRY_BYTES
        return FILE_HEADER_BYTES

    def _chunks(self) -> int:
        if self._file is None:
            return 0
        entries = max(0, self._file.size() - FILE_HEADER_BYTES) // TIME_ENTRY_BYTES
        return -(-entries // CHUNK_ENTRIES)

    def _raw(self, chunk: int) -> bytes:
        assert self._file is not None
        return self._file.read(FILE_HEADER_BYTES + chunk * CHUNK_BYTES, CHUNK_BYTES)

    def _entries(self, chunk: int) -> list[tuple[int, int]]:
        return _decoded(self._raw(chunk))

    def _entries_from(self, chunk: int) -> Iterator[list[tuple[int, int]]]:
        """The entries of each chunk that has any."""
        while chunk < self._chunks():
            if entries := self._entries(chunk):
                yield entries
            chunk = chunk + 1 if entries else self._after_hole(chunk)

    def _backwards(self) -> Iterator[int]:
        """The chunks that may have entries, the last first."""
        chunk = self._chunks() - 1
        while chunk >= 0:
            yield chunk
            if not self._entries(chunk):
                assert self._file is not None
                end = end_of_data(self._file, CHUNK_BYTES, FILE_HEADER_BYTES + chunk * CHUNK_BYTES)
                chunk = min(chunk, -(-max(0, end - FILE_HEADER_BYTES) // CHUNK_BYTES))
            chunk -= 1

    def _after_hole(self, chunk: int) -> int:
        """The next chunk that may have entries, after one that has none."""
        assert self._file is not None
        place = FILE_HEADER_BYTES + chunk * CHUNK_BYTES
        return max(chunk + 1, (skip_hole(self._file, place, CHUNK_BYTES) - FILE_HEADER_BYTES) // CHUNK_BYTES)

    def _chunk_of(self, before: Callable[[int, int], bool]) -> int:
        """The last chunk whose first entry is still `before` the target: (first id, time) -> bool, true up to some entry and false from there."""
        low, high = 0, self._chunks()
        while high - low > 1:
            middle = probe = (low + high) // 2
            entries: list[tuple[int, int]] = []
            while probe < high and not (entries := self._entries(probe)):
                probe = self._after_hole(probe)
            if entries and before(*entries[0]):
                low = probe
            else:
                high = middle
        return low


def _decoded(raw: bytes) -> list[tuple[int, int]]:
    firsts, times, _ = decode_times(raw)
    return list(zip(firsts.tolist(), times.tolist(), strict=True))
