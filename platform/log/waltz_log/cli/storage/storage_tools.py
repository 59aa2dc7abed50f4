"""The read-only commands of `waltz storage`: control file, segments, verification, statistics.

Directories are opened read-only and not locked, because a node may be running. Rows are printed as they are found, to keep memory small.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from waltz_log.cli.printing import print_data, print_item, print_line, print_lines
from waltz_log.core.formats.backup_manifest import MANIFEST
from waltz_log.core.formats.control_format import CONTROL_FILE
from waltz_log.core.formats.segment_format import DATA, first_id_of
from waltz_log.core.ports import Disk
from waltz_log.errors import CorruptData, InvalidSetting
from waltz_log.exit_codes import FAILED, OK
from waltz_log.filesystem import ReadOnlyFileSystemDisk
from waltz_log.statistics import to_json
from waltz_log.storage.control.storage_directory import ControlEntry, StorageDirectory, partition_directories, read_directory, segment_firsts
from waltz_log.storage.integrity.verify import Finding, SegmentCheck
from waltz_log.storage.integrity.verify_directory import verify_directory, verify_small_files
from waltz_log.storage.integrity.verify_views import verify_views
from waltz_log.storage.offline.describe import describe_directory
from waltz_log.storage.offline.dump import dump_index, dump_records, dump_times, read_segment_header
from waltz_log.storage.offline.restore import checked_file, read_manifest
from waltz_log.storage.offline.segment_statistics import segment_statistics

__all__ = ["Pacer", "describe", "dump_control_file", "dump_segment", "statistics", "verify_all", "verify_one"]

PARTS = ("records", "index", "times", "header")
DATA_VIEWS = ("none", "hex", "text")


class Pacer:
    """Called with what was read; waits so that it is not more than the pace. 0: no bound."""

    def __init__(self, mib_per_s: float) -> None:
        self._bytes_per_s = mib_per_s * 1024 * 1024
        self._due = time.monotonic()

    def __call__(self, read: int) -> None:
        if self._bytes_per_s:
            now = time.monotonic()
            self._due = max(self._due, now - 1.0) + read / self._bytes_per_s
            if self._due > now:
                time.sleep(self._due - now)


def _open(directory: Path) -> Disk:
    if not directory.is_dir():
        raise InvalidSetting(name="directory", reason=f"must be an existing directory, not {directory}", nearest=None)
    return ReadOnlyFileSystemDisk(directory)


def _open_segment(path: Path) -> tuple[Disk, str, int]:
    """The disk, the directory on it and the segment's first id."""
    first = first_id_of(path.name, DATA)
    if first is None:
        raise InvalidSetting(name="segment", reason=f"is not a segment's data file, <first id>.{DATA}: {path}", nearest=None)
    if not path.is_file():
        raise InvalidSetting(name="segment", reason=f"is not there: {path}", nearest=None)
    where = path.resolve()
    return ReadOnlyFileSystemDisk(where.parent.parent), where.parent.name, first


def _time(time_ms: int | None) -> str:
    return "-" if time_ms is None else datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _rows(columns: dict[str, int], rows: Iterable[Mapping[str, object]]) -> None:
    """Prints rows as they come, each column in its width (negative: to the left)."""

    def line(values: Iterable[object]) -> str:
        cells = [
            f"{'-' if value is None else value!s:{'<' if width < 0 else '>'}{abs(width)}}"
            for value, width in zip(values, columns.values(), strict=True)
        ]
        return "  ".join(cells).rstrip()

    first = True
    for row in rows:
        if first:
            print_line(line(columns))  # not before the first row: if nothing can be shown, only the error on stderr appears
            first = False
        print_line(line(row[name] for name in columns))
    if first:
        print_line(line(columns))


# ---- control file ----------------------------------------------------------------------------------------------------------------------------------


def describe(directory: Path) -> int:
    print_lines(describe_directory(directory).to_json())
    return OK


def dump_control_file(directory: Path, partition: int | None, output: str) -> int:
    disk = _open(directory)
    found = read_directory(disk)
    if partition is not None and partition >= len(found.entries):
        raise InvalidSetting(name="partition", reason=f"must be one of the {len(found.entries)} of the directory, not {partition}", nearest=None)
    findings, notes = verify_small_files(disk, found)
    places = range(len(found.entries)) if partition is None else [partition]
    fields = {
        "format": "waltz" if found.java is None else "java-waltz-0.13",
        "cluster_key": str(found.key),
        "creation_time_ms": found.header.creation_time_ms,
        "partitions": found.header.partitions,
        "starts": None if found.fence is None else found.fence.start,
        "entries": [_entry(found, place, found.entries[place]) for place in places],
        "findings": [asdict(finding) for finding in findings],
        "notes": notes,
    }
    if output != "table":
        print_data(fields, output)
    else:
        print_line(f"cluster key {fields['cluster_key']}, {fields['partitions']} partitions, created {_time(found.header.creation_time_ms)}")
        print_line(f"format {fields['format']}, starts {'-' if fields['starts'] is None else fields['starts']}")
        columns = {"partition": 9, "struct": 6, "session": 12, "low_water_mark": 15, "local_low_water_mark": 21, "fence": 12, "state": -8}
        if found.java is not None:
            columns |= {"flags": 6, "sequence": 9}
        _rows(columns, (row for place in places for row in _structs(found, place, found.entries[place])))
        _print_findings(findings, notes)
    return FAILED if findings else OK


