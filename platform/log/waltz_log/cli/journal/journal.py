"""What the commands of `waltz journal` do. Lines are printed as they are found, so that a large journal needs no more memory than a small one."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, Final  # Any: keyword arguments that a settings model checks

from waltz_log.cli.printing import print_data, print_item, print_line, print_result, print_table
from waltz_log.errors import InvalidRequest, InvalidSetting
from waltz_log.exit_codes import FAILED, OK
from waltz_log.filesystem import FileSystemDisk, ReadOnlyFileSystemDisk
from waltz_log.journal import Journal, JournalSettings
from waltz_log.journal.directory import survey
from waltz_log.journal.export import export_lines
from waltz_log.journal.export import import_lines as fill
from waltz_log.journal.inspection import KIND_NAMES, Seen, figures, in_order, records_of
from waltz_log.journal.inspection import verify as findings
from waltz_log.journal.measure import BlockTiming, suggest
from waltz_log.journal.measure import measure as measure_disk
from waltz_log.journal.record_codec import ADD, ADD_TX, COMMIT, DELETE_TX, PREPARE, ROLLBACK, UNHEALTHY, UPDATE, UPDATE_TX
from waltz_log.untrusted_files import EXPORT, open_lines, open_regular

__all__ = ["compact", "export", "import_lines", "measure", "print_records", "statistics", "verify"]

BODY_SHOWN_BYTES = 40
LINE_CHARACTERS: Final = 1_000_000
"""For a line of an export beside the body of its record: the first line lists the transactions in doubt."""

HEAD = f"{'file':>10} {'offset':>10} {'kind':<10} {'transaction':>12} {'record':>12} {'type':>4} {'bytes':>8}  body, or file:records"


def _held(directory: Path) -> ReadOnlyFileSystemDisk:
    """The directory, read-only and locked against writers."""
    if not directory.is_dir():
        raise InvalidRequest(reason=f"no such directory: {directory}")
    disk = ReadOnlyFileSystemDisk(directory)
    try:
        disk.lock()
    except BlockingIOError:
        raise InvalidSetting(name="directory", reason=f"is in use by another process: {directory}", nearest=None) from None
    return disk


@contextmanager
def _locked_read_only(directory: Path) -> Iterator[ReadOnlyFileSystemDisk]:
    """The directory of a journal."""
    disk = _held(directory)
    try:
        if not any(name.startswith("journal") for name in disk.list("")):
            raise InvalidRequest(reason=f"there is no journal in {directory}")
        yield disk
    finally:
        disk.unlock()


# ---- print -------------------------------------------------------------------------------------------------------------------------------------


def print_records(directory: Path, *, reclaimed: bool, safe: bool, output: str) -> int:
    with _locked_read_only(directory) as disk:
        found = survey(disk)
        if output == "table":
            print_line(HEAD)
        for file in in_order(found):
            for seen in records_of(disk, found, file, earlier=reclaimed):
                if output == "table":
                    print_line(_row(seen, safe))
                else:
                    print_item(_record_fields(file.name, seen, safe), output)
    return OK


def _record_fields(name: str, seen: Seen, safe: bool) -> dict[str, object]:
    record = seen.record
    fields: dict[str, object] = {"file": name, "file_id": seen.file_id, "reclaimed": not seen.current, "offset": record.offset}
    fields |= {"kind": KIND_NAMES[record.kind]}
    if record.kind == UNHEALTHY:
        return fields
    if record.kind in (ADD_TX, UPDATE_TX, DELETE_TX, PREPARE, COMMIT, ROLLBACK):
        fields["transaction"] = record.transaction_id
    if record.kind in (PREPARE, COMMIT):
        fields["files"] = [list(pair) for pair in record.counts]
    elif record.kind != ROLLBACK:
        fields["record"] = record.record_id
    if record.kind in (ADD, UPDATE, ADD_TX, UPDATE_TX):
        fields |= {"type": record.user_type, "bytes": len(record.body)}
        if not safe:
            fields["body"] = record.body.hex()
    return fields


def _row(seen: Seen, safe: bool) -> str:
    fields = _record_fields("", seen, safe)
    record = seen.record
    mark = "" if seen.current else "  (reclaimed)"
    last = " ".join(f"{file_id}:{count}" for file_id, count in record.counts)
    if not last and not safe and "body" in fields:
        shown = record.body[:BODY_SHOWN_BYTES]
        last = repr(shown)[1:] + ("..." if len(record.body) > len(shown) else "")
    cells = f"{seen.file_id:>10} {record.offset:>10} {fields['kind']:<10} {fields.get('transaction', ''):>12} {fields.get('record', ''):>12}"
    return f"{cells} {fields.get('type', ''):>4} {fields.get('bytes', ''):>8}  {last}{mark}".rstrip()


# ---- stats, verify -----------------------------------------------------------------------------------------------------------------------------


def statistics(directory: Path, config: Path | None, *, output: str) -> int:
    settings = _settings(config)
    with _locked_read_only(directory) as disk:
        found = figures(disk, settings)
    if output != "table":
        print_data(asdict(found), output)
        return OK
    print_line(
        f"checks by {found.check}; {found.living_records:,} living records of {found.living_bytes:,} bytes; highest record id {found.record_id_max}"
    )
    print_line(
        f"transactions in doubt {len(found.prepared)}, open and lost {len(found.failed_transactions)}, lacking records "
        f"{len(found.broken_transactions)}; unhealthy places {found.unhealthy}; files set aside {found.set_aside}"
    )
    rows = []
    for file in found.files:
        records = sum(count for kind, count in file.records.items() if kind != KIND_NAMES[UNHEALTHY])
        rows.append((file.file_id, file.name, file.role, f"{file.used_bytes:,}", f"{file.file_bytes:,}", f"{records:,}", f"{file.living:,}"))
    print_table(("id", "file", "role", "used", "of bytes", "records", "living"), rows)
    return OK


def verify(directory: Path, *, output: str) -> int:
    damaged = found = 0
    with _locked_read_only(directory) as disk:
        for each in findings(disk):
            found += 1
            damaged += each.damage
            if output != "table":
                print_item(asdict(each), output)
            else:
                place = " ".join(part for part in (each.where, f"offset {each.offset}" if each.offset >= 0 else "") if part)
                print_line(f"{'damage' if each.damage else 'note'}: {place}{': ' if place else ''}{each.what}")
    if output == "table":
        print_line(f"damaged places: {damaged}, notes: {found - damaged}")
    return FAILED if damaged else OK


# ---- export, import, compact -------------------------------------------------------------------------------------------------------------------


def export(directory: Path, to: Path | None, config: Path | None) -> int:
    """A file appears whole or not at all."""
    settings = _settings(config)
    with _locked_read_only(directory) as disk:
        lines = export_lines(disk, settings)
        if to is None:
            for line in lines:
                print_line(line)
            return OK
        if to.exists():
            raise InvalidRequest(reason=f"{to} exists already")
        half = to.with_name(f"{to.name}.tmp")
        count = 0
        try:
            half.unlink(missing_ok=True)  # the remains of a killed process
            with os.fdopen(open_regular(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL, follow=False), "w") as file:
                for line in lines:
                    file.write(f"{line}\n")
                    count += 1
            half.rename(to)
        finally:
            half.unlink(missing_ok=True)
    print_line(f"exported lines={count} to={to}", file=sys.stderr)
    return OK


def import_lines(directory: Path, source: Path | None, config: Path | None, *, output: str) -> int:
    settings = _settings(config)
    try:
        file = sys.stdin if source is None else open_lines(source, EXPORT)
    except OSError as error:
        raise InvalidRequest(reason=f"cannot read {source}: {error.strerror}") from None
    with file, Journal.open(FileSystemDisk(directory), settings) as journal:
        records, transactions = fill(journal, _lines(file, LINE_CHARACTERS + 4 * settings.file_bytes // 3))
    line = f"imported records={records} transactions={transactions} to={directory}"
    print_result({"records": records, "transactions": transactions, "directory": str(directory)}, [line], output)
    return OK


def _lines(file: IO[str], characters_max: int) -> Iterator[str]:
    """Raises `InvalidRequest` for a line that is longer than the record that a file of the journal holds, before all of it is read."""
    number = 0
    try:
        while line := file.readline(characters_max + 1):
            number += 1
            if len(line) > characters_max:
                raise InvalidRequest(reason=f"line {number} has more than {characters_max} characters, and no file of this journal holds its record")
            yield line
    except UnicodeDecodeError:
        raise InvalidRequest(reason=f"the export is not text in UTF-8 after line {number}") from None


def compact(directory: Path, config: Path | None, *, output: str) -> int:
    """Without settings, new files have the size of the existing ones, and there may be twice as many."""
    with _locked_read_only(directory) as disk:  # checks that it is a journal and that no process writes to it
        sizes = Counter(file.size for file in survey(disk).files)
    settings = _settings(config)
    if config is None and sizes:
        there: dict[str, Any] = {"file_bytes": sizes.most_common(1)[0][0], "files_max": max(settings.files_max, 2 * sizes.total())}
        settings = JournalSettings(**(there | settings.model_dump(include=settings.model_fields_set)))
    with Journal.open(FileSystemDisk(directory), settings) as journal:
        before = journal.statistics()
        freed = journal.compact()
        after = journal.statistics()
    line = f"freed files={freed} data_files={before.files_data}->{after.files_data} records={after.records} copied={after.records_compacted}"
    files = {"freed_files": freed, "data_files_before": before.files_data, "data_files": after.files_data}
    print_result(files | {"records": after.records, "copied": after.records_compacted}, [line], output)
    return OK


def _settings(config: Path | None) -> JournalSettings:
    return JournalSettings.load(config, prefix="WALTZ_JOURNAL")


# ---- measure -----------------------------------------------------------------------------------------------------------------------------------


def measure(directory: Path, seconds: float, *, output: str) -> int:
    """Holds the directory, so that no journal in it is slowed down by this, and this by none."""
    held = _held(directory)

    def progress(timing: BlockTiming) -> None:
        if output == "table":
            print_line(
                f"{timing.block_bytes:>9,} bytes: {timing.syncs_per_s:>9,.0f} syncs/s, {timing.bytes_per_s / 1e6:>8,.1f} MB/s, "
                f"median {timing.median_s * 1e3:.3f} ms, 99 of 100 below {timing.slow_s * 1e3:.3f} ms"
            )

    try:
        timings = measure_disk(FileSystemDisk(directory), now=time.perf_counter, budget_s=seconds, progress=progress)
    finally:
        held.unlock()
    bounds = suggest(timings)
    if output != "table":
        print_data({"timings": [asdict(each) for each in timings], "suggested": asdict(bounds)}, output)
    else:
        print_line(f"suggested for group commit: linger_s: {bounds.linger_s}, group_bytes: {bounds.group_bytes}")
    return OK
