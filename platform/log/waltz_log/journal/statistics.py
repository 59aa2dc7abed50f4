"""What a journal is doing, as one frozen snapshot."""

from __future__ import annotations

from dataclasses import dataclass

from waltz_log.journal.codec import CheckKind

__all__ = ["JournalStatistics"]


@dataclass(frozen=True, slots=True)
class JournalStatistics:
    """Counts of records are exact; `live_bytes` is estimated from the records of each file. What counts events counts since the journal was
    opened."""

    check: CheckKind
    """What the journal's records are sealed with, whatever the settings say."""
    records: int
    """Living records."""
    live_bytes: int
    data_bytes: int
    """Adds and updates that stand in files with data, living or not."""
    open_transactions: int
    """Open and in doubt."""
    files_data: int
    """Files that hold what is needed, the current one among them."""
    files_ready: int
    """Prepared to be written next."""
    files_free: int
    """Reclaimed and kept."""
    files_set_aside: int
    """In the attic: damaged, to be looked at and removed by hand."""
    room_bytes: int
    """What can be written before a file has to be reclaimed."""
    appended_bytes: int
    syncs: int
    file_changes: int
    files_reclaimed: int
    files_reused: int
    records_compacted: int
    """Written again by compaction."""
