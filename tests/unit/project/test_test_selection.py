"""Which tests a target of the Makefile runs, in which order, and that CI leaves out the slow ones alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
FIRST = ROOT / "tests" / "first_modules.txt"

CALLERS = {"MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "MAKELEVEL", "ALL", "SKIPS_LISTED"}
"""What make hands on to its commands: `make test ALL=1` runs these tests."""


def expressions(*words: str) -> list[str]:
    """The expression of marks of each pytest that make would run, with the files that it names."""
    own = {name: value for name, value in os.environ.items() if name not in CALLERS}
    done = subprocess.run(["make", "--dry-run", *words], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True, env=own)
    return [match[1] + match[2] for match in re.finditer(r'bin/pytest -q -m ("[^"]*"|\w+)(?: -\S+(?: \w+)?)*((?: tests/\S+)*)', done.stdout)]


def test_ci_leaves_out_the_slow_tests_alone() -> None:
    (line,) = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if "make test" in line]
    assert expressions(*line.split()[1:]) == ['"not slow"']


def test_make_test_leaves_out_what_needs_minutes_a_package_index_or_root() -> None:
    assert expressions("test") == expressions("test", "ALL=0") == ['"not slow and not long and not install and not image"']
    assert expressions("test-long") == ['"long and not slow"']


@pytest.mark.parametrize(("target", "mark"), [("test-install", "install"), ("image-test", "image")])
def test_a_target_that_names_its_modules_names_each_with_its_mark(target: str, mark: str) -> None:
    marked = [path for path in (ROOT / "tests").rglob("test_*.py") if re.search(rf"\bmark\.{mark}\b", path.read_text()) and path != Path(__file__)]
    assert marked
    assert expressions(target) == [" ".join([mark, *(str(path.relative_to(ROOT)) for path in marked)])]


def test_each_first_module_is_there_once() -> None:
    modules = [line for line in FIRST.read_text().splitlines() if not line.startswith("#")]
    assert len(set(modules)) == len(modules) > 0
    assert [module for module in modules if not (ROOT / module).is_file()] == []


def test_the_first_modules_begin_and_those_that_wait_are_spread_over_the_others(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (tmp_path / "first_modules.txt").write_text("# these\ntests/integration/test_d.py\ntests/e2e/test_b.py\n")
    for name in ("e2e/test_a", "e2e/test_b", "integration/test_c", "integration/test_d", "integration/test_e", *(f"unit/test_{n}" for n in "fghi")):
        path = tmp_path / "tests" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("def test_1():\n    pass\n\n\ndef test_2():\n    pass\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--collect-only", "--rootdir", str(tmp_path), str(tmp_path)]
    found = []
    for more in ((), ("--first-modules",)):
        collected = subprocess.run([*command, *more], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True).stdout
        found.append(" ".join(name + number for name, number in re.findall(r"test_(\w)\.py::test_(\d)", collected)))
    assert found == [" ".join(f"{name}1 {name}2" for name in order) for order in ("abcdefghi", "dbacfgehi")]
