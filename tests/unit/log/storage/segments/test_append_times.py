"""Append times looked up in the file, against a plain list."""

from __future__ import annotations

import struct
from itertools import pairwise
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from waltz_log.core.formats.block import Block
from waltz_log.core.formats.records import encode_record
from waltz_log.core.formats.segment_format import FILE_HEADER_BYTES, TIME_ENTRY_BYTES, encode_time
from waltz_log.storage.segments.segment_log import SegmentLog
from waltz_log.storage.segments.times import SegmentTimes
from waltz_log.testing.disk import SimulatedDisk

FALLBACK = -5


def times_of(entries: list[tuple[int, int]], torn: set[int], cut: int) -> SegmentTimes:
    disk = SimulatedDisk()
    file = disk.open("t", "create")
    content = b"".join(bytes(TIME_ENTRY_BYTES) if place in torn else encode_time(first, time_ms) for place, (first, time_ms) in enumerate(entries))
    file.write(FILE_HEADER_BYTES, content[: len(content) - cut])
    return SegmentTimes(file, FALLBACK)


steps = st.lists(st.tuples(st.integers(1, 4), st.sampled_from([0, 0, 1, 7])), max_size=400)


@given(steps, st.sets(st.integers(0, 400), max_size=40), st.integers(0, 1700), st.integers(0, 60), st.integers(0, 30), st.booleans())
@settings(max_examples=150, deadline=None)
def test_times_report_what_a_plain_list_reports(
    gaps: list[tuple[int, int]], torn: set[int], first: int, span: int, cut: int, many_torn: bool
) -> None:
    entries, next_id, time_ms = [], 0, 1000
    for count, later in gaps:
        entries.append((next_id, time_ms))
        next_id, time_ms = next_id + count, time_ms + later
    if many_torn:
        torn = torn | set(range(100, 350))
    cut = min(cut, 20 * len(entries))
    times = times_of(entries, torn, cut)
    kept = [entry for place, entry in enumerate(entries) if place not in torn and 20 * (place + 1) <= 20 * len(entries) - cut]
    last = first + span
    naive = {n: next((time_ms for entry_first, time_ms in reversed(kept) if entry_first <= n), FALLBACK) for n in range(first, last + 1)}
    reported = times.between(first, last)
    assert reported[0][0] == first
    assert {n: next(time_ms for begins, time_ms in reversed(reported) if begins <= n) for n in range(first, last + 1)} == naive
    assert all(before[0] < after[0] <= last and before[1] != after[1] for before, after in pairwise(reported))
    for asked in (999, time_ms, 1000 + first % 50):
        assert times.first_at(asked) == next((entry_first for entry_first, found in kept if found >= asked), None)
    assert times.earliest_ms() == (kept[0][1] if kept else FALLBACK)
    ends = [FILE_HEADER_BYTES + 20 * (place + 1) for place, entry in enumerate(entries) if entry in kept and entry[0] <= last]
    assert times.end(last) == (ends[-1] if ends else FILE_HEADER_BYTES)


def test_without_a_file_the_creation_of_the_segment_holds() -> None:
    times = SegmentTimes(None, 77)
    assert times.between(4, 9) == [(4, 77)]
    assert times.first_at(0) is None
    assert times.earliest_ms() == 77
    assert times.end(9) == FILE_HEADER_BYTES


def test_a_position_by_time_is_found_across_segments() -> None:
    disk = SimulatedDisk()

    class Clock:
        def now_ms(self) -> int:
            return 1

    log = SegmentLog.open(disk, Clock(), UUID(int=7), 3, 4096, -1)
    assert log.position_at(0) == log.position_at(99) == 0
    appended = []
    for n in range(40):
        records = [encode_record(5, 1, 3, 2 * n + k, 7, b"x" * 200, 2 * n + k) for k in range(2)]
        log.append([Block(2 * n, struct.pack(">2i", *map(len, records)), b"".join(records), 1000 + 2 * n)])
        appended.append((2 * n, 1000 + 2 * n))
    assert len(log.closed()) > 3
    for asked in range(995, 1090):
        assert log.position_at(asked) == next((first for first, time_ms in appended if time_ms >= asked), 80)