def _entry(found: StorageDirectory, place: int, entry: ControlEntry) -> dict[str, object]:
    fence = None if found.fence is None or place >= len(found.fence.sessions) else found.fence.sessions[place]
    return {"partition": entry.partition, "current": entry.current, "fence": fence, "structs": [dict(row) for row in _structs(found, place, entry)]}


def _structs(found: StorageDirectory, place: int, entry: ControlEntry) -> Iterator[dict[str, object]]:
    fence = None if found.fence is None or place >= len(found.fence.sessions) else found.fence.sessions[place]
    for which, mark in enumerate(entry.structs):
        row: dict[str, object] = {"partition": entry.partition, "struct": which + 1}
        row |= {name: None if mark is None else getattr(mark, name) for name in ("session", "low_water_mark", "local_low_water_mark")}
        row |= {"fence": fence, "state": "invalid" if mark is None else "current" if which == entry.current else "older"}
        if found.java is not None:
            struct = found.java[place].structs[which]
            row |= {"flags": None if struct is None else struct.flags, "sequence": None if struct is None else struct.sequence}
        yield row


# ---- segments --------------------------------------------------------------------------------------------------------------------------------------


def dump_segment(segment: Path, *, part: str, data: str, first: int | None, last: int | None, data_bytes: int, output: str) -> int:
    if part not in PARTS:
        raise InvalidSetting.unknown(part, PARTS, what="part")
    if data not in DATA_VIEWS:
        raise InvalidSetting.unknown(data, DATA_VIEWS, what="view of the data")
    if first is not None and last is not None and first > last:
        raise InvalidSetting(name="from", reason=f"is above --to: {first} > {last}", nearest=None)
    disk, where, segment_id = _open_segment(segment)
    columns: dict[str, int]
    rows: Iterator[Mapping[str, object]]
    if part == "header":
        header = read_segment_header(disk, where, segment_id)
        columns = {"cluster_key": 36, "partition": 9, "first_transaction_id": 20, "creation_time_ms": 16}
        row = asdict(header) | {"cluster_key": str(header.cluster_key)}
        rows = iter([{name: row[name] for name in columns}])
    elif part == "index":
        columns = {"transaction_id": 14, "offset": 12, "place": 10}
        rows = (asdict(entry) for entry in dump_index(disk, where, segment_id, from_id=first, to_id=last))
    elif part == "times":
        columns = {"first_transaction_id": 20, "append_time": -24, "place": 10, "damage": -24}
        found = dump_times(disk, where, segment_id, from_id=first, to_id=last)
        rows = (asdict(entry) | {"append_time": _time(entry.append_time_ms)} for entry in found)
    else:
        columns = {"transaction_id": 14, "offset": 12, "client_id": 10, "generation": 10, "sequence": 10, "header": 10, "data_length": 11}
        columns |= {"damage": -12} if data == "none" else {"damage": -12, "data": -1}
        rows = _records(disk, where, segment_id, first, last, data, data_bytes)
    if output != "table":
        for shown in rows:
            print_item(shown, output)
    else:
        _rows(columns, rows)
    return OK


def _records(disk: Disk, where: str, segment: int, first: int | None, last: int | None, view: str, data_bytes: int) -> Iterator[dict[str, object]]:
    for record in dump_records(disk, where, segment, from_id=first, to_id=last, data=view != "none"):
        row = {name: getattr(record, name) for name in record.__slots__ if name != "data"}
        if view != "none":
            shown = (record.data or b"")[:data_bytes]
            text = shown.hex() if view == "hex" else ascii(shown.decode("utf-8", "replace"))[1:-1] if shown.isascii() else _printable(shown)
            row["data"] = text + ("…" if record.data_length > len(shown) else "")
        yield row


def _printable(data: bytes) -> str:
    """UTF-8 as it reads, with everything a terminal would act on escaped."""
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in data.decode("utf-8", "replace"))


def statistics(path: Path, output: str) -> int:
    if path.is_dir():
        root = path.resolve()
        if (root / CONTROL_FILE).exists():
            disk = _open(root)
            found = [(disk, str(partition), first) for partition in partition_directories(disk) for first in segment_firsts(disk, str(partition))]
        else:
            disk = _open(root.parent)
            found = [(disk, root.name, first) for first in segment_firsts(disk, root.name)]
        if not found:
            raise InvalidSetting(name="path", reason=f"holds no segments: {path}", nearest=None)
    else:
        found = [_open_segment(path)]
    counted = (to_json(segment_statistics(*each)) for each in found)
    if output != "table":
        for row in counted:
            print_item(row, output)
        return OK
    columns = {"partition": 9, "segment": 12, "transactions": 12, "file_bytes": 12, "data_bytes_p50": 14, "data_bytes_p99": 14, "data_bytes_max": 14}
    columns |= {"clients": 7, "blocks": 8, "first_append": -24, "last_append": -24, "damaged": 7}
    _rows(
        columns,
        (row | {"first_append": _time(row["first_append_time_ms"]), "last_append": _time(row["last_append_time_ms"])} for row in counted),
    )
    return OK


