"""The end of the newest block of client ids on a storage node: it only rises, outlives the machine, and damage is found."""

from __future__ import annotations

from uuid import UUID

import pytest

from waltz_log.errors import StorageFailed
from waltz_log.storage import StorageNode
from waltz_log.storage.control.client_ids import CLIENT_IDS_FILE, keep_client_ids, read_client_ids
from waltz_log.storage.control.storage_directory import read_directory
from waltz_log.storage.integrity.verify_directory import verify_small_files
from waltz_log.storage.offline.describe import describe
from waltz_log.testing.cluster import LoopClock
from waltz_log.testing.disk import SimulatedDisk


class _Clock(LoopClock):
    def now_ms(self) -> int:
        return 1


def _node() -> SimulatedDisk:
    disk = SimulatedDisk()
    StorageNode.create(disk, _Clock(), UUID(int=1), 1)
    return disk


def test_the_end_only_rises_and_is_on_the_disk_before_the_answer() -> None:
    disk = _node()
    assert [keep_client_ids(disk, last) for last in (0, 1000, 500, 2000)] == [0, 0, 1000, 1000]
    crashed = disk.crash()
    assert read_client_ids(crashed) == 2000
    assert describe(crashed).client_ids == 2000


def test_each_flipped_bit_is_noticed_by_the_node_and_by_verify() -> None:
    disk = _node()
    keep_client_ids(disk, 1000)
    sound = disk.content(CLIENT_IDS_FILE)
    assert verify_small_files(disk, read_directory(disk))[0] == []
    for at in range(8 * len(sound)):
        damaged = bytearray(sound)
        damaged[at // 8] ^= 1 << at % 8
        disk.replace(CLIENT_IDS_FILE, bytes(damaged))
        with pytest.raises(StorageFailed):
            keep_client_ids(disk, 5000)
        (finding,) = verify_small_files(disk, read_directory(disk))[0]
        assert finding.file == CLIENT_IDS_FILE
    for content in (b"", sound[:-1], sound + b"0"):
        disk.replace(CLIENT_IDS_FILE, content)
        with pytest.raises(StorageFailed):
            read_client_ids(disk)
