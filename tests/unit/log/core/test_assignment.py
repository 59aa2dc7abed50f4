from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from waltz_log.core.assignment import assign
from waltz_log.core.metadata import Assignment, HandedOver, Ownership, ServerEntry, StorageNodeEntry
from waltz_log.core.topics.sharding import worker_of


def _servers(*ids: int, preferred: dict[int, tuple[int, ...]] | None = None) -> list[ServerEntry]:
    return [ServerEntry(server_id, f"host:{server_id}", (preferred or {}).get(server_id, ())) for server_id in ids]


def test_the_first_assignment_is_balanced_and_starts_at_generation_one() -> None:
    found = assign(Assignment(), _servers(1, 2), 4)
    assert sorted(owned.server_id or 0 for owned in found.partitions.values()) == [1, 1, 2, 2]
    assert {owned.generation for owned in found.partitions.values()} == {1}
    assert found.address_of(0) == "host:1"


def test_partitions_of_a_dead_server_move_and_no_others() -> None:
    before = assign(Assignment(), _servers(1, 2, 3), 6)
    after = assign(before, _servers(1, 3), 6)
    for partition, owned in before.partitions.items():
        if owned.server_id == 2:
            assert after.partitions[partition].server_id in (1, 3)
            assert after.partitions[partition].generation == owned.generation + 1
        else:
            assert after.partitions[partition] == owned


def test_preferred_partitions_go_to_the_first_that_prefers_them() -> None:
    found = assign(Assignment(), _servers(1, 2, preferred={2: (0, 1), 1: (1,)}), 4)
    assert found.partitions[0].server_id == 2
    assert found.partitions[1].server_id == 1


def test_without_servers_there_is_no_owner_and_the_generation_rises_once() -> None:
    before = assign(Assignment(), _servers(1), 2)
    orphaned = assign(before, [], 2)
    assert orphaned.partitions[0] == Ownership(None, 2)
    assert assign(orphaned, [], 2) == orphaned
    assert orphaned.address_of(0) is None


@given(st.lists(st.sets(st.integers(1, 6)), max_size=8), st.integers(1, 12))
def test_assignment_is_balanced_stable_and_generations_rise_with_owners_only(history: list[set[int]], partitions: int) -> None:
    current = Assignment()
    for alive in history:
        after = assign(current, _servers(*sorted(alive)), partitions)
        assert assign(after, _servers(*sorted(alive)), partitions) == after
        for partition in range(partitions):
            was, now = current.partitions.get(partition, Ownership(None, 0)), after.partitions[partition]
            assert now.generation == was.generation + (was.server_id != now.server_id)
        if alive:
            load = [sum(owned.server_id == server for owned in after.partitions.values()) for server in alive]
            assert max(load) - min(load) <= 1
        current = after


def test_the_owner_is_reached_at_its_worker_where_workers_have_addresses_of_their_own() -> None:
    sharded = ServerEntry(2, "host:2", workers=("host:20", "host:21"))
    found = assign(Assignment(), [*_servers(1), sharded], 8)
    again = Assignment.from_bytes(found.to_bytes())
    assert again == found
    assert again.every_address == {"host:1", "host:2", "host:20", "host:21"}
    for partition, owned in found.partitions.items():
        wanted = "host:1" if owned.server_id == 1 else sharded.workers[worker_of(partition, 2)]
        assert again.address_of(partition) == wanted
    assert again.address_of(99) is None


def test_a_node_with_one_process_reports_as_before() -> None:
    assert ServerEntry(1, "h:1", (3,)).to_bytes() == b'{"address":"h:1","preferred":[3],"server_id":1}'
    assert StorageNodeEntry("h:1", 4).to_bytes() == b'{"address":"h:1","start":4}'
    assert Assignment({0: Ownership(1, 2)}, {1: "h:1"}).to_bytes() == b'{"addresses":{"1":"h:1"},"partitions":{"0":[1,2]}}'
    assert StorageNodeEntry.from_bytes(b'{"address":"h:1","start":4}').address_for(7) == "h:1"


