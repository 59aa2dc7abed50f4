"""Which directory may be a storage node: the one that ran last, recognized by the number of its starts."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from waltz_log.core.metadata import REPLICAS, STORAGE_NODES, ReplicaAssignment, StorageNodeEntry
from waltz_log.core.ports import Coordinator
from waltz_log.errors import Fenced, Unavailable
from waltz_log.processes.storage import register
from waltz_log.testing.memory_coordinator import MemoryEnsemble


async def _entry(coordinator: Coordinator) -> StorageNodeEntry:
    node = await coordinator.get(f"{STORAGE_NODES}/a")
    assert node is not None
    return StorageNodeEntry.from_bytes(node.data)


async def test_a_node_reports_its_address_at_each_start() -> None:
    coordinator = MemoryEnsemble().session()
    for start, port in ((1, 5001), (2, 5002), (5, 5001)):
        await register(coordinator, "a", StorageNodeEntry(f"h:{port}", start))
        assert await _entry(coordinator) == StorageNodeEntry(f"h:{port}", start)


@pytest.mark.parametrize("start", [3, 4])
async def test_a_directory_that_is_not_the_one_that_ran_last_is_refused(start: int) -> None:
    coordinator = MemoryEnsemble().session()
    await register(coordinator, "a", StorageNodeEntry("h:1", 4))
    with pytest.raises(Fenced, match=f"mine={start} newer=4"):
        await register(coordinator, "a", StorageNodeEntry("h:2", start))
    assert await _entry(coordinator) == StorageNodeEntry("h:1", 4)


async def test_an_intended_replacement_is_accepted() -> None:
    coordinator = MemoryEnsemble().session()
    await register(coordinator, "a", StorageNodeEntry("h:1", 4))
    await register(coordinator, "a", StorageNodeEntry("h:2", 1), replace=True)
    assert await _entry(coordinator) == StorageNodeEntry("h:2", 1)


async def test_reporting_the_same_twice_is_no_conflict() -> None:
    coordinator = MemoryEnsemble().session()
    for _ in range(2):
        await register(coordinator, "a", StorageNodeEntry("h:1", 1))


async def test_of_two_new_directories_of_one_name_one_is_accepted() -> None:
    ensemble = MemoryEnsemble()
    reported = await asyncio.gather(*(register(ensemble.session(), "a", StorageNodeEntry(f"h:{port}", 1)) for port in (1, 2)), return_exceptions=True)
    assert [type(each) for each in reported].count(Fenced) == 1


@pytest.mark.parametrize(("name", "warned"), [("storage-1", 0), ("storag-1", 1)])
async def test_a_node_that_no_partition_is_assigned_to_warns_at_its_start(name: str, warned: int) -> None:
    coordinator = MemoryEnsemble().session()
    await coordinator.create(REPLICAS, ReplicaAssignment({0: ("storage-0", "storage-1")}).to_bytes())
    with capture_logs() as logs:
        await register(coordinator, name, StorageNodeEntry("h:1", 1))
        await register(coordinator, name, StorageNodeEntry("h:1", 1))  # the answer to the first was lost
        await register(coordinator, name, StorageNodeEntry("h:1", 2))
    assert len(logs) == 3 * warned
    for line in logs:
        assert (line["log_level"], line["event"]) == ("warning", "no replica is assigned to this storage node")
        assert (line["name"], line["assigned"]) == ("storag-1", "storage-0,storage-1")
        assert "waltz cluster replica" in line["advice"]
        assert "--name" in line["advice"]


@pytest.mark.parametrize("garbage", [b"", b"null", b"[" * 9999])
async def test_an_entry_that_cannot_be_read_is_not_replaced_by_a_directory_that_may_be_a_copy(garbage: bytes) -> None:
    coordinator = MemoryEnsemble().session()
    await coordinator.create(f"{STORAGE_NODES}/a", garbage)
    with pytest.raises(Unavailable, match="waltz cluster repair"):
        await register(coordinator, "a", StorageNodeEntry("h:1", 1))


@pytest.mark.parametrize("garbage", [b"", b"null", b"[" * 9999])
async def test_an_assignment_that_cannot_be_read_does_not_keep_a_node_from_registering(garbage: bytes) -> None:
    coordinator = MemoryEnsemble().session()
    await coordinator.create(REPLICAS, garbage)
    await register(coordinator, "a", StorageNodeEntry("h:1", 1))
    assert await _entry(coordinator) == StorageNodeEntry("h:1", 1)
