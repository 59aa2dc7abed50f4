"""A compacted view is the fold of the log by key: whatever the log, the steps and the settings; and what damage and failures do."""

from __future__ import annotations

import errno
import tracemalloc
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.log.compaction.views import BEGUN_MS, SMALL, compactor, contents, drawn_log, fold, open_view, reader
from waltz_log.compaction import CompactionSettings, Compactor, LogRecord
from waltz_log.compaction.view import CompactedView
from waltz_log.compaction.view_load import ViewLoad
from waltz_log.core.formats.envelope import pack_keyed
from waltz_log.core.formats.wal_records import WalRecord
from waltz_log.core.topics.topic_names import TopicName
from waltz_log.errors import CorruptData, InvalidRequest, StorageFailed
from waltz_log.filesystem import FileSystemDisk
from waltz_log.testing.disk import Operation, SimulatedDisk

FOLDER = "market/prices/3"


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 32), st.integers(1, 400), st.integers(1, 120), st.lists(st.integers(1, 150), max_size=5), st.integers(1, 40))
def test_a_view_is_the_fold_of_the_log_by_key(seed: int, count: int, keys: int, pauses: list[int], batch: int) -> None:
    log = drawn_log(Random(seed), count, keys, first=10)
    disk, bound = SimulatedDisk(), 10
    view = open_view(disk, start=10)
    for more in [*pauses, count]:
        bound = min(bound + more, 10 + count)
        compactor(view).fold(reader(log, batch), bound, BEGUN_MS)
        assert view.bound == bound
        assert contents(view) == fold(log, bound)
        view = open_view(disk, start=10)
        assert contents(view) == fold(log, bound)


def test_files_stay_few_and_mostly_alive() -> None:
    log = drawn_log(Random(1), 6000, 300)
    disk = SimulatedDisk()
    view = open_view(disk)
    for bound in range(200, 6001, 200):
        compactor(view, CompactionSettings(key_cache_bytes=1 << 13, segment_bytes=1 << 20)).fold(reader(log), bound, BEGUN_MS)
        files = view.manifest.files
        assert len(files) <= 8
        assert all(file.live_bytes >= 0.5 * file.size_bytes for file in files)
        assert sorted(disk.list(FOLDER)) == sorted(["metadata", *[name for file in files for name in (file.name, file.index_name)]])
    assert contents(view) == fold(log, 6000)


def test_files_are_named_by_their_first_transaction_and_listed_in_numeric_order() -> None:
    log = [LogRecord(n, BEGUN_MS, 0, pack_keyed(b"%d" % n, bytes(200))) for n in range(120)]
    view = open_view(SimulatedDisk())
    compactor(view, CompactionSettings(segment_bytes=4096)).fold(reader(log), 120, BEGUN_MS)
    firsts = [file.first for file in view.manifest.files]
    assert len(firsts) > 3
    assert firsts == sorted(firsts)
    assert [record.transaction_id for record in view.snapshot().records()] == list(range(120))
    assert [file.name for file in view.manifest.files] == [f"{first}.wal" for first in firsts]


def test_a_reader_starts_anywhere() -> None:
    log = drawn_log(Random(2), 500, 200)
    view = open_view(SimulatedDisk())
    compactor(view, CompactionSettings(segment_bytes=4096)).fold(reader(log), 500, BEGUN_MS)
    for first in (0, 1, 250, 499, 500, 1000):
        with view.snapshot() as snapshot:
            assert list(snapshot.records(first)) == [record for record in fold(log, 500) if record.transaction_id >= first]


def test_values_larger_than_what_is_read_at_once_come_whole() -> None:
    log = [LogRecord(n, BEGUN_MS, 0, pack_keyed(b"%d" % n, bytes([n]) * (700_000 * n))) for n in range(5)]
    view = open_view(SimulatedDisk())
    compactor(view, CompactionSettings()).fold(reader(log), 5, BEGUN_MS)
    assert contents(view) == fold(log, 5)


def test_the_end_of_a_key_is_reported_until_its_time_is_over_and_its_values_never_come_back() -> None:
    rules = CompactionSettings(key_cache_bytes=1 << 12, tombstone_retention_s=60)
    log = [LogRecord(n, BEGUN_MS + n, 0, pack_keyed(b"k%d" % (n % 50), b"v" * 30)) for n in range(50)]
    log += [LogRecord(50 + n, BEGUN_MS + 50 + n, 0, pack_keyed(b"k%d" % n, b"")) for n in range(40)]
    disk = SimulatedDisk()
    view = open_view(disk)
    compactor(view, rules).fold(reader(log), 90, BEGUN_MS)
    compactor(view, rules).merge(BEGUN_MS + 60_000)
    assert [record.key for record in contents(view) if record.is_tombstone] == [b"k%d" % n for n in range(40)]
    compactor(view, rules).merge(BEGUN_MS + 60_090)
    assert {record.key for record in contents(view)} == {b"k%d" % n for n in range(40, 50)}
    assert {record.key for record in contents(open_view(disk))} == {b"k%d" % n for n in range(40, 50)}