def test_a_storage_node_is_reached_at_the_worker_of_a_partition() -> None:
    entry = StorageNodeEntry("h:1", 4, ("h:10", "h:11", "h:12"))
    assert StorageNodeEntry.from_bytes(entry.to_bytes()) == entry
    assert [entry.address_for(partition) for partition in range(6)] == [entry.workers[worker_of(partition, 3)] for partition in range(6)]


def test_partitions_that_the_manager_has_not_heard_of_stay_assigned_with_their_generations() -> None:
    """It read how many there are before they were added, and the assignment afterwards."""
    grown = assign(assign(Assignment(), _servers(1), 3), _servers(1, 2), 3)
    after = assign(grown, _servers(2), 2)
    assert set(after.partitions) == {0, 1, 2}
    assert all(after.partitions[each].generation >= owned.generation for each, owned in grown.partitions.items())
    assert after.partitions[2].server_id == 2


# ---- what an operator decided ----------------------------------------------------------------------------------------------------------------------


def _owners(assignment: Assignment) -> dict[int, int]:
    """0: none."""
    return {partition: owned.server_id or 0 for partition, owned in assignment.partitions.items()}


def test_a_moved_partition_stays_with_its_server_and_returns_to_it() -> None:
    before = assign(Assignment(), _servers(1, 2), 4)
    target = 2 if before.partitions[0].server_id == 1 else 1
    moved = assign(replace(before, moved={0: f"host:{target}"}), _servers(1, 2), 4)
    assert moved.partitions[0] == Ownership(target, before.partitions[0].generation + 1)
    assert sorted(_owners(moved).values()) == [1, 1, 2, 2], "shares stay equal"
    away = assign(moved, _servers(3 - target), 4)
    assert away.partitions[0].server_id == 3 - target
    restarted = ServerEntry(7, f"host:{target}")
    assert assign(away, [*_servers(3 - target), restarted], 4).partitions[0].server_id == 7


def test_a_drained_server_owns_nothing_while_another_one_is_alive() -> None:
    drained = replace(assign(Assignment(), _servers(1, 2), 5), drained=("host:1",))
    alone = assign(drained, _servers(1, 2), 5)
    assert set(_owners(alone).values()) == {2}
    assert alone.addresses == {1: "host:1", 2: "host:2"}, "clients may still ask it"
    assert set(_owners(assign(alone, _servers(1), 5)).values()) == {1}, "better than nobody"
    assert sorted(_owners(assign(replace(alone, drained=()), _servers(1, 2), 5)).values()) == [1, 1, 2, 2, 2]


def test_a_drained_server_keeps_what_all_the_others_avoid() -> None:
    """It is the only one that reaches a majority of the partition's replicas."""
    before = Assignment(
        {0: Ownership(1, 3), 1: Ownership(1, 1)}, {1: "host:1", 2: "host:2"}, handed_over={0: HandedOver((2,), 1)}, drained=("host:1",)
    )
    after = assign(before, _servers(1, 2), 2)
    assert _owners(after) == {0: 1, 1: 2}
    assert assign(after, _servers(1, 2), 2) == after


@given(
    st.lists(st.tuples(st.sets(st.integers(1, 5)), st.dictionaries(st.integers(0, 11), st.integers(1, 6)), st.sets(st.integers(1, 6))), max_size=6),
    st.integers(1, 12),
)
def test_decisions_hold_and_the_assignment_is_stable(history: list[tuple[set[int], dict[int, int], set[int]]], partitions: int) -> None:
    current = Assignment()
    for alive, moved, drained in history:
        current = replace(current, moved={p: f"host:{server}" for p, server in moved.items()}, drained=tuple(f"host:{each}" for each in drained))
        after = assign(current, _servers(*sorted(alive)), partitions)
        assert assign(after, _servers(*sorted(alive)), partitions) == after
        usable = alive - drained or alive
        assert set(_owners(after).values()) <= (usable or {0})
        for partition, server in moved.items():
            if server in usable and partition < partitions:
                assert after.partitions[partition].server_id == server
        for partition in range(partitions):
            was, now = current.partitions.get(partition, Ownership(None, 0)), after.partitions[partition]
            assert now.generation == was.generation + (was.server_id != now.server_id)
        assert Assignment.from_bytes(after.to_bytes()) == after
        current = after
