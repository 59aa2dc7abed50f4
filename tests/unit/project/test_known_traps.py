"""Each trap in the page about the cluster map names one test, and there is one of this name."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/internals/cluster_map.md"


def named(text: str) -> list[str]:
    """The last cell of each row of the table of traps, without its back quotes."""
    (table,) = re.findall(r"^\| Trap \|.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    return [re.split(r"(?<!\\)\|", row)[-2].strip().strip("`") for row in table.splitlines()]


def test_each_known_trap_names_one_test_that_exists() -> None:
    found = Counter(
        name for path in (ROOT / "tests").rglob("test_*.py") for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
    )
    names = named(PAGE.read_text())
    assert len(names) >= 29
    assert {name: found[name] for name in names if found[name] != 1} == {}


def test_a_row_without_a_test_is_found() -> None:
    assert named("| Trap | Here | Test |\n|---|---|---|\n| it fails | rule 1 |  |\n| it loops | rule 2 | `test_that` |\n") == ["", "test_that"]
