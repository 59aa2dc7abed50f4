"""Inspection of a journal's files: each record with its place, each file with its live records, and what is wrong.

Read-only. The caller holds the directory's lock or knows that no process writes. One file is in memory at a time, plus what loading keeps for the
findings and the live counts. This module judges nothing itself: the codec decides what is healthy, loading what is live.

A finding is either damage or a note. A note is what a crash leaves and the next opening repairs: a torn end of the newest file, an open transaction,
an incomplete file. Damage is everything that a crash alone cannot explain.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, NamedTuple, TypeAlias

from waltz_log.core.ports import Disk
from waltz_log.errors import CorruptData
from waltz_log.journal.directory import ATTIC, FILE_ID_MAX, Directory, FoundFile, ring_order, survey
from waltz_log.journal.loading import Loaded, load
from waltz_log.journal.record_codec import (
    ADD,
    ADD_TX,
    COMMIT,
    DELETE,
    DELETE_TX,
    FILE_HEADER_BYTES,
    PREPARE,
    ROLLBACK,
    UNHEALTHY,
    UPDATE,
    UPDATE_TX,
    Record,
    scan,
)
from waltz_log.journal.record_ledger import JournalFile
from waltz_log.journal.settings import JournalSettings

__all__ = ["KIND_NAMES", "FileFigures", "Finding", "JournalFigures", "Seen", "figures", "in_order", "records_of", "verify"]

KIND_NAMES: Final = {
    ADD: "add",
    UPDATE: "update",
    ADD_TX: "add-tx",
    UPDATE_TX: "update-tx",
    DELETE_TX: "delete-tx",
    DELETE: "delete",
    PREPARE: "prepare",
    COMMIT: "commit",
    ROLLBACK: "rollback",
    UNHEALTHY: "unhealthy",
}

_MAY_BEGIN: Final = re.compile(rb"[\x0b-\x13]")
Role: TypeAlias = Literal["data", "current", "free", "empty"]
"""`free`: what it holds is not needed, so that it can be reused; `empty`: it holds nothing."""


class Seen(NamedTuple):
    """`file_id`: the use of the file that the record belongs to; `current`: it is this one."""

    file_id: int
    current: bool
    record: Record


def in_order(directory: Directory) -> list[FoundFile]:
    """The files, oldest first."""
    by_id = {file.id: file for file in directory.files}
    return [by_id[file_id] for file_id in ring_order(by_id)]


def records_of(disk: Disk, directory: Directory, file: FoundFile, *, earlier: bool = False) -> Iterator[Seen]:
    """The records of a file in the order of their places, unhealthy places among them; with `earlier` also what is left of earlier uses between
    them and behind."""
    data = _content(disk, file)
    position = FILE_HEADER_BYTES
    for record in scan(data, file.id, directory.seed(file.id)):
        if earlier:
            yield from _earlier(data, directory, file.id, position, record.offset)
        yield Seen(file.id, True, record)
        position = record.end
    if earlier:
        yield from _earlier(data, directory, file.id, position, len(data))


def _content(disk: Disk, file: FoundFile) -> bytes:
    handle = disk.open(file.name, "read")
    try:
        return handle.read(0, file.size)
    finally:
        handle.close()


def _earlier(data: bytes, directory: Directory, own_id: int, start: int, stop: int) -> Iterator[Seen]:
    """Any type and any id may begin a record of an earlier use, so each place is tried for the id that it names."""
    seed_of = lru_cache(maxsize=1024)(directory.seed)
    part = data[start:stop]
    position = 0
    while (begin := _MAY_BEGIN.search(part, position)) is not None:
        position = begin.start()
        file_id = int.from_bytes(part[position + 1 : position + 5], "big")
        if file_id != own_id and 1 <= file_id <= FILE_ID_MAX:
            record = next(scan(part, file_id, seed_of(file_id), position), None)
            if record is not None and record.offset == position and record.kind != UNHEALTHY:
                yield Seen(file_id, False, record._replace(offset=start + position, end=start + record.end))
                position = record.end
                continue
        position += 1


# ---- figures -----------------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FileFigures:
    """`used_bytes`: up to the end of the last record; `records`: of each kind; `living`: adds and updates that are some living record's."""

    name: str
    file_id: int
    role: Role
    file_bytes: int
    used_bytes: int
    records: dict[str, int]
    living: int


@dataclass(frozen=True, slots=True)
class JournalFigures:
    """`check` is None if there is no journal yet."""

    check: str | None
    living_records: int
    living_bytes: int
    prepared: list[int]
    failed_transactions: list[int]
    broken_transactions: list[int]
    record_id_max: int
    unhealthy: int
    set_aside: int
    files: list[FileFigures]


