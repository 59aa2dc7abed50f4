"""Verifies the compacted views of a storage directory: `metadata`, every record of every file, and that every index matches its file.

Read-only, also in the directory of a running node, which may change a view meanwhile: a finding counts only if a second check confirms it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from waltz_log.compaction.manifest import METADATA, ViewFile
from waltz_log.core.ports import Disk, DiskFile
from waltz_log.core.topics.topic_names import TopicName
from waltz_log.errors import CorruptData, WaltzError
from waltz_log.storage.integrity.verify import Finding
from waltz_log.storage.integrity.view_check import ViewFileCheck
from waltz_log.storage.views.view_folders import read_manifest, view_folders

__all__ = ["ViewReport", "verify_views"]


@dataclass(frozen=True, slots=True)
class ViewReport:
    """`log_partition` -1: `metadata` cannot be read."""

    topic: str
    partition: int
    log_partition: int
    bound: int
    records: int
    bytes: int
    findings: tuple[Finding, ...]


def verify_views(disk: Disk, partitions: set[int] | None = None, on_bytes: Callable[[int], None] = lambda size: None) -> Iterator[ViewReport]:
    """A report for each view, and for each other `metadata` that cannot be read; only of the given log partitions. `on_bytes` receives the bytes of
    each file."""
    for topic, partition in list(view_folders(disk)):
        try:
            report = _verify_view(disk, topic, partition, on_bytes)
            if report is None:
                continue
            if report.findings:
                again = _verify_view(disk, topic, partition, on_bytes)
                if again is None:
                    continue
                known = {(found.file, found.reason) for found in report.findings}
                report = ViewReport(*_facts(again), tuple(found for found in again.findings if (found.file, found.reason) in known))
        except FileNotFoundError:
            continue  # removed meanwhile
        if partitions is None or report.log_partition in partitions:
            yield report


def _facts(report: ViewReport) -> tuple[str, int, int, int, int, int]:
    return report.topic, report.partition, report.log_partition, report.bound, report.records, report.bytes


def _verify_view(disk: Disk, topic: TopicName, partition: int, on_bytes: Callable[[int], None]) -> ViewReport | None:
    """None for the partition of a regular topic, which has no view."""
    folder = f"{topic.namespace}/{topic.topic}/{partition}"
    try:
        manifest = read_manifest(disk, topic, partition)
    except (WaltzError, ValueError, KeyError) as error:
        offset, reason = (error.offset, error.reason) if isinstance(error, CorruptData) else (0, str(error))
        return ViewReport(str(topic), partition, -1, -1, 0, 0, (Finding("header", f"{folder}/{METADATA}", offset, -1, -1, reason),))
    if manifest.type == "regular":
        return None
    findings: list[Finding] = []
    records = size = 0
    for file in manifest.files:
        check = _opened(disk, folder, file)
        if isinstance(check, Finding):
            findings.append(check)
            continue
        for read in check.run():
            on_bytes(read)
        findings += check.findings
        records, size = records + check.records, size + file.size_bytes
    return ViewReport(str(topic), partition, manifest.log_partition, manifest.bound, records, size, tuple(findings))


def _opened(disk: Disk, folder: str, file: ViewFile) -> ViewFileCheck | Finding:
    """Opens the file by its name, or by its temporary name if its change took effect but the rename is still to come."""
    opened: list[DiskFile] = []
    for part, name in (("data", file.name), ("index", file.index_name)):
        path = f"{folder}/{name}"
        try:
            opened.append(disk.open(path if disk.exists(path) else f"{folder}/{file.staged(name)}", "read"))
        except FileNotFoundError:
            for each in opened:
                each.close()
            return Finding("data" if part == "data" else "index", path, 0, -1, -1, "is not there")
    return ViewFileCheck(folder, file, opened[0], opened[1])
