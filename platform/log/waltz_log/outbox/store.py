"""The directory of an outbox: its journal, opened and read into a ledger, and the statistics file next to it. Blocking; for an offload call."""

from __future__ import annotations

from collections.abc import Callable

from waltz_log.core.ports import Disk
from waltz_log.journal import Journal, JournalSettings
from waltz_log.journal.directory import survey
from waltz_log.journal.loading import load
from waltz_log.outbox.ledger import Change, Kind, Ledger
from waltz_log.outbox.settings import OutboxSettings
from waltz_log.outbox.statistics import STATISTICS_FILE, OutboxStatistics

__all__ = ["open_journal", "read_ledger", "read_statistics", "write_statistics"]

SCATTERED = 4
"""How much larger the journal may be than its live records. It compacts files of which less than a third is live."""

SPARE_FILES = 16
"""For attempts and deletes, and for what is being reclaimed."""


def journal_settings(settings: OutboxSettings) -> JournalSettings:
    files_max = SCATTERED * -(-settings.bytes_max // settings.file_bytes) + SPARE_FILES
    return JournalSettings(file_bytes=settings.file_bytes, files_max=files_max, replaceable_types=frozenset({Kind.IDENTITY, Kind.TRIES}))


def open_journal(disk: Disk, settings: OutboxSettings, now_ms: int, entropy: Callable[[int], bytes]) -> tuple[Journal, Ledger, list[Change]]:
    """Locks the directory for this process. Raises `InvalidSetting` if another process holds it, `JournalFailed` if it cannot be read, `CorruptData`
    if it is not an outbox's."""
    journal = Journal.open(disk, journal_settings(settings), entropy)
    try:
        ledger, changes = Ledger.load(journal.loaded.records, journal.loaded.record_id_max, now_ms)
    except BaseException:
        journal.close()
        raise
    journal.drop_loaded()
    return journal, ledger, changes


def read_ledger(disk: Disk, settings: OutboxSettings, now_ms: int) -> Ledger:
    """The ledger of a directory, without changing it. The caller holds the directory's lock, which may be shared with other readers."""
    loaded = load(disk, survey(disk), journal_settings(settings)).loaded
    assert loaded is not None
    return Ledger.load(loaded.records, loaded.record_id_max, now_ms)[0]


def write_statistics(disk: Disk, statistics: OutboxStatistics) -> None:
    """Replaces the file. Not synced: it describes a running process, which a crash ends."""
    draft = f"{STATISTICS_FILE}.tmp"
    if disk.exists(draft):
        disk.remove(draft)
    file = disk.open(draft, "create")
    try:
        file.write(0, statistics.encode())
    finally:
        file.close()
    disk.rename(draft, STATISTICS_FILE)


def read_statistics(disk: Disk) -> OutboxStatistics | None:
    """The last snapshot, or None if there is none that can be read."""
    try:
        file = disk.open(STATISTICS_FILE, "read")
    except FileNotFoundError:
        return None
    try:
        return OutboxStatistics.decode(file.read(0, file.size()))
    except (ValueError, TypeError, KeyError):
        return None
    finally:
        file.close()
