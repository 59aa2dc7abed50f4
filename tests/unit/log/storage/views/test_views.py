"""Compacted views of a storage node: what `waltz storage verify` says of them, what a restart finds, what removing leaves, and how they are read."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from verification.crashes.compaction_kills import OF, block_at, fold
from verification.crashes.storage_model import KEY, FixedClock, append, silent_logs
from waltz_log.cli.storage.storage_tools import verify_all
from waltz_log.compaction import CompactedView, CompactionSettings, Compactor
from waltz_log.compaction.view_load import ViewLoad
from waltz_log.core.formats.wal_records import WalRecord, wal_checksum
from waltz_log.core.topics.topic_names import TopicName
from waltz_log.errors import CorruptData, InvalidRequest, OutOfRange, ProtocolViolation, StorageFailed, Unavailable
from waltz_log.filesystem import FileSystemDisk
from waltz_log.storage import StorageNode, StorageSettings
from waltz_log.storage.base.pacing import Pace
from waltz_log.storage.base.space import DiskSpace
from waltz_log.storage.integrity import view_scrub
from waltz_log.storage.integrity.verify_views import verify_views
from waltz_log.storage.integrity.view_scrub import ViewScrub
from waltz_log.storage.views.view_log import read_log
from waltz_log.storage.views.views import TopicPartition, Wanted
from waltz_log.testing.disk import Operation, SimulatedDisk
from waltz_log.testing.offload import run_in_place
from waltz_log.testing.virtual_time import run_in_virtual_time
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.view_pages import decode_view_page, encode_view_page

FOLDER = "market/prices/0"
FOR_EVER = 1 << 50


def settings_of(directory: Path) -> StorageSettings:
    small: dict[str, Any] = {
        "segment_bytes": 16 * 1024,
        "compaction_key_cache_bytes": 4096,
        "compaction_bytes_per_s": 1 << 40,
        "scrub_bytes_per_s": 0,
    }
    return StorageSettings(name="storage-0", directory=directory, coordinator="test", disk_warn_free_bytes=0, disk_refuse_free_bytes=0, **small)


def node_on(directory: Path) -> StorageNode:
    return StorageNode(settings_of(directory), FileSystemDisk(directory), FixedClock(), run_in_place)


async def compacted(directory: Path, count: int = 400) -> StorageNode:
    """With a view of so many transactions."""
    StorageNode.create(FileSystemDisk(directory), FixedClock(), KEY, 2)
    node = node_on(directory)
    await node.open(KEY)
    store = await node.partition(0)
    await store.open_session(1)
    for first in range(0, count, 50):
        await append(store, 1, [block_at(first, 50)])
    await store.set_low_water_mark(1, store.last_id)
    await fold_on(node, count)
    return node


async def fold_on(node: StorageNode, bound: int, of: TopicPartition = OF) -> None:
    await node.views.compact((await node.partition(0)).log, of, 0, Wanted(bound, bound, 0, FOR_EVER))
    await node.views.settled(0)


async def contents(node: StorageNode, first: int = 0, max_bytes: int = 500) -> list[tuple[int, bytes, bytes]]:
    found = []
    async for page in node.views.read(0, first, max_bytes, 0):
        assert page.records or page.done
        found += [(record.transaction_id, record.key, record.value) for record in page.records]
        assert page.next_transaction_id > (found[-1][0] if found else -1)
    return found


async def test_a_view_is_read_in_pages_from_any_id_as_it_was_when_reading_began(tmp_path: Path) -> None:
    node = await compacted(tmp_path)
    wanted = fold(400)
    for max_bytes in (1, 700, 1 << 20):
        assert await contents(node, 0, max_bytes) == wanted
    assert await contents(node, 300) == [record for record in wanted if record[0] >= 300]
    assert await contents(node, 1000) == []
    pages = node.views.read(0, 0, 1, 0)
    begun = [await anext(pages)]
    await append(await node.partition(0), 1, [block_at(400, 150)])
    await fold_on(node, 550)
    begun += [page async for page in pages]
    assert [record.transaction_id for page in begun for record in page.records] == [each[0] for each in wanted]
    assert {page.bound for page in begun} == {400}
    assert await contents(node) == fold(550)
    with pytest.raises(OutOfRange) as caught:
        await anext(node.views.read(0, 0, 1, 551))
    assert (caught.value.first, caught.value.last) == (0, 549)
    with pytest.raises(OutOfRange):
        await anext(node.views.read(1, 0, 1, 0))
    await node.close()


async def test_verify_knows_views_and_names_what_is_wrong_in_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = await compacted(tmp_path)
    await node.close()
    (report,) = verify_views(FileSystemDisk(tmp_path))
    assert (report.topic, report.log_partition, report.bound, report.findings) == ("market/prices", 0, 400, ())
    assert report.records >= len(fold(400)), "what is dead is verified as well"
    capsys.readouterr()
    assert verify_all(tmp_path, None, 0, "json") == 0
    assert json.loads(capsys.readouterr().out)["views"][0]["findings"] == 0
    for name in sorted((tmp_path / FOLDER).iterdir()):
        whole = name.read_bytes()
        for at in (10, len(whole) // 2, len(whole) - 1):
            name.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            (report,) = verify_views(FileSystemDisk(tmp_path))
            assert [found.file for found in report.findings] == [f"{FOLDER}/{name.name}"]
        assert verify_all(tmp_path, None, 0, "table") == 1
        assert f"{FOLDER}/{name.name}" in capsys.readouterr().out
        name.write_bytes(whole)
        name.rename(tmp_path / "aside")
        reported = [(found.file, found.reason) for report in verify_views(FileSystemDisk(tmp_path)) for found in report.findings]
        assert reported == ([] if name.name == "metadata" else [(f"{FOLDER}/{name.name}", "is not there")])
        (tmp_path / "aside").rename(name)
    (tmp_path / FOLDER / "left.wal.9").write_bytes(b"what a crash left")
    assert next(verify_views(FileSystemDisk(tmp_path))).findings == ()


def test_corruption_beyond_the_first_megabyte_of_a_view_is_reported_with_its_place(tmp_path: Path) -> None:
    records = [WalRecord(number, 5, 0, b"%d" % number, bytes(1000)) for number in range(2500)]
    disk = FileSystemDisk(tmp_path)
    view = CompactedView.open(disk, OF.topic, 0, start=0, now_ms=1, properties={}, log_partition=0)
    loading = ViewLoad(view, start=0, bound=2500, segment_bytes=1 << 30, now_ms=1)
    loading.put(records)
    loading.finish()
    path = tmp_path / FOLDER / "0.wal"
    whole = bytearray(path.read_bytes())
    whole[2_000_000] ^= 1
    path.write_bytes(whole)
    with view.snapshot() as snapshot, pytest.raises(CorruptData) as caught:
        list(snapshot.records())
    assert 2_000_000 - 1100 < caught.value.offset <= 2_000_000
    ((found,),) = [report.findings for report in verify_views(disk)]
    assert (found.file, found.offset) == (f"{FOLDER}/0.wal", caught.value.offset)


async def test_a_restarted_node_knows_its_views_and_one_that_does_not_open_holds_up_nothing_else(tmp_path: Path) -> None:
    node = await compacted(tmp_path)
    await node.close()
    node = node_on(tmp_path)
    await node.open(KEY)
    assert node.views.bound(0) == 400
    assert await contents(node) == fold(400)
    await node.close()
    min((tmp_path / FOLDER).glob("*.wal")).unlink()
    node = node_on(tmp_path)
    await node.open(KEY)
    assert not node.views.describe(0).exists
    assert "is not there" in node.views.describe(0).error
    assert node.views.bound(0) == 0, "nothing may be trimmed on the strength of it"
    assert (await node.partition(0)).last_id == 399
    await node.close()


async def test_a_view_of_another_topic_is_not_touched_and_removing_one_leaves_no_folder(tmp_path: Path) -> None:
    node = await compacted(tmp_path)
    other = TopicPartition(TopicName("market", "other"), 0, {})
    with pytest.raises(InvalidRequest, match="is of market/prices"):
        await fold_on(node, 400, other)
    (tmp_path / "market" / "neighbour" / "0").mkdir(parents=True)
    await node.views.drop(0)
    assert not (tmp_path / "market" / "prices").exists()
    assert (tmp_path / "market" / "neighbour").exists()
    await node.views.drop(0)
    await fold_on(node, 400)
    assert await contents(node) == fold(400)
    await node.close()


async def test_a_view_is_made_only_where_the_log_reaches_back_and_trimming_waits_for_it(tmp_path: Path) -> None:
    node = await compacted(tmp_path)
    store = await node.partition(0)
    await store.trim(300, 1)
    await node.views.drop(0)
    await fold_on(node, 400)
    assert not node.views.describe(0).exists
    assert store.log.first_id > 0
    await node.close()


async def test_a_view_beyond_what_is_committed_says_so_and_is_replaced_by_another(tmp_path: Path) -> None:
    node, source = await compacted(tmp_path / "one"), await compacted(tmp_path / "other", 200)
    await fold_on(node, 300)
    assert "beyond what is committed, 300" in node.views.describe(0).error
    assert node.views.bound(0) == 400

    async def sent() -> AsyncGenerator[Sequence[WalRecord], None]:
        async for page in source.views.read(0, 0, 2000, 0):
            yield page.records

    await node.views.load(0, OF, 0, 200, sent())
    await fold_on(node, 300)
    assert (node.views.bound(0), node.views.describe(0).error) == (300, "")
    assert await contents(node) == fold(300)
    for each in (node, source):
        await each.close()


async def test_a_view_that_is_loaded_takes_effect_whole_or_not_at_all(tmp_path: Path) -> None:
    node = await compacted(tmp_path / "one")
    target = await compacted(tmp_path / "other", 100)
    pages = [page async for page in node.views.read(0, 0, 2000, 0)]

    async def sent(fails_after: int | None) -> AsyncGenerator[Sequence[WalRecord], None]:
        for number, page in enumerate(pages):
            if number == fails_after:
                raise StorageFailed(partition=0, reason="the other end is gone")
            yield page.records

    with pytest.raises(StorageFailed):
        await target.views.load(0, OF, 0, 400, sent(2))
    await target.close()
    target = node_on(tmp_path / "other")
    await target.open(KEY)
    assert await contents(target) == fold(100)
    await target.views.load(0, OF, 0, 400, sent(None))
    assert await contents(target) == fold(400)
    with pytest.raises(ProtocolViolation, match="out of order"):
        await target.views.load(0, OF, 0, 300, sent(None))
    assert await contents(target) == fold(400)
    for each in (node, target):
        await each.close()


def corrupt_file(path: Path) -> None:
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2] ^= 4
    path.write_bytes(whole)


async def test_a_scrub_rebuilds_indexes_and_metadata_and_reports_corrupt_records_until_another_view_is_copied(tmp_path: Path) -> None:
    node, source = await compacted(tmp_path / "one"), await compacted(tmp_path / "other")
    folder, read = tmp_path / "one" / FOLDER, 0

    async def paced(size: int) -> None:
        nonlocal read
        read += size

    scrub = ViewScrub(node.views, run_in_place, paced)
    await scrub.scrub_all()
    assert read == sum(file.stat().st_size for file in folder.iterdir() if file.name != "metadata")
    assert (scrub.found, scrub.repaired, scrub.damages()) == (0, 0, {})
    for part in ("*.index", "metadata"):
        corrupt_file(min(folder.glob(part)))
        await scrub.scrub_all()
        assert next(verify_views(FileSystemDisk(tmp_path / "one"))).findings == ()
        assert node.views.describe(0).error == ""
    min(folder.glob("*.index")).unlink()
    await scrub.scrub_all()
    assert next(verify_views(FileSystemDisk(tmp_path / "one"))).findings == ()
    assert (scrub.found, scrub.repaired) == (3, 3)
    corrupt_file(max(folder.glob("*.wal"), key=lambda file: file.stat().st_size))
    await scrub.scrub_all()
    await fold_on(node, 400)
    assert "checksum does not match" in node.views.describe(0).error, "a fold that did not come upon it does not make it well"
    assert list(scrub.damages()) == [FOLDER]
    await scrub.scrub_all()
    assert (scrub.found, scrub.repaired) == (4, 3)

    async def sent() -> AsyncGenerator[Sequence[WalRecord], None]:
        async for page in source.views.read(0, 0, 2000, 0):
            yield page.records

    await node.views.load(0, OF, 0, 400, sent())
    assert (node.views.describe(0).error, scrub.damages(), scrub.repaired) == ("", {}, 4)
    min(folder.glob("*.wal")).unlink()
    await scrub.scrub_all()
    assert "is not there" in node.views.describe(0).error
    for each in (node, source):
        await each.close()


async def test_a_scrub_waits_for_a_view_that_is_being_changed_and_repairs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = await compacted(tmp_path)
    monkeypatch.setattr(view_scrub, "REMAKE_PAUSE_S", 0.01)

    async def paced(size: int) -> None:
        pass

    scrub = ViewScrub(node.views, run_in_place, paced)
    corrupt_file(min((tmp_path / FOLDER).glob("*.index")))
    entry = node.views._entries[0]
    entry.busy = True
    asyncio.get_running_loop().call_later(0.03, partial(setattr, entry, "busy", False))
    await scrub.scrub_all()
    assert (scrub.found, scrub.repaired) == (1, 1)
    assert next(verify_views(FileSystemDisk(tmp_path))).findings == ()
    await node.close()


async def test_a_view_that_is_being_folded_can_be_replaced(tmp_path: Path) -> None:
    node = await compacted(tmp_path)
    await append(await node.partition(0), 1, [block_at(400, 50)])
    log = (await node.partition(0)).log

    async def sent() -> AsyncGenerator[Sequence[WalRecord], None]:
        yield []

    await node.views.compact(log, OF, 0, Wanted(450, 450, 0, FOR_EVER))
    with pytest.raises(Unavailable):
        await node.views.load(0, OF, 0, 400, sent())
    await node.views.settled(0)
    await node.views.compact(log, OF, 0, Wanted(450, 450, 0, FOR_EVER))
    await node.views.load(0, OF, 0, 400, sent())
    assert (node.views.bound(0), await contents(node)) == (400, [])
    await node.close()


def test_the_rate_limit_of_compaction_counts_the_bytes_that_merges_rewrite_as_well_as_those_of_the_log() -> None:
    rate = 10_000
    blocks = [block_at(first, 50) for first in range(0, 400, 50)]
    log_bytes = sum(len(block.records) for block in blocks)

    async def folded_in() -> tuple[float, int]:
        """How long the fold of the log ran, in virtual seconds, and what the merges of the same fold rewrite where nothing paces them."""
        disk = SimulatedDisk()
        StorageNode.create(disk, FixedClock(), KEY, 1)
        settings = settings_of(Path("simulated")).model_copy(update={"compaction_bytes_per_s": rate})
        node = StorageNode(settings, disk, FixedClock(), run_in_place)
        await node.open(KEY)
        store = await node.partition(0)
        await store.open_session(1)
        await append(store, 1, blocks)
        beside = CompactedView.open(disk.fork(), OF.topic, OF.partition, start=0, now_ms=0, properties={}, log_partition=0)
        rules = CompactionSettings(key_cache_bytes=settings.compaction_key_cache_bytes, segment_bytes=settings.segment_bytes)
        rewritten = Compactor(beside, rules).fold(read_log(store.log), 400, 0).copied_bytes
        began = asyncio.get_running_loop().time()
        await fold_on(node, 400)
        assert await contents(node) == fold(400)
        took = asyncio.get_running_loop().time() - began
        await node.close()
        return took, rewritten

    took, rewritten = run_in_virtual_time(folded_in())
    assert rewritten > log_bytes / 2, "a fold that merges next to nothing would show nothing"
    assert took == pytest.approx((log_bytes + rewritten) / rate, rel=0.05)


def test_a_pause_makes_up_for_what_was_charged_and_a_quiet_period_earns_no_burst() -> None:
    pace = Pace(100, 10.0)
    assert pace.charge(200, 10.5) == pytest.approx(1.5), "the work took half a second of the two that it is worth"
    assert pace.charge(50, 12.0) == pytest.approx(0.5)
    assert pace.charge(100, 60.0) == 0.0, "slower than allowed"
    assert pace.charge(100, 60.0) == pytest.approx(1.0), "the slow period before is no credit"


async def test_a_full_disk_damages_no_view_and_the_reserved_space_stays_free() -> None:
    disk = SimulatedDisk()
    StorageNode.create(disk, FixedClock(), KEY, 1)
    node = await on_simulated_disk(disk)
    store = await node.partition(0)
    await store.open_session(1)
    await append(store, 1, [block_at(first, 50) for first in range(0, 200, 50)])
    await fold_on(node, 100)

    def full(operation: Operation) -> None:
        if ".wal" in operation.path:
            raise OSError(errno.ENOSPC, "full", operation.path)

    disk.before = full
    with silent_logs():
        await fold_on(node, 200)
    reported = node.views.describe(0)
    assert "full" in reported.error
    assert (reported.exists, node.views.bound(0)) == (True, 100), "what is in the view may go from the log, which makes room"
    assert await contents(node) == fold(100)
    disk.before = lambda operation: None
    node.views._space = DiskSpace(disk, warn_free_bytes=0, refuse_free_bytes=disk.free_bytes())
    before = disk.free_bytes()
    with silent_logs():
        await fold_on(node, 200)
    assert "must stay free" in node.views.describe(0).error
    assert (node.views.bound(0), disk.free_bytes()) == (100, before)
    node.views._space = DiskSpace(disk, warn_free_bytes=0, refuse_free_bytes=0)
    await fold_on(node, 200)
    assert (node.views.describe(0).error, await contents(node)) == ("", fold(200))
    await node.close()


async def on_simulated_disk(disk: SimulatedDisk) -> StorageNode:
    node = StorageNode(settings_of(Path("simulated")), disk, FixedClock(), run_in_place)
    await node.open(KEY)
    return node


async def test_a_crash_at_any_step_of_replacing_a_view_leaves_the_old_or_the_new_one(tmp_path: Path) -> None:
    source = await compacted(tmp_path, 200)
    pages = [page async for page in source.views.read(0, 0, 2000, 0)]
    await source.close()
    seen = set()
    for stop in range(200):
        disk = SimulatedDisk()
        StorageNode.create(disk, FixedClock(), KEY, 1)
        node = await on_simulated_disk(disk)
        store = await node.partition(0)
        await store.open_session(1)
        await append(store, 1, [block_at(first, 50) for first in range(0, 200, 50)])
        await fold_on(node, 40)
        last = len(disk.operations) + stop

        def crash(operation: Operation, disk: SimulatedDisk = disk, last: int = last) -> None:
            if len(disk.operations) > last:
                raise OSError(5, "crash", operation.path)

        async def sent() -> AsyncGenerator[Sequence[WalRecord], None]:
            for page in pages:
                yield page.records

        disk.before = crash
        ended = False
        try:
            await node.views.load(0, OF, 0, 200, sent())
            ended = True
        except StorageFailed:
            pass
        again = await on_simulated_disk(disk.crash(Random(stop)))
        bound = again.views.bound(0)
        assert bound in (40, 200)
        assert await contents(again) == fold(bound)
        assert bound == 200 or not ended
        seen.add(bound)
        if ended:
            break
    assert seen == {40, 200}


async def test_a_crash_at_any_step_of_removing_a_view_leaves_what_is_removed_the_next_time() -> None:
    for stop in range(60):
        disk = SimulatedDisk()
        StorageNode.create(disk, FixedClock(), KEY, 1)
        node = await on_simulated_disk(disk)
        store = await node.partition(0)
        await store.open_session(1)
        await append(store, 1, [block_at(0, 60)])
        await fold_on(node, 60)
        last = len(disk.operations) + stop

        def crash(operation: Operation, disk: SimulatedDisk = disk, last: int = last) -> None:
            if len(disk.operations) > last:
                raise OSError(5, "crash", operation.path)

        disk.before = crash
        ended = True
        try:
            await node.views.drop(0)
        except StorageFailed:
            ended = False
        left = disk.crash(Random(stop))
        again = await on_simulated_disk(left)
        reported = again.views.describe(0)
        assert not ended or not left.exists("market")
        if reported.exists:
            assert await contents(again) == fold(60)
        if reported.exists or reported.error:
            await again.views.drop(0)
        assert not left.exists("market")
        if ended:
            return
    raise AssertionError("removing takes more steps than were tried")


def test_the_columns_of_a_page_are_copied_once_and_not_for_each_record() -> None:
    records = [WalRecord(number, 1000, 0, b"key", b"value") for number in range(100)]
    page = encode_view_page(records, [wal_checksum(record) for record in records], start=0, bound=100, next_transaction_id=100, done=True)
    read: list[str] = []

    class Counted:
        def __getattr__(self, name: str) -> Any:
            read.append(name)
            return getattr(page, name)

    counted: Any = Counted()
    assert decode_view_page(counted) == records
    assert max(map(read.count, read)) <= 2


def test_a_page_survives_the_wire_and_one_that_does_not_fit_together_is_refused() -> None:
    records = [WalRecord(3, 1000, -7, b"a", b""), WalRecord(9, 2000, 1 << 30, b"key", b"value")]
    checksums = [wal_checksum(record) for record in records]
    page = encode_view_page(records, checksums, start=1, bound=12, next_transaction_id=10, done=True)
    again = pb.ReadViewResponse.FromString(page.SerializeToString())
    assert decode_view_page(again) == records
    assert decode_view_page(pb.ReadViewResponse()) == []
    for field in ("times_ms", "headers", "key_lengths", "value_lengths", "keys", "values", "checksums"):
        broken = pb.ReadViewResponse.FromString(page.SerializeToString())
        setattr(broken, field, getattr(page, field) + b"\0\0\0\0")
        with pytest.raises(ProtocolViolation):
            decode_view_page(broken)
