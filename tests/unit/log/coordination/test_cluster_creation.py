"""Making a cluster: who wins, what is refused, what a creation that died half-way leaves."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from uuid import UUID, uuid4

import pytest

from waltz_log.coordination.cluster import create_cluster, grow_replicas, place_replicas
from waltz_log.core.metadata import CLUSTER, REPLICAS, ClusterParameters, ReplicaAssignment
from waltz_log.core.ports import Coordinator
from waltz_log.errors import InvalidRequest
from waltz_log.testing.memory_coordinator import MemoryEnsemble

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
    reported = await asyncio.gather(*(_create(ensemble.session(), partitions=n) for n in (3, 5)), return_exceptions=True)
    won = [each for each in reported if isinstance(each, ClusterParameters)]
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
    ("partitions", "storages", "replication", "reported"),
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
def test_a_replica_that_cannot_be_placed_is_refused(partitions: int, storages: tuple[str, ...], replication: int, reported: str) -> None:
    with pytest.raises(InvalidRequest, match=reported):
        place_replicas(partitions, storages, replication)


def spread(replicas: dict[int, tuple[str, ...]], names: Sequence[str]) -> int:
    """By how many partitions the fullest node holds more than the emptiest."""
    held = Counter(name for nodes in replicas.values() for name in nodes)
    return max(held[name] for name in names) - min(held[name] for name in names)


def test_no_node_holds_more_than_one_partition_more_than_another() -> None:
    """All small clusters. Six partitions on four nodes, two replicas each, once left the nodes with 3, 4, 3 and 2."""
    for nodes in range(1, 9):
        names = [f"n{i}" for i in range(nodes)]
        for replication in range(1, nodes + 1):
            for partitions in range(1, 4 * nodes + 1):
                placed = place_replicas(partitions, names, replication).replicas
                assert set(placed) == set(range(partitions))
                assert all(len(set(held)) == len(held) == replication for held in placed.values())
                assert spread(placed, names) <= 1, f"{partitions=} {nodes=} {replication=}"


def test_growing_keeps_the_nodes_even_at_every_size() -> None:
    for nodes in range(1, 6):
        names = [f"n{i}" for i in range(nodes)]
        for replication in range(1, nodes + 1):
            for partitions in range(1, 2 * nodes + 1):
                found = place_replicas(partitions, names, replication)
                for grown in (partitions + 1, partitions + nodes):
                    after = grow_replicas(found, grown, storages=names, replication=replication).replicas
                    assert all(len(set(held)) == replication for held in after.values())
                    assert spread(after, names) <= 1, f"{partitions=} {grown=} {nodes=} {replication=}"


def test_a_new_node_receives_partitions_until_it_holds_as_many_as_the_others() -> None:
    """A node can gain at most one replica with each partition, so it is even with the others as soon as that is possible, and stays so."""
    for nodes in range(2, 6):
        names = [f"n{i}" for i in range(nodes)]
        for replication in range(1, nodes + 1):
            before = place_replicas(6, names[:-1], min(replication, nodes - 1))
            for added in range(1, 16):
                after = grow_replicas(before, 6 + added, storages=names, replication=replication).replicas
                assert all(len(set(after[p])) == replication for p in range(6, 6 + added))
                assert spread(after, names) <= 1 or _least_spread(before.replicas, names, replication, added) == spread(after, names)


def _least_spread(before: dict[int, tuple[str, ...]], names: Sequence[str], replication: int, added: int) -> int:
    """The least that any placement of the added partitions can reach: by trying every share, each of at most `added` for a node."""
    held = Counter(name for nodes in before.values() for name in nodes)
    start = [held[name] for name in names]
    best = max(start) + added
    for top in range(max(start), max(start) + added + 1):
        # Below `top`, the emptiest nodes are raised as far as they can be; every replica has to go somewhere.
        for bottom in range(top + 1):
            least = [min(max(0, bottom - each), added) for each in start]
            most = [min(top - each, added) for each in start]
            reaches = min(each + gain for each, gain in zip(start, least, strict=True)) >= bottom
            if reaches and sum(least) <= added * replication <= sum(most):
                best = min(best, top - bottom)
    return best
