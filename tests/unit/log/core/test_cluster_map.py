"""The map of a cluster as it travels to clients: versions, differences, removals, pieces, epochs. Compared with plain dicts."""

from __future__ import annotations

import random
from itertools import permutations
from uuid import UUID

import pytest

from waltz_log.core.cluster_map import (
    EVERYTHING,
    KNOWN_MAX,
    REMOVED_MAX,
    ClusterMap,
    MapPart,
    Register,
    assignment_items,
    chunks,
    fingerprint,
    is_behind,
    node_source,
    parameters_items,
    replicas_items,
    topic_items,
)
from waltz_log.core.metadata import Assignment, ClusterParameters, HandedOver, Ownership, ReplicaAssignment, StorageNodeEntry
from waltz_log.core.node_address import NodeAddress, announced_name
from waltz_log.core.topics.catalogue import Catalogue
from waltz_log.core.topics.topic_names import TopicName
from waltz_log.errors import ProtocolViolation

KEY = UUID("00112233-4455-6677-8899-aabbccddeeff")


def whole(source: str, version: int, items: dict[str, bytes]) -> MapPart:
    return MapPart(source, EVERYTHING, version, items)


def history(rng: random.Random, changes: int) -> list[tuple[int, dict[str, bytes]]]:
    """States of one source with rising versions, where items come, change and go."""
    states: list[tuple[int, dict[str, bytes]]] = []
    items: dict[str, bytes] = {}
    version = 0
    for _ in range(changes):
        version += rng.randint(1, 5)
        items = dict(items)
        for _ in range(rng.randint(0, 3)):
            name = f"p/{rng.randint(0, 5)}"
            if rng.random() < 0.4:
                items.pop(name, None)
            else:
                items[name] = b"[1,%d]" % rng.randint(0, 9)
        states.append((version, items))
    return states


@pytest.mark.parametrize("seed", range(200))
def test_a_difference_from_any_known_state_gives_the_newest(seed: int) -> None:
    rng = random.Random(seed)
    states = history(rng, rng.randint(1, 12))
    register = Register("assignment")
    for version, items in states:
        register.update(version, items)
    for version, items in states:
        map = ClusterMap()
        map.apply(0, [whole("assignment", version, items)])
        part = register.part_since(version)
        if part is not None:
            map.apply(0, [part])
        assert (map.versions["assignment"], map._items["assignment"]) == states[-1]


@pytest.mark.parametrize("seed", range(200))
def test_a_map_that_hears_servers_of_different_ages_never_goes_back(seed: int) -> None:
    rng = random.Random(seed)
    states = history(rng, 10)
    servers = []
    for _ in range(3):
        register = Register("assignment")
        servers.append((register, iter(states[rng.randint(0, 4) :])))
    map = ClusterMap()
    model: tuple[int, dict[str, bytes]] = (-1, {})
    for _ in range(60):
        register, left = rng.choice(servers)
        if rng.random() < 0.5:
            register.update(*next(left, states[-1]))
        part = register.part_since(rng.choice([None, map.versions.get("assignment")]))
        if part is not None and register.version >= 0:
            map.apply(0, [part])
            model = max(model, (register.version, register.items), key=lambda state: state[0])
        assert (map.versions.get("assignment", -1), map._items.get("assignment", {})) == model


@pytest.mark.parametrize("seed", range(50))
def test_a_register_knows_each_state_that_it_had_by_its_number_and_fingerprint(seed: int) -> None:
    states = history(random.Random(seed), 10)
    register = Register("assignment")
    for at, (version, items) in enumerate(states):
        register.update(version, items)
        if seed % 5 == at:
            register.reset(items)
            states[:at] = [(-2, {})] * at
    for version, items in states:
        shuffled = dict(sorted(items.items(), reverse=True))
        assert register.knew(version, fingerprint(shuffled)) is (version >= 0)
        assert not register.knew(version, fingerprint({**items, "p/9": b"other"}))
        assert not register.knew(version + 100, fingerprint(items))


