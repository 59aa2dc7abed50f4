"""What a journal is doing, as one frozen snapshot."""

from __future__ import annotations

from dataclasses import dataclass

from waltz_log.journal.record_codec import CheckKind
from waltz_log.journal.record_ledger import Ledger
from waltz_log.journal.ring import Ring
from waltz_log.journal.writer import Writer
from waltz_log.statistics import Newest, Summed, snapshot

__all__ = ["JournalStatistics", "gather"]


@snapshot
@dataclass(frozen=True, slots=True)
class JournalStatistics:
    """Counts of records are exact; `live_bytes` is estimated from the records of each file. What counts events counts since the journal was
    opened."""

    check: Newest[CheckKind]
    """What the journal's records are sealed with, whatever the settings say."""
    records: Summed[int]
    """Living records."""
    live_bytes: Summed[int]
    data_bytes: Summed[int]
    """Adds and updates in files with data, live or not."""
    open_transactions: Summed[int]
    """Open and in doubt."""
    files_data: Summed[int]
    """Files that hold what is needed, the current one among them."""
    files_ready: Summed[int]
    """Prepared to be written next."""
    files_free: Summed[int]
    """Reclaimed and kept."""
    files_set_aside: Summed[int]
    """Damaged files in the attic, for an operator to inspect and remove."""
    room_bytes: Summed[int]
    """What can be written before a file has to be reclaimed."""
    appended_bytes: Summed[int]
    syncs: Summed[int]
    file_changes: Summed[int]
    files_reclaimed: Summed[int]
    files_reused: Summed[int]
    records_compacted: Summed[int]
    """Written again by compaction."""


def gather(check: CheckKind, open_transactions: int, ledger: Ledger, ring: Ring, writer: Writer, records_compacted: int) -> JournalStatistics:
    """What the parts of a journal say now."""
    files = ledger.files.values()
    return JournalStatistics(
        check=check,
        records=len(ledger.places),
        live_bytes=sum(file.live_bytes for file in files),
        data_bytes=sum(file.bytes for file in files),
        open_transactions=open_transactions,
        files_data=ring.in_use,
        files_ready=ring.ready,
        files_free=ring.free,
        files_set_aside=ring.set_aside,
        room_bytes=writer.free_bytes,
        appended_bytes=writer.appended,
        syncs=writer.syncs,
        file_changes=writer.moves,
        files_reclaimed=writer.reclaimed,
        files_reused=ring.reused,
        records_compacted=records_compacted,
    )