def test_a_reader_keeps_what_it_began_with_while_the_view_changes() -> None:
    log = drawn_log(Random(3), 900, 60)
    view = open_view(SimulatedDisk())
    compactor(view).fold(reader(log), 300, BEGUN_MS)
    with view.snapshot() as before:
        walked = before.records()
        begun = [next(walked) for _ in range(5)]
        compactor(view).fold(reader(log), 900, BEGUN_MS)
        assert begun + list(walked) == fold(log, 300)
        assert before.bound == 300
    assert contents(view) == fold(log, 900)


def test_two_keys_with_one_hash_stay_two(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("compactor", "index"):
        monkeypatch.setattr(f"waltz_log.compaction.{module}.xxh64_intdigest", lambda key: len(key))
    log = drawn_log(Random(4), 600, 90)
    view = open_view(SimulatedDisk())
    for bound in (200, 400, 600):
        compactor(view).fold(reader(log), bound, BEGUN_MS)
    assert contents(view) == fold(log, 600)


def test_records_without_a_key_are_counted() -> None:
    log = drawn_log(Random(5), 300, 20)
    view = open_view(SimulatedDisk())
    compactor(view).fold(reader(log), 300, BEGUN_MS)
    assert view.manifest.not_keyed == sum(record.data.startswith(b"\xff") for record in log) > 0


def test_a_log_with_a_gap_is_refused_and_the_view_stays() -> None:
    log = drawn_log(Random(6), 200, 20)
    view = open_view(SimulatedDisk())
    compactor(view).fold(reader(log), 50, BEGUN_MS)
    with pytest.raises(CorruptData, match="continues at 121"):
        compactor(view, CompactionSettings()).fold(reader(log[:120] + log[121:]), 200, BEGUN_MS)
    with pytest.raises(CorruptData, match="continues at 200"):
        compactor(view, CompactionSettings()).fold(reader(log[:190]), 200, BEGUN_MS)
    assert contents(view) == fold(log, 50)


def test_a_folder_of_another_topic_or_with_other_properties_is_refused() -> None:
    disk = SimulatedDisk()
    open_view(disk)
    with pytest.raises(InvalidRequest, match="properties"):
        open_view(disk, owner="other")
    disk.make_directory("market/other/3")
    disk.rename(f"{FOLDER}/metadata", "market/other/3/metadata")
    with pytest.raises(InvalidRequest, match="belongs to topic market/prices"):
        open_view(disk, topic=TopicName("market", "other"))


def test_a_damaged_index_is_made_again_from_its_records() -> None:
    log = drawn_log(Random(7), 400, 60)
    disk = SimulatedDisk()
    view = open_view(disk)
    compactor(view).fold(reader(log), 200, BEGUN_MS)
    for file in view.manifest.files:
        whole = bytearray(disk.content(f"{FOLDER}/{file.index_name}"))
        whole[len(whole) // 2] ^= 1
        disk.replace(f"{FOLDER}/{file.index_name}", bytes(whole))
    compactor(view).fold(reader(log), 400, BEGUN_MS)
    assert contents(view) == fold(log, 400)


def test_an_index_of_many_chunks_of_which_a_later_one_is_damaged_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waltz_log.compaction.index.CHUNK_BYTES", 1000)
    for damaged in (False, True):
        log = drawn_log(Random(7), 600, 200)
        disk = SimulatedDisk()
        view = open_view(disk)
        compactor(view).fold(reader(log), 300, BEGUN_MS)
        largest = max(view.manifest.files, key=lambda file: file.records)
        assert len(list(view.index_of(largest))) > 3
        whole = bytearray(disk.content(f"{FOLDER}/{largest.index_name}"))
        whole[-1] ^= damaged
        disk.replace(f"{FOLDER}/{largest.index_name}", bytes(whole))
        compactor(view).fold(reader(log), 600, BEGUN_MS)
        assert contents(view) == fold(log, 600)
        with view.snapshot() as snapshot:
            for number, file in enumerate(view.manifest.files):
                assert file.live_bytes == sum(len(whole) for _, whole in snapshot.walk(number, number + 1))


def test_memory_to_write_and_to_read_a_file_of_a_view_does_not_grow_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for bound, size in (("index.CHUNK_BYTES", 1 << 17), ("compactor.WRITE_BYTES", 1 << 14), ("view.READ_BYTES", 1 << 14)):
        monkeypatch.setattr(f"waltz_log.compaction.{bound}", size)
    peaks = []
    for count in (1500, 6000):
        view = CompactedView.open(FileSystemDisk(tmp_path / str(count)), TopicName("a", "b"), 0, start=0, now_ms=1, properties={})
        loading = ViewLoad(view, start=0, bound=count, segment_bytes=1 << 30, now_ms=1)
        tracemalloc.start()
        loading.put(WalRecord(number, 5, 0, b"key %d" % number, b"") for number in range(count))
        loading.finish()
        (file,) = view.manifest.files
        for chunks in (view.index_of(file), view.keys_of(file)):
            assert sum(len(chunk) for chunk in chunks) == count
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0], peaks


def test_no_flipped_bit_of_the_records_or_the_metadata_is_served() -> None:
    log = drawn_log(Random(8), 60, 20)
    disk = SimulatedDisk()
    view = open_view(disk)
    compactor(view).fold(reader(log), 60, BEGUN_MS)
    right = fold(log, 60)
    random = Random(9)
    for name in ["metadata", *[file.name for file in view.manifest.files]]:
        content = disk.content(f"{FOLDER}/{name}")
        for _ in range(300):
            damaged = bytearray(content)
            bit = random.randrange(8 * len(content))
            damaged[bit // 8] ^= 1 << bit % 8
            disk.replace(f"{FOLDER}/{name}", bytes(damaged))
            with pytest.raises(CorruptData):
                contents(open_view(disk))
        disk.replace(f"{FOLDER}/{name}", content)
    assert contents(open_view(disk)) == right


def test_of_a_file_exactly_what_its_metadata_says_is_served() -> None:
    log = drawn_log(Random(14), 60, 20)
    disk = SimulatedDisk()
    view = open_view(disk)
    compactor(view).fold(reader(log), 60, BEGUN_MS)
    name = f"{FOLDER}/{view.manifest.files[-1].name}"
    content = disk.content(name)
    disk.replace(name, content + content)
    assert contents(open_view(disk)) == fold(log, 60)
    disk.replace(name, content[:-1])
    with pytest.raises(CorruptData):
        contents(open_view(disk))


def test_a_file_of_the_view_that_is_missing_is_said_by_name() -> None:
    log = drawn_log(Random(10), 60, 20)
    disk = SimulatedDisk()
    view = open_view(disk)
    compactor(view).fold(reader(log), 60, BEGUN_MS)
    name = view.manifest.files[0].name
    disk.remove(f"{FOLDER}/{name}")
    with pytest.raises(CorruptData, match=name):
        open_view(disk)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_disk_that_fails_at_any_operation_leaves_a_view_that_opens_and_goes_on(code: int) -> None:
    log = drawn_log(Random(11), 160, 60)
    quiet = SimulatedDisk()
    view = open_view(quiet)
    compactor(view).fold(reader(log), 80, BEGUN_MS)
    before = len(quiet.operations)
    compactor(open_view(quiet.fork())).fold(reader(log), 160, BEGUN_MS)
    failing = quiet.fork()
    compactor(open_view(failing)).fold(reader(log), 160, BEGUN_MS)
    operations = len(failing.operations)
    assert before
    assert operations > 20
    for at in range(operations):
        disk, seen = quiet.fork(), 0

        def fail(operation: Operation, at: int = at) -> None:
            nonlocal seen
            seen += 1
            if seen == at + 1:
                raise OSError(code, "planted", operation.path)

        disk.before = fail
        with pytest.raises(StorageFailed, match="planted"):
            compactor(open_view(disk)).fold(reader(log), 160, BEGUN_MS)
        disk.before = lambda operation: None
        again = open_view(disk)
        assert contents(again) == fold(log, again.bound)
        compactor(again).fold(reader(log), 160, BEGUN_MS)
        assert contents(again) == fold(log, 160)


def test_a_view_that_failed_writes_nothing_more_until_it_is_opened_again() -> None:
    log = drawn_log(Random(12), 400, 60)
    disk = SimulatedDisk()
    view = open_view(disk)

    def fail(operation: Operation) -> None:
        if operation.kind == "sync":
            raise OSError(errno.EIO, "planted", operation.path)

    disk.before = fail
    with pytest.raises(StorageFailed):
        compactor(view).fold(reader(log), 400, BEGUN_MS)
    disk.before = lambda operation: None
    with pytest.raises(StorageFailed, match="failed before"):
        compactor(view).fold(reader(log), 400, BEGUN_MS)


def test_on_the_real_file_system_too(tmp_path: Path) -> None:
    log = drawn_log(Random(13), 1500, 200)
    disk = FileSystemDisk(tmp_path)
    for bound in (700, 1500):
        view = open_view(disk)
        Compactor(view, SMALL).fold(reader(log), bound, BEGUN_MS)
        assert contents(open_view(disk)) == fold(log, bound)
