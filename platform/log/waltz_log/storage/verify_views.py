"""Verifies the compacted views of a storage directory: `metadata`, every record of every file, every index and that it names what the file holds.

Strictly a look, also at the directory of a running node, which may change a view meanwhile: what is found counts only where a second look finds it
too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from waltz_log.compaction.index import decode_index
from waltz_log.compaction.manifest import METADATA, ViewFile
from waltz_log.core.ports import Disk
from waltz_log.core.topic_names import TopicName
from waltz_log.core.wal_records import decode_wal_record
from waltz_log.errors import CorruptData, WaltzError
from waltz_log.storage.verify import Finding
from waltz_log.storage.view_folders import read_manifest, view_folders

__all__ = ["ViewReport", "verify_views"]


@dataclass(frozen=True, slots=True)
class ViewReport:
    """`log_partition` -1: `metadata` does not tell."""

    topic: str
    partition: int
    log_partition: int
    bound: int
    records: int
    bytes: int
    findings: tuple[Finding, ...]


def verify_views(disk: Disk, partitions: set[int] | None = None, told: Callable[[int], None] = lambda size: None) -> Iterator[ViewReport]:
    """A report for each view, of the log partitions that are given alone. `told` hears of each file's bytes."""
    for topic, partition in list(view_folders(disk)):
        try:
            report = _look(disk, topic, partition, told)
            if report.findings:
                again = _look(disk, topic, partition, told)
                known = {(found.file, found.reason) for found in report.findings}
                report = ViewReport(*_facts(again), tuple(found for found in again.findings if (found.file, found.reason) in known))
        except FileNotFoundError:
            continue  # removed meanwhile
        if partitions is None or report.log_partition in partitions:
            yield report


def _facts(report: ViewReport) -> tuple[str, int, int, int, int, int]:
    return report.topic, report.partition, report.log_partition, report.bound, report.records, report.bytes


def _look(disk: Disk, topic: TopicName, partition: int, told: Callable[[int], None]) -> ViewReport:
    folder = f"{topic.namespace}/{topic.topic}/{partition}"
    try:
        manifest = read_manifest(disk, topic, partition)
    except (WaltzError, ValueError, KeyError) as error:
        return ViewReport(str(topic), partition, -1, -1, 0, 0, (_finding("header", f"{folder}/{METADATA}", error),))
    findings: list[Finding] = []
    records = size = 0
    for file in manifest.files:
        try:
            offsets = _verify_records(disk, folder, file, told)
            records, size = records + len(offsets), size + file.size_bytes
            _verify_index(disk, folder, file, offsets, told)
        except CorruptData as error:
            findings.append(_finding("index" if error.where.endswith(".index") else "data", error.where, error))
    return ViewReport(str(topic), partition, manifest.log_partition, manifest.bound, records, size, tuple(findings))


def _verify_records(disk: Disk, folder: str, file: ViewFile, told: Callable[[int], None]) -> dict[int, bytes]:
    """Offset and key of each record. Raises `CorruptData`."""
    path = f"{folder}/{file.name}"
    data = _whole(disk, path, f"{folder}/{file.staged(file.name)}")
    told(len(data))
    found: dict[int, bytes] = {}
    offset, last = 0, -1
    while offset < len(data):
        record, end = decode_wal_record(data, offset, where=path)
        if record.transaction_id <= last:
            raise CorruptData(where=path, offset=offset, transaction_id=record.transaction_id, reason=f"is not above {last}")
        found[offset] = record.key
        offset, last = end, record.transaction_id
    if (len(found), len(data)) != (file.records, file.size_bytes):
        reason = f"wants {file.records} records in {file.size_bytes} bytes, has {len(found)} in {len(data)}"
        raise CorruptData(where=path, offset=len(data), transaction_id=-1, reason=reason)
    return found


def _verify_index(disk: Disk, folder: str, file: ViewFile, offsets: dict[int, bytes], told: Callable[[int], None]) -> None:
    path = f"{folder}/{file.index_name}"
    data = _whole(disk, path, f"{folder}/{file.staged(file.index_name)}")
    told(len(data))
    named = {int(chunk.offsets[at]): chunk.key(at) for chunk in decode_index(data, where=path) for at in range(len(chunk))}
    if named != offsets:
        raise CorruptData(where=path, offset=0, transaction_id=file.first, reason="names other keys or places than its file holds")


def _whole(disk: Disk, path: str, staged: str) -> bytes:
    """`staged`: what the file is called until its change, which took effect already, is tidied up."""
    file = disk.open(path if disk.exists(path) else staged, "read")
    try:
        return file.read(0, file.size())
    finally:
        file.close()


def _finding(part: str, where: str, error: Exception) -> Finding:
    offset = error.offset if isinstance(error, CorruptData) else 0
    reason = error.reason if isinstance(error, CorruptData) else str(error)
    return Finding("header" if part == "header" else "index" if part == "index" else "data", where, offset, -1, -1, reason)
