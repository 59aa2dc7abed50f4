"""Lists what a replica holds, segment by segment: ids, bytes, and the append time of the last transaction. The basis of retention decisions.

Closed segments do not change, so each is read once. Decides nothing. Blocks; one caller at a time.
"""

from __future__ import annotations

from waltz_log.core.formats.segment_format import DATA, FILE_HEADER_BYTES
from waltz_log.core.retention import SegmentFacts
from waltz_log.storage.segments.segment import segment_path
from waltz_log.storage.segments.segment_log import SegmentLog

__all__ = ["Holdings"]


class Holdings:
    """For one partition's log."""

    def __init__(self, log: SegmentLog) -> None:
        self._log = log
        self._known: dict[int, SegmentFacts] = {}

    def segments(self) -> list[SegmentFacts]:
        """All segments, in order; the last is the one that is appended to. Raises `OSError` if one is removed meanwhile."""
        tail, closed = self._log.tail, self._log.closed()
        closed = [(first, last) for first, last in closed if first < tail.segment]
        self._known = {first: self._known.get(first) or self._closed(first, last) for first, last in closed}
        newest_ms = self._log.newest_ms(tail.segment, tail.last_id) if tail.last_id >= tail.segment else 0
        return [*self._known.values(), SegmentFacts(tail.segment, tail.last_id, tail.end - FILE_HEADER_BYTES, newest_ms)]

    def _closed(self, first: int, last: int) -> SegmentFacts:
        size = self._log.files.reading(segment_path(self._log.directory, first, DATA)).size()
        return SegmentFacts(first, last, size - FILE_HEADER_BYTES, self._log.newest_ms(first, last))
