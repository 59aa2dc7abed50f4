"""Partitions go to servers that reach a majority of their replicas, and stay there: over random cuts, preferences and loads."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from waltz_log.core.assignment import assign
from waltz_log.core.hand_over import (
    CALM_PAUSES,
    Reach,
    Stranded,
    hand_over,
    majority_of,
    merge_reach,
    parse_reach,
    parse_stranded,
    pause_s,
    reach_to_bytes,
    readmit,
    stranded_to_bytes,
)
from waltz_log.core.metadata import Assignment, HandedOver, Ownership, ServerEntry

NODES = ("a", "b", "c", "d", "e")
REPLICAS = ("a", "b", "c")


def _servers(*ids: int, preferred: dict[int, tuple[int, ...]] | None = None) -> list[ServerEntry]:
    return [ServerEntry(server_id, f"host:{server_id}", (preferred or {}).get(server_id, ())) for server_id in ids]


def _stranded(assignment: Assignment, replicas: dict[int, tuple[str, ...]], links: dict[int, set[str]]) -> dict[int, Stranded]:
    """What owners publish under these links."""
    found: dict[int, Stranded] = {}
    for partition, owned in assignment.partitions.items():
        if owned.server_id is not None and not majority_of(links[owned.server_id], replicas[partition]):
            found[partition] = Stranded(owned.server_id, owned.generation, replicas[partition])
    return found


def _reach(links: dict[int, set[str]], replicas: dict[int, tuple[str, ...]]) -> dict[int, dict[int, list[str]]]:
    return {server: {p: sorted(reached & set(names)) for p, names in replicas.items()} for server, reached in links.items()}


@st.composite
def _clusters(draw: st.DrawFn) -> tuple[list[ServerEntry], dict[int, tuple[str, ...]], dict[int, set[str]]]:
    ids = sorted(draw(st.sets(st.integers(1, 5), min_size=1)))
    partitions = draw(st.integers(1, 7))
    replicas = {p: tuple(sorted(draw(st.sets(st.sampled_from(NODES), min_size=1)))) for p in range(partitions)}
    preferred = {server: tuple(draw(st.lists(st.integers(0, partitions - 1), max_size=4, unique=True))) for server in ids}
    links = {server: draw(st.sets(st.sampled_from(NODES))) for server in ids}
    return _servers(*ids, preferred=preferred), replicas, links


@given(_clusters())
def test_partitions_end_at_servers_that_reach_a_majority_after_few_moves_and_stay(
    cluster: tuple[list[ServerEntry], dict[int, tuple[str, ...]], dict[int, set[str]]],
) -> None:
    servers, replicas, links = cluster
    reach = _reach(links, replicas)
    current = before = assign(Assignment(), servers, len(replicas))
    for _ in range(2 * len(servers) * len(replicas) + 2):
        current = assign(current, servers, len(replicas))
        current = hand_over(current, _stranded(current, replicas, links), reach)
        current = Assignment.from_bytes(current.to_bytes())
    for _ in range(3):
        settled = hand_over(assign(current, servers, len(replicas)), _stranded(current, replicas, links), reach)
        assert settled == current
    moves = 0
    for partition, owned in current.partitions.items():
        able = {server for server, reached in links.items() if majority_of(reached, replicas[partition])}
        assert not able or owned.server_id in able
        if not able and not current.handed_over:
            assert owned == before.partitions[partition]
        moves += owned.generation - before.partitions[partition].generation
    # Each server is found wanting for a partition once at most; balancing moves others after it.
    assert moves <= len(servers) * len(replicas) * 2


@given(_clusters())
def test_nothing_moves_if_no_server_reaches_a_majority(cluster: tuple[list[ServerEntry], dict[int, tuple[str, ...]], dict[int, set[str]]]) -> None:
    servers, replicas, links = cluster
    for reached in links.values():
        while any(majority_of(reached, names) for names in replicas.values()):
            reached.discard(max(reached))
    before = assign(Assignment(), servers, len(replicas))
    for _ in range(3):
        after = hand_over(assign(before, servers, len(replicas)), _stranded(before, replicas, links), _reach(links, replicas))
        assert after == before


def test_a_partition_is_handed_over_on_the_word_of_both_sides_only() -> None:
    before = assign(Assignment(), _servers(1, 2), 1)
    report = {0: Stranded(1, 1, REPLICAS)}
    good, bad = {0: ["a", "b"]}, {0: ["c"]}
    assert hand_over(before, report, {2: good}) == before, "the owner has not pinged yet"
    assert hand_over(before, report, {1: good, 2: good}) == before, "the owner reaches a majority after all"
    assert hand_over(before, report, {1: bad, 2: bad}) == before, "nobody does better"
    assert hand_over(before, report, {1: bad, 2: {0: ["a", "x", "y"]}}) == before, "other nodes are not its replicas"
    assert hand_over(before, report, {1: bad, 2: good}, resting=(0,)) == before, "it was handed over just now"
    assert hand_over(before, {0: Stranded(1, 0, REPLICAS)}, {1: bad, 2: good}) == before, "of an older generation"
    assert hand_over(before, report, {1: bad, 7: good}) == before, "of a server that is gone"
    after = hand_over(before, report, {1: bad, 2: good})
    assert after.partitions[0] == Ownership(2, 2)
    assert after.handed_over[0] == HandedOver((1,), 1)


def test_preference_and_balance_never_return_a_partition_to_a_server_that_it_avoids() -> None:
    servers = _servers(1, 2, preferred={1: (0, 1)})
    before = assign(Assignment(), servers, 4)
    assert before.partitions[0].server_id == 1
    moved = hand_over(before, {0: Stranded(1, 1, REPLICAS)}, {1: {0: []}, 2: {0: REPLICAS}})
    assert moved.partitions[0].server_id == 2
    assert assign(moved, servers, 4) == moved
    # Nor does it give the server other partitions to make up for it.
    assert {p for p, owned in moved.partitions.items() if owned.server_id == 1} < {
        p for p, owned in before.partitions.items() if owned.server_id == 1
    }
    # A partition must have an owner all the same.
    alone = assign(moved, servers[:1], 4)
    assert {owned.server_id for owned in alone.partitions.values()} == {1}


def test_a_server_is_readmitted_after_a_pause_that_doubles_and_the_pauses_begin_again_when_all_is_calm() -> None:
    servers = _servers(1, 2, preferred={1: (0,)})
    moved = hand_over(assign(Assignment(), servers, 1), {0: Stranded(1, 1, REPLICAS)}, {1: {0: []}, 2: {0: REPLICAS}})
    assert readmit(moved, {(0, 1): 9.9}, {}, 10.0) == moved
    back = readmit(moved, {(0, 1): 10.0}, {}, 10.0)
    assert back.handed_over[0] == HandedOver((), 1)
    again = assign(back, servers, 1)
    assert again.partitions[0] == Ownership(1, 3)
    twice = hand_over(again, {0: Stranded(1, 3, REPLICAS)}, {1: {0: []}, 2: {0: REPLICAS}})
    assert twice.handed_over[0] == HandedOver((1,), 2)
    assert readmit(twice, {(0, 1): 19.9}, {}, 10.0) == twice
    calm = readmit(readmit(twice, {(0, 1): 20.0}, {}, 10.0), {}, {0: CALM_PAUSES * 20.0}, 10.0)
    assert calm.handed_over == {}
    assert [pause_s(moves, 10.0) for moves in (0, 1, 2, 3, 7, 50)] == [0.0, 10.0, 20.0, 40.0, 640.0, 640.0]


def test_published_values_are_read_back() -> None:
    stranded = {3: Stranded(1, 2, REPLICAS), 0: Stranded(1, 9, ())}
    assert parse_stranded(stranded_to_bytes(stranded)) == stranded
    assert parse_reach(reach_to_bytes(4, {1: ("a",), 0: ()})) == (4, {1: ("a",), 0: ()})
    assert merge_reach([(1, {0: ("a",)}), (2, {0: ()}), (1, {1: ("b",)})]) == {1: {0: ("a",), 1: ("b",)}, 2: {0: ()}}


def test_a_server_that_is_gone_is_handed_nothing_even_if_its_pings_are_still_published() -> None:
    before = assign(Assignment(), _servers(1, 2, 3), 3)
    assert [before.partitions[p].server_id for p in range(3)] == [1, 2, 3]
    before = replace(before, addresses={server: address for server, address in before.addresses.items() if server != 1})
    report = {0: Stranded(1, 1, REPLICAS), 1: Stranded(2, 1, REPLICAS)}
    reach: Reach = {1: {0: [], 1: REPLICAS}, 2: {0: [], 1: []}, 3: {0: REPLICAS, 1: REPLICAS}}
    after = hand_over(before, report, reach)
    assert [after.partitions[p].server_id for p in range(3)] == [3, 3, 3]
