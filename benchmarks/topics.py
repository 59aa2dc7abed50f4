"""Topics: how fast a log is folded into the latest value of each key, in processor time, because a compactor uses one core at most. Values have 200
bytes, and each tenth value is for an existing key. The log is folded in four rounds, so that files are superseded and merged. The log is generated
while it is read; the time for that is not counted.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measurement import Measurement
from benchmarks.setting import DATA_BYTES, Workload
from waltz_log.compaction import CompactedView, CompactionSettings, Compactor, LogRecord
from waltz_log.core.formats.envelope import pack_keyed
from waltz_log.core.formats.record_layout import RECORD_OVERHEAD_BYTES
from waltz_log.core.topics.topic_names import TopicName
from waltz_log.filesystem import FileSystemDisk

__all__ = ["run"]

ROUNDS = 4
BATCH = 1000


class _Log:
    """`making_s`: processor time of generating it."""

    def __init__(self, count: int, keys: int) -> None:
        draw = random.Random(1)
        self._value = bytes(DATA_BYTES)
        self._keys = [b"key-%08d" % draw.randrange(keys) for _ in range(count)]
        self.bytes = sum(RECORD_OVERHEAD_BYTES + len(pack_keyed(key, self._value)) for key in self._keys)
        self.making_s = 0.0

    def read(self, first: int, end: int) -> Iterable[Sequence[LogRecord]]:
        for start in range(first, end, BATCH):
            began = time.process_time()
            batch = [LogRecord(n, n, 0, pack_keyed(self._keys[n], self._value)) for n in range(start, min(start + BATCH, end))]
            self.making_s += time.process_time() - began
            yield batch


def run(directory: Path, workload: Workload, conditions: Mapping[str, Any]) -> list[Measurement]:
    count = workload.pipelined // 2
    log = _Log(count, count // 10)
    place = directory / "view"
    settings = CompactionSettings()
    try:
        view = CompactedView.open(FileSystemDisk(place), TopicName("bench", "prices"), 0, start=0, now_ms=0, properties={})
        began, copied = time.process_time(), 0
        for part in range(1, ROUNDS + 1):
            copied += Compactor(view, settings).fold(log.read, count * part // ROUNDS, 0).copied_bytes
        took_s = time.process_time() - began - log.making_s
        live = sum(file.live for file in view.manifest.files)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    own = {key: value for key, value in conditions.items() if key != "replicas"}
    own |= {"transactions": count, "keys": live, "rounds": ROUNDS, "copied_mb": round(copied / 1e6), "key_cache_bytes": settings.key_cache_bytes}
    return [Measurement("topics.compaction_mb_s", log.bytes / 1e6 / took_s, "MB/s per core", own)]
