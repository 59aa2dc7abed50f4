"""Plans of moves: they empty a node, keep the number of replicas and never put two replicas of a partition on one node."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from waltz_log.core.metadata import ReplicaMove, moves_to_bytes, parse_moves
from waltz_log.core.replica_moves import plan_drain, plan_rebalance, replicas_held

NODES = [f"storage-{number}" for number in range(6)]
CLUSTERS = st.dictionaries(st.integers(0, 40), st.permutations(NODES).flatmap(lambda names: st.integers(1, 4).map(lambda n: tuple(names[:n]))))
ABLE = st.sets(st.sampled_from(NODES))


def _moved(replicas: Mapping[int, tuple[str, ...]], moves: list[ReplicaMove]) -> dict[int, tuple[str, ...]]:
    after = dict(replicas)
    for move in moves:
        assert move.remove in after[move.partition]
        assert move.add not in after[move.partition]
        after[move.partition] = tuple(move.add if name == move.remove else name for name in after[move.partition])
    return after


@given(CLUSTERS, ABLE, st.sampled_from(NODES))
def test_a_drain_empties_the_node_except_where_every_other_one_holds_the_partition(
    replicas: dict[int, tuple[str, ...]], able: set[str], node: str
) -> None:
    moves, stuck = plan_drain(replicas, node, able)
    after = _moved(replicas, moves)
    assert {partition for partition, names in after.items() if node in names} == set(stuck)
    assert all(move.add in able - {node} for move in moves)
    for partition in stuck:
        assert able - {node} <= set(replicas[partition])
    assert plan_drain(after, node, able) == ([], stuck), "nothing is left to do"


def test_a_drain_gives_each_replica_to_the_node_that_holds_fewest() -> None:
    replicas = dict.fromkeys(range(6), ("storage-0", "storage-1")) | {6: ("storage-2",), 7: ("storage-2",)}
    after = _moved(replicas, plan_drain(replicas, "storage-0", NODES[:4])[0])
    assert replicas_held(after, NODES[:4]) == {"storage-0": 0, "storage-1": 6, "storage-2": 4, "storage-3": 4}


@given(CLUSTERS, ABLE)
def test_rebalancing_moves_each_partition_once_at_most_and_never_makes_it_worse(replicas: dict[int, tuple[str, ...]], able: set[str]) -> None:
    moves = plan_rebalance(replicas, able)
    assert len({move.partition for move in moves}) == len(moves)
    before, after = replicas_held(replicas, able), replicas_held(_moved(replicas, moves), able)
    assert all({move.add, move.remove} <= able for move in moves)
    assert sum(count**2 for count in after.values()) <= sum(count**2 for count in before.values()) - 2 * len(moves)


def test_a_new_node_gets_its_share() -> None:
    replicas = dict.fromkeys(range(40), ("storage-0", "storage-1", "storage-2"))
    after = _moved(replicas, plan_rebalance(replicas, NODES[:4]))
    assert set(replicas_held(after, NODES[:4]).values()) == {30}


def test_moves_under_way_are_kept_as_they_are() -> None:
    moves = {3: ReplicaMove(3, "storage-0", "storage-1"), 12: ReplicaMove(12, "storage-2", "storage-0")}
    assert parse_moves(moves_to_bytes(moves)) == moves
