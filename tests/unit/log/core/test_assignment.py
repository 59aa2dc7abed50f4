from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from waltz_log.core.assignment import assign
from waltz_log.core.metadata import Assignment, Ownership, ServerEntry


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


def test_without_servers_nobody_owns_and_the_generation_rises_once() -> None:
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
