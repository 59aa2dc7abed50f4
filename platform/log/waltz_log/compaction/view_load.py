"""Replaces a view by a copy of another replica's: receives its records one after the other, then replaces the old ones at once.

A crash before the last step leaves the view as it was. The loaded view is not compared with a log: its sender states that it is the fold of all
transactions below its bound. Blocks; one thread at a time, and no other code may change the view meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from waltz_log.compaction.compactor import FileWriter
from waltz_log.compaction.view import CompactedView
from waltz_log.core.formats.wal_records import WalRecord, encode_wal_record
from waltz_log.errors import ProtocolViolation

__all__ = ["ViewLoad"]


class ViewLoad:
    """`put` all of it, then `finish`; `close` in any case."""

    def __init__(self, view: CompactedView, *, start: int, bound: int, segment_bytes: int, now_ms: int) -> None:
        self._view = view
        self._new = view.manifest.next(start=start, bound=bound, not_keyed=0)
        self._writer = FileWriter(view, self._new.commit, segment_bytes, now_ms)
        self._last = start - 1

    def put(self, records: Iterable[WalRecord]) -> None:
        """In the order of their ids, below the bound; raises `ProtocolViolation` otherwise, `StorageFailed` if the disk does not do it."""
        try:
            for record in records:
                if not self._last < record.transaction_id < self._new.bound:
                    reason = f"a view's record out of order: id={record.transaction_id} after={self._last} bound={self._new.bound}"
                    raise ProtocolViolation(reason=reason)
                self._last = record.transaction_id
                self._writer.put(record, encode_wal_record(record))
        except OSError as error:
            raise self._view.fail(error) from error

    def finish(self) -> None:
        """It takes effect."""
        try:
            made = self._writer.finish()
        except OSError as error:
            raise self._view.fail(error) from error
        self._view.change(replace(self._new, files=tuple(made)))

    def close(self) -> None:
        self._writer.close()
