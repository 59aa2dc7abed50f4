"""No circles: no modules import each other, directly or over others, and neither do rooms (folders beside each other)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import permutations
from pathlib import Path

import grimp
import pytest

PACKAGES = ("waltz_log", "pyspark_waltz", "waltz_delta", "verification")


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph(*PACKAGES, cache_dir=None)


def circle(needs: Mapping[str, Collection[str]]) -> list[str]:
    """Names that need each other in a circle, [] if none do."""
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as found:
        return list(found.args[1])
    return []


def imports(graph: grimp.ImportGraph) -> dict[str, set[str]]:
    return {module: graph.find_modules_directly_imported_by(module) for module in sorted(graph.modules)}


def rooms(graph: grimp.ImportGraph) -> Iterator[list[str]]:
    """The folders of each folder."""
    for package in sorted(graph.modules):
        found = [child for child in graph.find_children(package) if graph.find_children(child)]
        if len(found) > 1:
            yield sorted(found)


def depends(graph: grimp.ImportGraph, importer: str, imported: str) -> bool:
    return graph.direct_import_exists(importer=importer, imported=imported, as_packages=True)


def needs(graph: grimp.ImportGraph, beside: list[str]) -> dict[str, set[str]]:
    """By room: the rooms beside it that it imports from."""
    return {room: {other for a, other in permutations(beside, 2) if a == room and depends(graph, room, other)} for room in beside}


def test_no_modules_import_each_other_in_a_circle(graph: grimp.ImportGraph) -> None:
    """Imports for types alone and those inside of functions count as well."""
    found = imports(graph)
    assert circle(found) == []
    assert sum(map(len, found.values())) > 2000


@pytest.mark.parametrize(
    "line",
    [
        "from planted import second",
        "if TYPE_CHECKING:\n    from planted.second import Second",
        "def first() -> None:\n    import planted.second",
    ],
)
def test_two_modules_that_import_each_other_are_found(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "planted"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "first.py").write_text(line)
    (package / "second.py").write_text("from planted.first import first")
    monkeypatch.syspath_prepend(tmp_path)
    assert set(circle(imports(grimp.build_graph("planted", cache_dir=None)))) == {"planted.first", "planted.second"}
    (package / "second.py").write_text("")
    assert circle(imports(grimp.build_graph("planted", cache_dir=None))) == []


def test_no_rooms_depend_on_each_other(graph: grimp.ImportGraph) -> None:
    for name in graph.find_modules_directly_imported_by("waltz_log.client"):  # the package's own module exports names of all its rooms
        graph.remove_import(importer="waltz_log.client", imported=name)
    checked = list(rooms(graph))
    assert [found for found in (circle(needs(graph, beside)) for beside in checked) if found] == []
    assert sum(map(len, checked)) > 40


def test_a_cycle_is_found() -> None:
    graph = grimp.ImportGraph()
    for module in ("a", "a.b", "a.b.one", "a.c", "a.c.two", "a.d", "a.d.three"):
        graph.add_module(module)
    for importer, imported in (("a.b.one", "a.c.two"), ("a.c.two", "a.d.three"), ("a.d.three", "a.b.one")):
        graph.add_import(importer=importer, imported=imported)
    (beside,) = rooms(graph)
    assert set(circle(needs(graph, beside))) == {"a.b", "a.c", "a.d"}
    graph.remove_import(importer="a.d.three", imported="a.b.one")
    assert circle(needs(graph, beside)) == []


def test_the_wheel_knows_nothing_of_verification(graph: grimp.ImportGraph) -> None:
    importing = {
        each.partition(".")[0] for module in graph.find_descendants("verification") for each in graph.find_modules_that_directly_import(module)
    }
    assert importing == {"verification"}
