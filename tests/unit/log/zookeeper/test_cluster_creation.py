"""Making a cluster: who wins, what is refused, what a creation that died half-way leaves."""

from __future__ import annotations

import asyncio
from collections import Counter
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz_log.core.metadata import CLUSTER, REPLICAS, ClusterParameters, ReplicaAssignment
from waltz_log.core.ports import Coordinator
from waltz_log.errors import InvalidRequest
from waltz_log.testing.coordinator import MemoryEnsemble
from waltz_log.zookeeper.cluster import create_cluster, place_replicas

NODES = ("storage-0", "storage-1", "storage-2")


async def _create(coordinator: Coordinator, key: UUID | None = None, name: str = "dev", partitions: int = 4) -> ClusterParameters:
    return await create_cluster(coordinator, name=name, key=key or uuid4(), partitions=partitions, storages=NODES, replication=3)


async def test_a_cluster_is_what_was_asked_for() -> None:
    coordinator = MemoryEnsemble().session()
    made = await _create(coordinator)
    cluster, replicas = await coordinator.get(CLUSTER), await coordinator.get(REPLICAS)
    assert cluster is not None
    assert replicas is not None
    assert ClusterParameters.from_bytes(cluster.data) == made
    assert (made.name, made.partitions) == ("dev", 4)
    assert {p: set(names) for p, names in ReplicaAssignment.from_bytes(replicas.data).replicas.items()} == {p: set(NODES) for p in range(4)}


async def test_a_second_cluster_at_the_same_place_is_refused() -> None:
    ensemble = MemoryEnsemble()
    first = await _create(ensemble.session())
    with pytest.raises(InvalidRequest, match=f"already: name=dev key={first.key} partitions=4"):
        await _create(ensemble.session())


async def test_of_two_creators_one_wins() -> None:
    ensemble = MemoryEnsemble()
    told = await asyncio.gather(*(_create(ensemble.session(), partitions=n) for n in (3, 5)), return_exceptions=True)
    won = [each for each in told if isinstance(each, ClusterParameters)]
    assert len(won) == 1
    node = await ensemble.session().get(REPLICAS)
    assert node is not None
    assert len(ReplicaAssignment.from_bytes(node.data).replicas) == won[0].partitions


async def test_a_creation_that_died_half_way_is_finished_by_repeating_it() -> None:
    coordinator = MemoryEnsemble().session()
    first = ClusterParameters("dev", uuid4(), 4)
    await coordinator.create(CLUSTER, first.to_bytes())
    with pytest.raises(InvalidRequest, match="already"):
        await _create(coordinator, partitions=5)
    assert await _create(coordinator) == first, "the key that was given out stays"
    assert await coordinator.get(REPLICAS) is not None


@pytest.mark.parametrize(
    ("partitions", "storages", "replication", "told"),
    [
        (0, NODES, 3, "partitions"),
        (5000, NODES, 3, "partitions"),
        (4, NODES, 4, "4 replicas do not fit on 3"),
        (4, NODES, 0, "0 replicas"),
        (4, ("a", "a"), 1, "twice"),
        (4, ("a/b",), 1, "not a name"),
        (4, ("",), 1, "not a name"),
    ],
)
def test_what_cannot_be_placed_is_refused(partitions: int, storages: tuple[str, ...], replication: int, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        place_replicas(partitions, storages, replication)


@given(st.integers(1, 40), st.integers(1, 7), st.data())
def test_replicas_are_distinct_and_spread_evenly(partitions: int, nodes: int, data: st.DataObject) -> None:
    replication = data.draw(st.integers(1, nodes))
    placed = place_replicas(partitions, [f"n{i}" for i in range(nodes)], replication).replicas
    assert set(placed) == set(range(partitions))
    assert all(len(set(names)) == replication for names in placed.values())
    held = Counter(name for names in placed.values() for name in names)
    counts = [held[f"n{i}"] for i in range(nodes)]
    # Neighbours share partitions, so the spread is even up to the replicas of the last, incomplete round.
    assert max(counts) - min(counts) <= replication
