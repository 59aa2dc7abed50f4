"""Every kind of file that a storage node writes is known to the simulator, which corrupts each."""

from __future__ import annotations

from collections import Counter

import pytest

from verification.crashes.file_kinds import FILE_KINDS, kind_of
from verification.simulation import run
from verification.simulation.kept_mix import TOPICS_FROM
from waltz_log.core.formats.control_format import FENCE_FILE
from waltz_log.testing.disk import SimulatedDisk

SEEDS = (*range(3), *range(TOPICS_FROM, TOPICS_FROM + 60))
"""Run until every kind was written, and the first few in any case."""

SEEDS_MIN = 8


def test_every_file_that_a_node_writes_is_of_a_known_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    written: Counter[str | None] = Counter()
    unknown: set[str] = set()
    operate = SimulatedDisk._operate

    def record(disk: SimulatedDisk, kind: str, path: str) -> None:
        of_a_storage_node = path.startswith(FENCE_FILE) or disk.exists(FENCE_FILE)  # clients with outboxes have disks too
        if of_a_storage_node and kind in ("create", "rename", "link"):
            written[kind_of(path)] += 1
            if kind_of(path) is None:
                unknown.add(path)
        operate(disk, kind, path)

    monkeypatch.setattr(SimulatedDisk, "_operate", record)
    for done, seed in enumerate(SEEDS):
        if done >= SEEDS_MIN and set(written) >= set(FILE_KINDS):
            break
        run(seed)
    assert not unknown, f"of no kind in FILE_KINDS: {sorted(unknown)[:5]}"
    assert set(written) == set(FILE_KINDS), f"written: {written}"


@pytest.mark.parametrize("path", ["0/readers", "waltz-storage.more", "a/b/0/x.wal.idx", "0/000.seg.tmp", "0/1.wal"])
def test_a_file_that_no_node_writes_has_no_kind(path: str) -> None:
    assert kind_of(path) is None