def test_two_values_that_changed_places_have_another_fingerprint() -> None:
    assert fingerprint({"p/0": b"1", "p/1": b"2"}) != fingerprint({"p/0": b"2", "p/1": b"1"})
    assert fingerprint({"a": b"bc"}) != fingerprint({"ab": b"c"})


def test_a_register_forgets_the_oldest_fingerprints() -> None:
    register = Register("assignment")
    for version in range(KNOWN_MAX + 1):
        register.update(version, {"p/0": b"%d" % version})
    assert not register.knew(0, fingerprint({"p/0": b"0"}))
    assert register.knew(1, fingerprint({"p/0": b"1"}))


def test_an_older_state_changes_nothing() -> None:
    map = ClusterMap()
    map.apply(0, [whole("assignment", 7, {"p/0": b"[1,1]"})])
    assert map.apply(0, [whole("assignment", 6, {})]) == set()
    assert map.apply(0, [MapPart("assignment", 3, 6, {}, ("p/0",))]) == set()
    assert map.assignment.partitions == {0: Ownership(1, 1)}


def test_each_source_is_compared_by_its_own_version() -> None:
    map = ClusterMap()
    map.apply(0, [whole("assignment", 9, {"p/0": b"[1,1]"}), whole("replicas", 3, {})])
    assert map.apply(0, [whole("replicas", 5, {"p/0": b'["a"]'}), whole("assignment", 8, {})]) == {"replicas"}
    assert map.assignment.partitions
    assert map.replicas.replicas == {0: ("a",)}


def test_a_gap_is_refused_and_changes_nothing() -> None:
    map = ClusterMap()
    map.apply(0, [whole("assignment", 5, {"p/0": b"[1,1]"})])
    with pytest.raises(ProtocolViolation, match="changes of the map's source assignment are missing: known=5 base=6"):
        map.apply(0, [whole("replicas", 9, {"p/0": b'["a"]'}), MapPart("assignment", 6, 8, {})])
    with pytest.raises(ProtocolViolation, match="missing: known=-1 base=0"):
        map.apply(0, [MapPart("topics", 0, 8, {})])
    assert dict(map.versions) == {"assignment": 5}


def test_a_difference_that_overlaps_what_is_known_is_applied() -> None:
    map = ClusterMap()
    map.apply(0, [whole("assignment", 5, {"p/0": b"[1,1]", "p/1": b"[1,1]"})])
    map.apply(0, [MapPart("assignment", 2, 8, {"p/0": b"[2,2]"}, ("p/1",))])
    assert map.assignment.partitions == {0: Ownership(2, 2)}


def test_removals_are_explicit_and_a_whole_state_replaces() -> None:
    map = ClusterMap()
    map.apply(0, [whole("assignment", 1, {"p/0": b"[1,1]", "s/1": b'["a:1",[],""]'})])
    map.apply(0, [MapPart("assignment", 1, 2, {})])
    assert map.assignment.partitions
    map.apply(0, [whole("assignment", 2, {})])
    assert not map.assignment.partitions


def test_what_is_removed_and_made_again_is_there() -> None:
    register = Register("topics")
    register.update(1, {"a": b"1"})
    register.update(2, {})
    register.update(3, {"a": b"2"})
    assert register.part_since(1) == MapPart("topics", 1, 3, {"a": b"2"})
    assert register.part_since(2) == MapPart("topics", 2, 3, {"a": b"2"})


def test_a_version_from_the_future_or_before_the_register_began_gets_everything() -> None:
    register = Register("topics")
    register.update(5, {"a": b"1"})
    register.update(6, {"a": b"1", "b": b"2"})
    for version in (None, -1, 4, 7, 2**62):
        assert register.part_since(version) == whole("topics", 6, {"a": b"1", "b": b"2"})
    assert register.part_since(6) is None
    assert not register.update(6, {})
    assert not register.update(3, {})
    assert register.items == {"a": b"1", "b": b"2"}


