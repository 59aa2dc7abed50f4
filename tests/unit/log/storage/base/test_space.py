"""What is reported of a disk that fills up."""

from __future__ import annotations

import pytest
import structlog

from waltz_log.errors import StorageFull
from waltz_log.storage.base.space import DiskSpace
from waltz_log.testing.disk import SimulatedDisk


def test_no_message_names_a_negative_number_of_bytes() -> None:
    disk = SimulatedDisk()
    disk.total = 1000
    space = DiskSpace(disk, warn_free_bytes=900, refuse_free_bytes=800)
    with structlog.testing.capture_logs() as reported:
        for size in (150, 5000):
            with pytest.raises(StorageFull) as refused:
                disk.total -= 100
                space.require(size, partition=0)
            assert refused.value.free_bytes == disk.free_bytes()
        disk.total = 0
        assert space.refusing
        assert space.poll() == "refusing"
        with pytest.raises(StorageFull) as refused:
            space.require(1, partition=0)
        assert refused.value.free_bytes == 0
        disk.total = 10_000
        with pytest.raises(StorageFull):
            space.require(50_000, partition=0)
        assert not space.refusing
        assert space.poll() == "ample"
        with pytest.raises(StorageFull):
            space.require(50_000, partition=0)
    assert len(reported) >= 3
    assert all(each["free_bytes"] >= 0 for each in reported)
    assert [each["free_bytes"] for each in reported if each["state"] == "refusing"] == [900, 10_000]