# ---- verification ----------------------------------------------------------------------------------------------------------------------------------


def verify_one(segment: Path, output: str) -> int:
    """Against the control file above it, if there is one; else against what its own header says."""
    disk, where, first = _open_segment(segment)
    header = read_segment_header(disk, where, first)
    following = next((other for other in segment_firsts(disk, where) if other > first), None)
    known_good = -1
    key, partition = header.cluster_key, header.partition
    if disk.exists(CONTROL_FILE) and where in map(str, partition_directories(disk)):
        directory = read_directory(disk)
        key, partition, known_good = directory.key, int(where), directory.known_good(int(where))
    check = SegmentCheck(disk, where, key, partition, first, following=following, known_good=known_good)
    for _ in check.run():
        pass
    row: dict[str, object] = {"partition": partition, "segment": first, "last_transaction_id": check.last_id, "records": check.records}
    row |= {"data_bytes": check.data_bytes, "findings": [asdict(finding) for finding in check.findings]}
    notes = [f"{check.tail_bytes} bytes behind the last acknowledged transaction, being written or torn by a crash"] if check.tail_bytes else []
    if output != "table":
        print_data(row | {"ok": not check.findings, "notes": notes}, output)
    else:
        _rows(_VERIFY_COLUMNS, iter([row | {"findings": len(check.findings)}]))
        _print_findings(check.findings, notes)
    return FAILED if check.findings else OK


_VERIFY_COLUMNS = {"partition": 9, "segment": 20, "last_transaction_id": 20, "records": 10, "data_bytes": 14, "findings": 8}


def verify_all(directory: Path, partitions: set[int] | None, mib_per_s: float, output: str) -> int:
    disk = _open(directory)
    if disk.exists(MANIFEST):
        return _verify_backup(disk, mib_per_s, output)
    small, notes = verify_small_files(disk, read_directory(disk))
    findings: list[Finding] = list(small)
    pacer = Pacer(mib_per_s)

    def rows() -> Iterator[Mapping[str, object]]:
        for report in verify_directory(disk, partitions, pacer):
            findings.extend(report.findings)
            notes.extend(report.notes)
            row = asdict(report)
            yield row | {"findings": len(report.findings)}

    def views() -> Iterator[Mapping[str, object]]:
        for report in verify_views(disk, partitions, pacer):
            findings.extend(report.findings)
            yield asdict(report) | {"findings": len(report.findings)}

    if output != "table":
        segments = [{name: row[name] for name in _VERIFY_COLUMNS} for row in rows()]
        compacted = list(views())
        fields = {"ok": not findings, "segments": segments, "findings": [asdict(finding) for finding in findings], "notes": notes}
        print_data(fields | {"views": compacted}, output)
    else:
        _rows(_VERIFY_COLUMNS, rows())
        for row in views():
            held = f"{row['records']} records in {row['bytes']} bytes, {row['findings']} findings"
            print_line(f"compacted view {row['topic']}/{row['partition']} up to {row['bound']}: {held}")
        _print_findings(findings, notes)
        print_line("ok" if not findings else f"{len(findings)} findings")
    return FAILED if findings else OK


def _verify_backup(disk: Disk, mib_per_s: float, output: str) -> int:
    """Against its manifest: a backup is verified record by record when it is made."""
    findings = []
    manifest = read_manifest(disk)
    pacer = Pacer(mib_per_s)
    for file in manifest.files:
        try:
            for chunk in checked_file(disk, file):
                pacer(len(chunk))
        except CorruptData as error:
            findings.append(Finding("data", error.where, error.offset, -1, -1, error.reason))
    if output != "table":
        print_data({"ok": not findings, "files": len(manifest.files), "findings": [asdict(finding) for finding in findings], "notes": []}, output)
    else:
        print_line(f"backup of cluster {manifest.cluster_key}, taken {_time(manifest.taken_time_ms)}, {len(manifest.files)} files")
        _print_findings(findings, [])
        print_line("ok" if not findings else f"{len(findings)} findings")
    return FAILED if findings else OK


def _print_findings(findings: Iterable[Finding], notes: Iterable[str], write: Callable[[str], None] = print) -> None:
    for note in notes:
        write(f"note: {note}")
    for found in findings:
        ids = "" if found.transaction_id < 0 else f" transaction_ids={found.transaction_id}..{found.last_transaction_id}"
        write(f"wrong: {found.file} part={found.part} offset={found.offset}{ids}: {found.reason}")