def test_forgotten_removals_give_everything() -> None:
    register = Register("topics")
    register.update(1, {f"t{n}": b"" for n in range(REMOVED_MAX + 1)})
    register.update(2, {"new": b""})
    assert register.part_since(1) == whole("topics", 2, {"new": b""})
    register.update(3, {"new": b"1"})
    assert register.part_since(2) == MapPart("topics", 2, 3, {"new": b"1"})


def test_a_reset_gives_everything_at_the_same_version() -> None:
    register = Register("topics")
    register.update(4, {"a": b"1"})
    register.update(5, {"a": b"1", "b": b"1"})
    register.reset({"b": b"1"})
    assert register.part_since(4) == whole("topics", 5, {"b": b"1"})
    map = ClusterMap()
    map.apply(0, [whole("assignment", 5, {"p/0": b"[1,1]", "p/1": b"[1,1]"})])
    map.apply(0, [whole("assignment", 5, {"p/1": b"[1,1]"})])
    assert map.assignment.partitions == {1: Ownership(1, 1)}


def test_a_higher_epoch_replaces_everything_and_a_lower_one_nothing() -> None:
    map = ClusterMap()
    map.apply(1, [whole("assignment", 900, {"p/0": b"[9,9]"}), whole("replicas", 901, {})])
    assert map.apply(2, [whole("assignment", 3, {"p/0": b"[1,1]"})]) == {"assignment"}
    assert dict(map.versions) == {"assignment": 3}
    assert map.apply(1, [whole("assignment", 950, {})]) == set()
    with pytest.raises(ProtocolViolation):
        map.apply(3, [MapPart("assignment", 3, 4, {})])
    assert (map.epoch, map.assignment.partitions) == (2, {0: Ownership(1, 1)})


def test_pieces_are_applied_together_in_any_size() -> None:
    parts = [
        MapPart("assignment", 3, 9, {f"p/{n}": b"[1,%d]" % n for n in range(40)}, tuple(f"p/{n}" for n in range(50, 70))),
        whole("weather", 4, {"a": b"x" * 100, "b": b"y"}),
        whole("rights", 5, {}),
    ]
    for size in (1, 20, 64, 200, 10_000):
        pieces = chunks(parts, size)
        start = ClusterMap()
        start.apply(0, [whole("assignment", 3, {f"p/{n}": b"[0,0]" for n in range(70)})])
        start.apply(0, [piece for message in pieces for piece in message])
        assert dict(start.versions) == {"assignment": 9, "weather": 4, "rights": 5}
        assert start._items["assignment"] == {**{f"p/{n}": b"[0,0]" for n in range(40, 50)}, **parts[0].items}
        assert start._items["weather"] == parts[1].items
    assert chunks([], 10) == [[]]


def test_pieces_of_different_versions_are_refused() -> None:
    with pytest.raises(ProtocolViolation, match="pieces of the map's source topics differ"):
        ClusterMap().apply(0, [whole("topics", 4, {}), whole("topics", 5, {})])


def test_a_server_is_behind_if_any_source_is_older() -> None:
    own = {"assignment": 5, "replicas": 9, "node/a": 3}
    assert not is_behind(own, 1, {"assignment": 5, "replicas": 2}, 1)
    assert is_behind(own, 1, {"assignment": 6, "replicas": 2}, 1)
    assert is_behind(own, 1, {"topics": 1}, 1)
    assert is_behind(own, 1, {"node/a": 4}, 1)
    assert not is_behind(own, 1, {"node/gone": 4}, 1), "the follower forgets a node that holds nothing"
    assert is_behind(own, 1, {}, 2)
    assert not is_behind(own, 2, {"assignment": 999}, 1)


def test_holds_compares_source_by_source() -> None:
    map = ClusterMap()
    map.apply(1, [whole("topics", 4, {}), whole("rights", 9, {})])
    assert map.holds(1, {"topics": 4, "rights": 9})
    assert map.holds(0, {"topics": 99})
    assert not map.holds(1, {"topics": 5})
    assert not map.holds(2, {})


