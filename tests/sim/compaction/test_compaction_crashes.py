"""A compaction that dies at any moment leaves the old view or the new one, never a mix; and the bugs this must notice are noticed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from tests.unit.log.compaction.views import BEGUN_MS, Log, compactor, contents, drawn_log, fold, open_view, reader
from verification.crashes.crashes import CrashFound, Effort, enumerate_crashes
from waltz_log.compaction import CompactedView, CompactionSettings, Compactor
from waltz_log.compaction.compactor import FileWriter
from waltz_log.compaction.manifest import METADATA, Manifest
from waltz_log.core.formats.wal_records import WalRecord
from waltz_log.testing.disk import SimulatedDisk

EFFORT = Effort("pytest tests/sim/compaction/test_compaction_crashes.py", subsets_of=4, drawn=4, torn_every=97, recovery_every=40)
BOUNDS = (60, 61, 120, 170)
LOG = drawn_log(Random(5), 220, 40)
RULES = CompactionSettings(key_cache_bytes=1 << 12, segment_bytes=1 << 12, tombstone_retention_s=100)
"""Small enough that files are begun, merged and rewritten; tombstones end within the log, whose transactions are a second apart."""


def now_ms(bound: int) -> int:
    return BEGUN_MS + 1000 * bound


def expected(log: Log, bound: int) -> set[WalRecord]:
    return set(fold(log, bound))


class Compacting:
    """Folds in several steps. A crash must leave a bound between the last that was reached and the next, and the fold of the log up to there."""

    def __init__(self) -> None:
        self._reached = 0
        self._begun = 0

    async def prepare(self, disk: SimulatedDisk) -> None:
        pass

    async def run(self, disk: SimulatedDisk) -> None:
        for bound in BOUNDS:
            self._begun = bound
            compactor(open_view(disk), RULES).fold(reader(LOG), bound, now_ms(bound))
            self._reached = bound

    def observe(self) -> tuple[int, int]:
        return self._reached, self._begun

    async def recover(self, disk: SimulatedDisk) -> None:
        open_view(disk)


def same_view(found: list[WalRecord], bound: int, now: int) -> bool:
    """What is found is the fold, but for tombstones whose time is over: they may be gone or not."""
    latest = expected(LOG, bound)
    kept = {record for record in latest if not record.is_tombstone or record.time_ms >= now - 1000 * RULES.tombstone_retention_s}
    return kept <= set(found) <= latest and found == sorted(found)


async def check(disk: SimulatedDisk, state: tuple[int, int]) -> None:
    reached, begun = state
    view = open_view(disk)
    assert reached <= view.bound <= max(reached, begun), f"bound={view.bound}"
    assert same_view(contents(view), view.bound, now_ms(begun)), "not the fold"
    compactor(view, RULES).fold(reader(LOG), 220, now_ms(220))
    again = open_view(disk.crash())  # what was acknowledged is on the medium
    assert again.bound == 220
    assert same_view(contents(again), 220, now_ms(220)), "not the fold after one more"


async def test_a_crash_at_any_moment_leaves_the_old_view_or_the_new_one() -> None:
    tally = await enumerate_crashes("compaction", Compacting, check, EFFORT)
    assert tally.points > 60
    assert tally.checked > 500
    assert tally.recoveries > 50


async def caught() -> bool:
    try:
        await enumerate_crashes("compaction", Compacting, check, replace(EFFORT, recovery_every=0))
    except CrashFound:
        return True
    return False


def _without(sync: str) -> Callable[[SimulatedDisk, str], None]:
    whole = SimulatedDisk.sync_directory

    def partial(disk: SimulatedDisk, path: str) -> None:
        if path != sync:
            whole(disk, path)

    return partial


class TestPlantedBugs:
    async def test_metadata_that_is_newer_than_the_files_it_names(self, monkeypatch: pytest.MonkeyPatch) -> None:
        write, end = FileWriter._write, FileWriter._end

        def without_a_sync(writer: FileWriter) -> None:
            write(writer)
            assert writer._handle is not None
            monkeypatch.setattr(writer._handle, "sync", lambda: None)
            end(writer)

        monkeypatch.setattr(FileWriter, "_end", without_a_sync)
        assert await caught()

    async def test_names_that_are_not_synced_before_they_take_effect(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(SimulatedDisk, "sync_directory", _without("market/prices/3"))
        assert await caught()

    async def test_files_that_get_their_names_before_they_take_effect(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def at_once(view: CompactedView, manifest: Manifest) -> None:
            old, view._manifest = view._manifest, manifest
            view._tidy()
            view._manifest = old
            view._replace_manifest(manifest)
            view._manifest = manifest

        monkeypatch.setattr(CompactedView, "change", at_once)
        assert await caught()

    async def test_metadata_that_is_written_over(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def in_place(view: CompactedView, manifest: Manifest) -> None:
            path = view._path(METADATA)
            handle = view._disk.open(path, "write" if view._disk.exists(path) else "create")
            handle.truncate(0)
            handle.write(0, manifest.to_bytes())
            handle.sync()
            handle.close()
            view._disk.sync_directory(view._folder)

        monkeypatch.setattr(CompactedView, "_replace_manifest", in_place)
        assert await caught()

    async def test_a_tombstone_that_is_dropped_early(self, monkeypatch: pytest.MonkeyPatch) -> None:
        put = FileWriter.put

        def dropping(writer: FileWriter, record: WalRecord, whole: bytes) -> None:
            if not record.is_tombstone:
                put(writer, record, whole)

        monkeypatch.setattr(FileWriter, "put", dropping)
        assert await caught()

    async def test_older_values_that_stay_alive(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Compactor, "_superseded", lambda folding, files, latest: list(files))
        assert await caught()

    async def test_files_in_the_order_of_letters(self, monkeypatch: pytest.MonkeyPatch) -> None:
        change = CompactedView.change

        def sorted_by_letters(view: CompactedView, manifest: Manifest) -> None:
            change(view, replace(manifest, files=tuple(sorted(manifest.files, key=lambda file: file.name))))

        monkeypatch.setattr(CompactedView, "change", sorted_by_letters)
        assert await caught()
