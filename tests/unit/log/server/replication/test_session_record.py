"""What an owner does where the metadata of its partition cannot be read."""

from __future__ import annotations

import pytest

from waltz_log.core.metadata import PartitionMetadata, partition_path
from waltz_log.errors import Fenced, Unavailable
from waltz_log.server.replication.session_record import SessionRecord
from waltz_log.testing.memory_coordinator import MemoryEnsemble

GARBAGE = (b"", b"null", b"[" * 9999, b'{"generation":"1","session":2,"replicas":{}}')


@pytest.mark.parametrize("garbage", GARBAGE)
async def test_no_session_begins_and_the_error_names_the_value(garbage: bytes) -> None:
    coordinator = MemoryEnsemble().session()
    await coordinator.create(partition_path(0), garbage)
    with pytest.raises(Unavailable, match=partition_path(0)):
        await SessionRecord(0, 1, coordinator).begin()


@pytest.mark.parametrize("garbage", GARBAGE)
async def test_a_session_whose_metadata_was_overwritten_is_over(garbage: bytes) -> None:
    coordinator = MemoryEnsemble().session()
    record = SessionRecord(0, 1, coordinator)
    await record.begin()
    await coordinator.set(partition_path(0), garbage, -1)
    with pytest.raises(Fenced):
        await record.write(PartitionMetadata(1, 1, {}, newer_session=5), 1)
