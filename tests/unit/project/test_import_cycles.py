"""Who imports whom, without cycles: no two modules import each other, and no two rooms (folders beside each other) depend on each other."""

from __future__ import annotations

from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from itertools import permutations

import grimp
import pytest

PACKAGES = ("waltz_log", "pyspark_waltz", "waltz_delta", "verification")

TYPES_ONLY = {
    ("verification.simulation.growth", "verification.simulation.world"),
    ("verification.simulation.nodes", "verification.simulation.world"),
    ("waltz_log.client.client", "waltz_log.client.topics.topic"),
    ("waltz_log.client.sync", "waltz_log.client.sync_topic"),
    ("waltz_log.outbox.calls", "waltz_log.outbox.lane"),
}
"""Pairs of which one names a class of the other in annotations alone. The list may only become shorter."""


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph(*PACKAGES, cache_dir=None)


def mutual(graph: grimp.ImportGraph) -> set[tuple[str, str]]:
    return {
        (a, b)
        for a in graph.modules
        for b in graph.find_modules_directly_imported_by(a)
        if a < b and graph.direct_import_exists(importer=b, imported=a)
    }


def rooms(graph: grimp.ImportGraph) -> Iterator[list[str]]:
    """The folders of each folder."""
    for package in sorted(graph.modules):
        found = [child for child in graph.find_children(package) if graph.find_children(child)]
        if len(found) > 1:
            yield sorted(found)


def depends(graph: grimp.ImportGraph, importer: str, imported: str) -> bool:
    return graph.direct_import_exists(importer=importer, imported=imported, as_packages=True)


def cycle(graph: grimp.ImportGraph, beside: list[str]) -> list[str]:
    """Rooms that depend on each other in a circle, [] if none do."""
    needs = {room: {other for a, other in permutations(beside, 2) if a == room and depends(graph, room, other)} for room in beside}
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as found:
        return list(found.args[1])
    return []


def test_no_two_modules_import_each_other(graph: grimp.ImportGraph) -> None:
    assert mutual(graph) == TYPES_ONLY


def test_no_two_modules_import_each_other_when_they_run() -> None:
    assert mutual(grimp.build_graph(*PACKAGES, exclude_type_checking_imports=True, cache_dir=None)) == set()


def test_no_rooms_depend_on_each_other(graph: grimp.ImportGraph) -> None:
    for name in graph.find_modules_directly_imported_by("waltz_log.client"):  # the package's own module exports names of all its rooms
        graph.remove_import(importer="waltz_log.client", imported=name)
    checked = list(rooms(graph))
    assert [found for found in (cycle(graph, beside) for beside in checked) if found] == []
    assert sum(map(len, checked)) > 40


def test_a_cycle_is_found() -> None:
    graph = grimp.ImportGraph()
    for module in ("a", "a.b", "a.b.one", "a.c", "a.c.two", "a.d", "a.d.three"):
        graph.add_module(module)
    for importer, imported in (("a.b.one", "a.c.two"), ("a.c.two", "a.d.three"), ("a.d.three", "a.b.one")):
        graph.add_import(importer=importer, imported=imported)
    (beside,) = rooms(graph)
    assert set(cycle(graph, beside)) == {"a.b", "a.c", "a.d"}
    graph.remove_import(importer="a.d.three", imported="a.b.one")
    assert cycle(graph, beside) == []


def test_the_wheel_knows_nothing_of_verification(graph: grimp.ImportGraph) -> None:
    importing = {
        each.partition(".")[0] for module in graph.find_descendants("verification") for each in graph.find_modules_that_directly_import(module)
    }
    assert importing == {"verification"}
