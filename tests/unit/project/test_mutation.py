"""The changes of one token that `make mutation` makes."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

import pytest

from tools import mutation
from tools.mutation import AREAS, Change, changes, survives

ROOT = Path(__file__).resolve().parents[3]

SOURCE = b'''"""A docstring with 1 < 2."""

LIMIT: int = 7


def keep(found: list[int], mark: int = -1) -> bool:
    """Not a place: 3 < 4."""
    assert mark >= -1, "an invariant"
    if not found or mark < 0:
        raise ValueError(f"{mark + 1}")
    return "\xc3\xa4" in "" or max(found) <= LIMIT
'''


def _changed() -> dict[str, str]:
    found = {}
    for change in changes("keep.py", SOURCE):
        after = change.apply(SOURCE)
        ast.parse(after)
        found[after.decode().splitlines()[change.line - 1].strip()] = SOURCE.decode().splitlines()[change.line - 1].strip()
    return found


def test_each_decision_is_changed_by_itself_and_nothing_else() -> None:
    assert set(_changed()) == {
        "LIMIT: int = (8)",
        "def keep(found: list[int], mark: int = -(2)) -> bool:",
        "if (not found and mark < 0):",
        "if (found) or mark < 0:",
        "if not found or (mark <= 0):",
        "if not found or mark < (1):",
        "return ('\xe4' in '' and max(found) <= LIMIT)",
        "return ('\xe4' not in '') or max(found) <= LIMIT",
        'return "\xe4" in "" or (max(found) < LIMIT)',
        'return "\xe4" in "" or (min)(found) <= LIMIT',
    }


def test_every_file_of_the_areas_still_parses_after_each_change() -> None:
    for area in AREAS:
        paths = sorted((ROOT / area).rglob("*.py"))
        assert paths, area
        for path in paths:
            source = path.read_bytes()
            for change in changes(str(path), source)[::7]:
                ast.parse(change.apply(source))


def test_the_tests_of_an_area_exist_and_explanations_name_changes_that_there_are() -> None:
    assert [test for tests in AREAS.values() for test in tests if not (ROOT / test).is_dir()] == []
    known = mutation.explained()
    files = {line.partition(": ")[0] for line in known}
    possible = {each.describe((ROOT / name).read_bytes()) for name in files for each in changes(name, (ROOT / name).read_bytes())}
    assert known - possible == set(), "the code has changed: remove these lines"


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("text", "noticed"), [("(first > held + 1)", True), ("(held < first)", False)])
def test_a_change_that_no_test_notices_survives_and_the_copy_is_as_before(text: str, noticed: bool, tmp_path: Path) -> None:
    path = "platform/sink/waltz_delta/marks/marks.py"
    source = (ROOT / path).read_bytes()
    start = source.index(b"first > held")
    copy = tmp_path / "platform"
    shutil.copytree(ROOT / "platform", copy, ignore=shutil.ignore_patterns("__pycache__"))
    change = Change(path, source[:start].count(b"\n") + 1, start, start + len(b"first > held"), text)
    assert survives(change, copy, ["tests/unit/sink/marks/test_sink_marks.py"]) != noticed
    assert (copy / "sink/waltz_delta/marks/marks.py").read_bytes() == source
