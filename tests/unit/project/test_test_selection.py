"""Which tests a target of the Makefile runs, in which order, and that CI leaves out the slow ones alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import left_out

ROOT = Path(__file__).resolve().parents[3]
FIRST = ROOT / "tests" / "first_modules.txt"
DRAWN = ROOT / "tests" / "drawn_modules.txt"

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
    (found,) = expressions(target)
    assert found.split()[0] == mark
    assert sorted(found.split()[1:]) == sorted(str(path.relative_to(ROOT)) for path in marked)


def test_each_first_module_is_there_once() -> None:
    modules = [line for line in FIRST.read_text().splitlines() if not line.startswith("#")]
    assert len(set(modules)) == len(modules) > 0
    assert [module for module in modules if not (ROOT / module).is_file()] == []


def collect(folder: Path, *options: str) -> str:
    """What pytest prints with our `conftest.py` in a folder of its own: modules with two tests each."""
    (folder / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (folder / "first_modules.txt").write_text("# these\ntests/integration/test_d.py\ntests/e2e/test_b.py\n")
    (folder / "drawn_modules.txt").write_text("# these\ntests/e2e/test_a.py\n" + "".join(f"tests/unit/test_{name}.py whole\n" for name in "fghi"))
    for name in ("e2e/test_a", "e2e/test_b", "integration/test_c", "integration/test_d", "integration/test_e", *(f"unit/test_{n}" for n in "fghi")):
        path = folder / "tests" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("def test_1():\n    pass\n\n\ndef test_2():\n    pass\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder), str(folder), *options]
    own = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}  # options of this run
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=True, env=own).stdout


def in_order(collected: str) -> str:
    return " ".join(name + number for name, number in re.findall(r"test_(\w)\.py::test_(\d)", collected))


def test_the_first_modules_begin_and_those_that_wait_are_spread_over_the_others(tmp_path: Path) -> None:
    found = [in_order(collect(tmp_path, "--collect-only", *more)) for more in ((), ("--first-modules",))]
    assert found == [" ".join(f"{name}1 {name}2" for name in order) for order in ("abcdefghi", "dbacfgehi")]


# ---- what is drawn ---------------------------------------------------------------------------------------------------------------------------------


TESTS = [f"tests/e2e/test_{module}.py::test_{number}" for module in "ab" for number in range(6)]
WHOLE = [f"tests/unit/test_{module}.py" for module in "cdef"]


def test_a_share_of_the_tests_of_each_module_and_of_the_whole_modules_is_drawn_and_the_number_repeats_the_draw() -> None:
    draws = [{*TESTS, *WHOLE} - left_out(TESTS, WHOLE, 0.5, number) for number in (*range(50), 0)]
    assert draws[0] == draws[50] == {*TESTS, *WHOLE} - left_out(TESTS[::-1], WHOLE[::-1], 0.5, 0)
    for drawn in draws:
        assert Counter(each.partition("::")[0] for each in drawn & {*TESTS}) == {"tests/e2e/test_a.py": 3, "tests/e2e/test_b.py": 3}
        assert len(drawn & {*WHOLE}) == 2
    assert set[str]().union(*draws) == {*TESTS, *WHOLE}
    assert left_out(TESTS[:6], [], 0.5, 0) == left_out(TESTS, WHOLE, 0.5, 0) & {*TESTS[:6]}, "one module alone"


@pytest.mark.parametrize(("share", "counts"), [(0.17, (3, 1)), (0.5, (6, 3)), (1.0, (6, 6))])
def test_of_a_module_that_says_so_more_is_drawn(share: float, counts: tuple[int, int]) -> None:
    drawn = {*TESTS} - left_out(TESTS, [], share, 7, {"tests/e2e/test_a.py": 3})
    assert tuple(sum(each.startswith(f"tests/e2e/test_{name}.py") for each in drawn) for name in "ab") == counts


def test_whole_modules_of_which_more_is_drawn_are_a_group_of_their_own() -> None:
    draws = [{*WHOLE} - left_out([], WHOLE, 0.25, number, dict.fromkeys(WHOLE[:2], 2)) for number in range(50)]
    assert {(len(drawn & {*WHOLE[:2]}), len(drawn & {*WHOLE[2:]})) for drawn in draws} == {(1, 1)}
    assert set[str]().union(*draws) == {*WHOLE}


@pytest.mark.parametrize(("share", "count"), [(0.01, 3), (1.0, 16)])
def test_something_is_drawn_however_small_the_share_and_everything_with_all_of_it(share: float, count: int) -> None:
    assert len({*TESTS, *WHOLE} - left_out(TESTS, WHOLE, share, 7)) == count
    assert left_out([], [], share, 7) == set()


def test_workers_draw_alike_and_the_run_says_how_to_repeat_it(tmp_path: Path) -> None:
    printed = collect(tmp_path, "--share", "0.5", "-n", "2")
    assert "13 passed" in printed
    assert re.search(r"--share=0\.5 --draw=\d+", printed)


def test_a_draw_is_one_of_the_tests_that_the_marks_leave(tmp_path: Path) -> None:
    for number in range(3):
        assert "test_a.py::test_2" in collect(tmp_path, "--collect-only", "--share", "0.01", "--draw", str(number), "-k", "test_2")


@pytest.mark.parametrize("share", ["0", "1.5", "nan"])
def test_an_impossible_share_is_refused(tmp_path: Path, share: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        collect(tmp_path, "--collect-only", "--share", share)
    assert "not above 0 and at most 1" in refused.value.stderr


def test_each_drawn_module_is_there_once() -> None:
    lines = [line.partition(" ") for line in DRAWN.read_text().splitlines() if not line.startswith("#")]
    modules = [module for module, _, _ in lines]
    assert [word for _, _, word in lines if not re.fullmatch("|whole|x[2-9]|whole x[2-9]", word)] == []
    assert len({*modules}) == len(modules) > 0
    assert [module for module in modules if not (ROOT / module).is_file()] == []
