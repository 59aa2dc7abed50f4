"""The file `metadata` of a regular topic's partition: what it never replaces or removes, and what a restart and damage leave."""

from __future__ import annotations

from pathlib import Path

import pytest

from verification.crashes.storage_model import FixedClock
from waltz_log.compaction import CompactedView
from waltz_log.compaction.manifest import METADATA
from waltz_log.compaction.view import read_metadata
from waltz_log.core.topics.topic_names import TopicName
from waltz_log.filesystem import FileSystemDisk
from waltz_log.storage.integrity.verify_views import verify_views
from waltz_log.storage.views.topic_metadata import TopicMetadata
from waltz_log.storage.views.views import TopicPartition
from waltz_log.testing.offload import run_in_place

NAME = TopicName("shop", "orders")
PATH = f"shop/orders/0/{METADATA}"
OF = TopicPartition(NAME, 0, {"owner": "shop"})


@pytest.fixture
def disk(tmp_path: Path) -> FileSystemDisk:
    return FileSystemDisk(tmp_path)


def metadata_on(disk: FileSystemDisk) -> TopicMetadata:
    return TopicMetadata(disk, FixedClock(), run_in_place)


def view_on(disk: FileSystemDisk, log_partition: int) -> CompactedView:
    return CompactedView.open(disk, NAME, 0, start=5, now_ms=1, properties={}, log_partition=log_partition)


@pytest.mark.parametrize("log_partition", [3, 7])
async def test_a_view_is_neither_replaced_nor_removed(disk: FileSystemDisk, log_partition: int) -> None:
    """Its topic was deleted, and it is removed when its own partition is cleared."""
    view_on(disk, log_partition)
    topics = metadata_on(disk)
    await topics.record(7, OF)
    await topics.record(7, None)
    assert read_metadata(disk, PATH).log_partition == log_partition
    assert read_metadata(disk, PATH).type == "compaction"


async def test_a_view_replaces_what_a_regular_topic_left(disk: FileSystemDisk) -> None:
    await metadata_on(disk).record(3, OF)
    assert (view_on(disk, 4).bound, read_metadata(disk, PATH).type) == (5, "compaction")


async def test_a_restart_finds_what_was_recorded_and_removes_it_with_its_topic(disk: FileSystemDisk) -> None:
    await metadata_on(disk).record(3, OF)
    topics = metadata_on(disk)
    await topics.open(lambda partition: partition == 3)
    await topics.record(3, None)
    assert not disk.exists("shop")


async def test_damage_is_reported_and_the_next_round_records_the_topic_again(disk: FileSystemDisk, tmp_path: Path) -> None:
    await metadata_on(disk).record(3, OF)
    (tmp_path / PATH).write_bytes(b"damaged")
    assert [len(report.findings) for report in verify_views(disk)] == [1]
    topics = metadata_on(disk)
    await topics.open(lambda partition: True)
    await topics.record(3, OF)
    assert dict(read_metadata(disk, PATH).properties) == {"owner": "shop"}
    assert list(verify_views(disk)) == []
