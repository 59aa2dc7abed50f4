"""Opens a journal's directory: locks it, reads it, repairs what a crash or damage left, and determines where to continue. The records that it
returns are on the medium first. Repairs, each harmless if a crash interrupts it: incomplete files are removed; files too short for a header are set
aside; a header sealed by hash is corrected from the name; the commit or prepare of a broken transaction is invalidated (its first byte becomes the
fill byte), so that it never appears complete once the file with the hole is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from waltz_log.core.ports import Disk
from waltz_log.errors import InvalidSetting, JournalFailed, JournalFull
from waltz_log.journal.directory import Directory, survey
from waltz_log.journal.loading import Loading, load
from waltz_log.journal.record_codec import FILE_HEADER_BYTES, FILL, CheckKind
from waltz_log.journal.record_ledger import JournalFile
from waltz_log.journal.ring import Ring
from waltz_log.journal.salt import create_salt
from waltz_log.journal.settings import JournalSettings
from waltz_log.journal.writer import Writer
from waltz_log.loggers import get_logger

__all__ = ["Opened", "open_directory"]

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Opened:
    check: CheckKind
    salt: bytes | None
    loading: Loading
    ring: Ring
    writer: Writer


def open_directory(disk: Disk, settings: JournalSettings, entropy: Callable[[int], bytes]) -> Opened:
    """The directory stays locked. Raises `InvalidSetting` if another process holds it, `CorruptData` if it cannot be a journal, `JournalFailed` if
    the disk fails, `JournalFull` if there is no space for a first file."""
    try:
        disk.lock()
    except OSError as error:
        raise InvalidSetting(name="directory", reason=f"is in use by another process: {error.strerror}", nearest=None) from None
    try:
        return _open(disk, settings, entropy)
    except OSError as error:
        disk.unlock()
        raise JournalFailed(reason=f"cannot be opened: {error.strerror or error}") from error
    except BaseException:
        disk.unlock()
        raise


def _open(disk: Disk, settings: JournalSettings, entropy: Callable[[int], bytes]) -> Opened:
    directory = survey(disk, "write")
    for name in directory.temporary:
        disk.remove(name)
    check = directory.check or settings.check
    salt = create_salt(disk, entropy) if check == "hash" and directory.salt is None else directory.salt
    loading = load(disk, directory, settings, "write")
    ring = Ring(disk, settings, check)
    _repair(disk, directory, loading, ring)
    ring.restore(loading.data, loading.empty)
    writer = Writer(disk, settings, ring, loading.ledger, salt)
    current = loading.data[-1] if loading.data else None
    ring.release(loading.ledger.reclaim(current))
    with suppress(JournalFull):  # existing records can be read and deleted; a call that needs a file raises then
        ring.make_ready(settings.files_min - ring.in_use - ring.free)
    if current is None:
        writer.start(ring.next_file(), FILE_HEADER_BYTES)
    else:
        writer.start(current, current.end)
    return Opened(check, salt, loading, ring, writer)


def _repair(disk: Disk, directory: Directory, loading: Loading, ring: Ring) -> None:
    for name in directory.short:
        log.warning("journal file without a header set aside", file=name)
        ring.put_aside(name, f"{name}.lost")
    for found in directory.files:
        if found.header_id != found.id:
            log.info("journal file header corrected", file=found.name, header=found.header_id)
            ring.correct_header(found)
    struck: dict[JournalFile, list[int]] = {}
    for strike in loading.strikes:
        log.warning("incomplete journal transaction ignored", file=strike.file.name, offset=strike.offset)
        struck.setdefault(strike.file, []).append(strike.offset)
    for file in loading.data:
        if file.damaged:
            log.warning("journal file damaged", file=file.name)
        if file not in struck and file.id not in loading.unsealed:
            continue
        handle = disk.open(file.name, "write")
        try:
            for offset in struck.get(file, ()):
                handle.write(offset, FILL)
            handle.sync()
        finally:
            handle.close()