def figures(disk: Disk, settings: JournalSettings) -> JournalFigures:
    """Counts what is there. Of the settings the replaceable types matter: without them updates that were replaced count as living. Raises
    `CorruptData` if it cannot be one journal."""
    directory = survey(disk)
    loading = load(disk, directory, settings)
    loaded = loading.loaded
    assert loaded is not None
    living = {file.id: file.live for file in loading.data}
    last = loading.data[-1] if loading.data else None
    going = {file.id for file in loading.ledger.reclaim(last)}
    files = [_file_figures(disk, directory, file, living.get(file.id), last, going) for file in in_order(directory)]
    return JournalFigures(
        directory.check,
        len({record.record_id for record in loaded.records}),
        sum(len(record.body) for record in loaded.records),
        [each.transaction_id for each in loaded.prepared],
        loaded.failed_transactions,
        loaded.broken_transactions,
        loaded.record_id_max,
        loaded.unhealthy,
        len(disk.list(ATTIC)),
        files,
    )


def _file_figures(disk: Disk, directory: Directory, file: FoundFile, living: int | None, last: JournalFile | None, going: set[int]) -> FileFigures:
    kinds: Counter[str] = Counter()
    end = 0
    for seen in records_of(disk, directory, file):
        kinds[KIND_NAMES[seen.record.kind]] += 1
        end = end if seen.record.kind == UNHEALTHY else seen.record.end
    role: Role = "data"
    if living is None:
        role = "empty"
    elif last is not None and last.id == file.id:
        role = "current"
    elif file.id in going:
        role = "free"
    return FileFigures(file.name, file.id, role, file.size, end, dict(kinds), living or 0)


# ---- findings ----------------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Finding:
    """`offset` is -1 where it is the whole file or directory."""

    damage: bool
    where: str
    offset: int
    what: str


def verify(disk: Disk) -> Iterator[Finding]:
    """What is not as a journal leaves it. A directory that cannot be one journal is one finding."""
    try:
        directory = survey(disk)
        yield from _odd_files(directory)
        loading = load(disk, directory, JournalSettings())
    except CorruptData as error:
        yield Finding(True, error.where, error.offset, error.reason)
        return
    assert loading.loaded is not None
    newest = loading.data[-1].id if loading.data else -1
    damaged = {file.id for file in [*loading.data, *loading.empty] if file.damaged}
    for file in in_order(directory):
        yield from _odd_records(disk, directory, file, file.id in damaged)
    yield from _odd_transactions(loading.loaded, {(strike.file.name, strike.offset): strike.file.id == newest for strike in loading.strikes})
    aside = disk.list(ATTIC)
    if aside:
        yield Finding(False, ATTIC, -1, f"{len(aside)} damaged files were set aside; look at them and remove them by hand")


def _odd_files(directory: Directory) -> Iterator[Finding]:
    usual = Counter(file.size for file in directory.files).most_common(1)
    for file in in_order(directory):
        if file.header_id != file.id:
            yield Finding(False, file.name, 0, f"the header says {file.header_id}: damage, or a reuse that a crash cut short; opening corrects it")
        if file.size != usual[0][0]:
            yield Finding(False, file.name, -1, f"is {file.size} bytes long, the others {usual[0][0]}: cut off, or of other settings")
    for name in directory.short:
        yield Finding(True, name, 0, "is too short for a header; what it held is lost, and opening sets it aside")
    for name in directory.temporary:
        yield Finding(False, name, -1, "was being made when a crash came; opening removes it")


def _odd_records(disk: Disk, directory: Directory, file: FoundFile, damaged: bool) -> Iterator[Finding]:
    """`damaged` is loading's verdict; of a file that is not, the end alone is unhealthy, and it was being written."""
    waiting: list[int] = []
    for seen in records_of(disk, directory, file):
        if seen.record.kind == UNHEALTHY:
            waiting.append(seen.record.offset)
            continue
        yield from (Finding(True, file.name, offset, "only looks like a record") for offset in waiting)
        waiting.clear()
    torn = "the end of the file is torn, as a crash leaves it"
    doubtful = "the end of the file is not whole: damage, unless a crash tore it and the journal went on in another file"
    yield from (Finding(damaged, file.name, offset, doubtful if damaged else torn) for offset in waiting)


def _odd_transactions(loaded: Loaded, broken: dict[tuple[str, int], bool]) -> Iterator[Finding]:
    for (name, offset), newest in broken.items():
        crash = "; a crash can have taken them before a sync" if newest else ""
        yield Finding(not newest, name, offset, f"a transaction lacks records and does not count{crash}")
    if loaded.failed_transactions:
        ids = ", ".join(map(str, loaded.failed_transactions[:10]))
        yield Finding(False, "", -1, f"{len(loaded.failed_transactions)} transactions were open and count nothing: {ids}")
