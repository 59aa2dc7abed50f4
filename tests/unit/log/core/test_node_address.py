"""The name that a node announces stays with its address: in the coordinator, in the map of clients, and on the way to another process."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import pytest

from waltz_log.core.cluster_map import ClusterMap, MapPart, assignment_items
from waltz_log.core.metadata import Assignment, Ownership, ServerEntry, StorageNodeEntry
from waltz_log.core.node_address import NodeAddress, announced_name, same_node

NAME = "spiffe://waltz/node/a"
AT = NodeAddress("10.0.0.5:5101", NAME)
OWN = (NodeAddress("10.0.0.5:5201", NAME), NodeAddress("10.0.0.5:5202", NAME))


@pytest.mark.parametrize("copied", [pickle.loads(pickle.dumps(AT)), copy.deepcopy(AT), copy.copy(AT)])
def test_an_address_is_a_text_that_keeps_its_name(copied: NodeAddress) -> None:
    assert copied == "10.0.0.5:5101"
    assert announced_name(copied) == NAME
    assert {"10.0.0.5:5101": 1}[copied] == 1
    assert json.dumps([copied]) == '["10.0.0.5:5101"]'


def test_an_address_that_a_person_wrote_has_no_name() -> None:
    assert announced_name("10.0.0.5:5101") is None
    assert announced_name(str(AT)) is None


def test_another_name_at_the_same_address_is_another_node() -> None:
    assert same_node(AT, NodeAddress("10.0.0.5:5101", NAME))
    for other in ("10.0.0.5:5101", NodeAddress("10.0.0.5:5101", ""), NodeAddress("10.0.0.5:5101", "another"), NodeAddress("10.0.0.5:5102", NAME)):
        assert not same_node(AT, other)


def _names(value: Any) -> list[str | None]:
    return [announced_name(value.address), *map(announced_name, value.workers)]


def test_the_entries_of_nodes_keep_the_name() -> None:
    for entry in (StorageNodeEntry(AT, 3, OWN), ServerEntry(7, AT, (1,), OWN)):
        assert type(entry).from_bytes(entry.to_bytes()) == entry
        assert _names(type(entry).from_bytes(entry.to_bytes())) == [NAME] * 3
    assert announced_name(StorageNodeEntry(AT, 3, OWN).address_for(1)) == NAME


def test_an_entry_without_a_name_names_nothing_rather_than_anyone() -> None:
    """So TLS refuses the node, instead of accepting any node there."""
    for found in ({"address": "a:1", "start": 1}, {"address": "a:1", "start": 1, "principal": 5}, {"address": "a:1", "start": 1, "principal": None}):
        assert announced_name(StorageNodeEntry.from_bytes(json.dumps(found).encode()).address) == ""
    assert b"principal" not in StorageNodeEntry("a:1", 1).to_bytes()


def _assigned() -> Assignment:
    return Assignment({0: Ownership(7, 1), 1: Ownership(8, 1)}, {7: AT, 8: NodeAddress("b:1", "")}, {7: OWN})


def test_the_assignment_keeps_the_names_of_servers_and_their_workers() -> None:
    found = Assignment.from_bytes(_assigned().to_bytes())
    assert found == _assigned()
    assert [announced_name(found.address_of(partition) or "") for partition in (0, 1)] == [NAME, ""]


def test_the_map_of_clients_keeps_the_names_of_servers_and_their_workers() -> None:
    known = ClusterMap()
    known.apply(0, [MapPart("assignment", -1, 1, assignment_items(_assigned()), ())])
    assert known.assignment == _assigned()
    assert [announced_name(known.assignment.address_of(partition) or "") for partition in (0, 1)] == [NAME, ""]
    assert announced_name(known.assignment.addresses[7]) == NAME