def test_values_survive_the_way() -> None:
    parameters = ClusterParameters("shop", KEY, 3, 7)
    assignment = Assignment(
        {0: Ownership(1, 4), 1: Ownership(None, 2)},
        {1: NodeAddress("a:1", "spiffe://waltz/node/a"), 2: "b:1"},
        {2: ("b:2", "b:3")},
        {0: HandedOver((2,), 1)},
        {0: "a:1"},
        ("b:1",),
    )
    replicas = ReplicaAssignment({0: ("x", "y"), 1: ("y", "z")})
    catalogue, topic = Catalogue().with_new(TopicName.parse("shop/orders"), type="regular", partitions=2, pool=range(3), now_ms=5)
    entry = StorageNodeEntry("c:1", 4, ("c:2", "c:3"))
    map = ClusterMap()
    map.apply(
        7,
        [
            whole("cluster", 1, parameters_items(parameters)),
            whole("assignment", 1, assignment_items(assignment)),
            whole("replicas", 1, replicas_items(replicas)),
            whole("topics", 1, topic_items(catalogue)),
            whole(node_source("x"), 1, {"entry": entry.to_bytes()}),
        ],
    )
    assert map.parameters == parameters
    assert map.assignment == Assignment(assignment.partitions, assignment.addresses, assignment.workers)
    assert announced_name(map.assignment.addresses[1]) == "spiffe://waltz/node/a"
    assert map.replicas == replicas
    assert map.node("x") == entry
    assert map.node("y") is None
    assert map.catalogue.topics == {topic.name: topic}


def test_storage_nodes_without_partitions_are_forgotten() -> None:
    map = ClusterMap()
    entry = {"entry": StorageNodeEntry("c:1", 4).to_bytes()}
    map.apply(0, [whole("replicas", 1, {"p/0": b'["x"]'}), whole("node/x", 2, entry)])
    map.apply(0, [MapPart("replicas", 1, 3, {"p/0": b'["y"]'})])
    assert dict(map.versions) == {"replicas": 3}
    assert map.node("x") is None


@pytest.mark.parametrize(
    ("source", "items"),
    [
        ("cluster", {}),
        ("cluster", {"parameters": b"{"}),
        ("assignment", {"q/1": b"[1,1]"}),
        ("assignment", {"p/x": b"[1,1]"}),
        ("assignment", {"p/1": b"[1]"}),
        ("replicas", {"p/1": b"3"}),
        ("topics", {"a": b"[]"}),
        ("topics", {"a": b'["no name", "regular", [0], false, {}, {}, 1]'}),
        ("node/a", {"entry": b"[]"}),
    ],
)
def test_values_that_cannot_be_read_change_nothing(source: str, items: dict[str, bytes]) -> None:
    map = ClusterMap()
    map.apply(0, [whole("rights", 1, {})])
    with pytest.raises(ProtocolViolation, match=f"the map's source {source} cannot be read"):
        map.apply(0, [whole("rights", 2, {}), whole(source, 1, items)])
    assert dict(map.versions) == {"rights": 1}
    with pytest.raises(ProtocolViolation, match="no parameters"):
        _ = map.parameters


def test_a_source_of_a_later_version_is_ignored() -> None:
    map = ClusterMap()
    assert map.apply(0, [whole("weather", 1, {"a": b"?"})]) == {"weather"}


def test_parts_in_any_order_give_one_map() -> None:
    parts = [whole("cluster", 1, parameters_items(ClusterParameters("a", KEY, 1))), whole("replicas", 4, {"p/0": b'["x"]'}), whole("rights", 2, {})]
    found = set()
    for order in permutations(parts):
        map = ClusterMap()
        map.apply(0, order)
        found.add((tuple(sorted(map.versions.items())), map.parameters.name))
    assert len(found) == 1
