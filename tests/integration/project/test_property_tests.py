"""Property tests are the same in every run of `make test`, and `make explore` finds and reports what a new example breaks."""

from __future__ import annotations

import ast
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.explore import explore, property_test_files

ROOT = Path(__file__).resolve().parents[3]
PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")

PRINTS = """
from hypothesis import given, settings, strategies as st

@settings(max_examples=20)
@given(st.integers(), st.lists(st.binary()))
def test_shown(number, data):
    with open({path!r}, "a") as file:
        print(number, data, file=file)
"""
PROFILE = """
from hypothesis import settings

def test_profile():
    assert settings.default is not None
    assert settings.get_current_profile_name() == "default"
    assert settings.default.derandomize
    assert settings.default.print_blob
"""
FAILS = """
from hypothesis import given, strategies as st

@given(st.integers())
def test_wrong(number):
    assert number < 1000
"""


def test_the_tests_run_derandomized(tmp_path: Path) -> None:
    """In a run of its own, because `make explore` runs this file too, with another profile."""
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (tmp_path / "test_profile.py").write_text(PROFILE)
    run = subprocess.run([*PYTEST, "test_profile.py"], cwd=tmp_path, timeout=120, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout
    assert "1 passed" in run.stdout


@pytest.mark.parametrize("path", property_test_files(ROOT / "tests"), ids=lambda path: path.stem)
def test_no_property_test_chooses_its_own_randomness(path: Path) -> None:
    """`settings` of a test use the default for what they do not name from the profile, so none may name what the profile decides."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func).split(".")[-1]
            assert called not in ("load_profile", "register_profile", "seed", "reproduce_failure"), f"line {node.lineno}"
            if called in ("settings", "using"):
                named = {each.arg: ast.unparse(each.value) for each in node.keywords}
                assert named.get("derandomize", "True") == "True", f"line {node.lineno}"
                assert named.get("database", "None") == "None", f"line {node.lineno}"


def test_make_test_leaves_the_profile_alone() -> None:
    recipe = re.search(r"^test:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    assert "hypothesis" not in recipe[1]


def run_twice(tmp_path: Path, *arguments: str) -> tuple[str, str]:
    """The examples of one property test under this project's conftest, in two runs."""
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    shown = []
    for number in range(2):
        path = tmp_path / f"examples-{number}"
        (tmp_path / "test_shown.py").write_text(PRINTS.format(path=str(tmp_path / "examples")))
        run = subprocess.run([*PYTEST, *arguments, "test_shown.py"], cwd=tmp_path, timeout=120, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stdout
        (tmp_path / "examples").rename(path)
        shown.append(path.read_text())
    assert shown[0]
    return shown[0], shown[1]


def test_two_runs_see_the_same_examples(tmp_path: Path) -> None:
    first, second = run_twice(tmp_path)
    assert first == second


def test_exploring_sees_other_examples_in_each_run(tmp_path: Path) -> None:
    first, second = run_twice(tmp_path, "--hypothesis-profile=explore")
    assert first != second


def test_exploring_saves_the_example_that_fails_and_counts_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    wrong = tmp_path / "test_wrong.py"
    wrong.write_text(FAILS)
    saved = tmp_path / "saved"
    assert explore([wrong], 120, saved, random.Random(1), runs_max=1) == 1
    report = next(saved.iterdir()).read_text()
    assert "number=1000" in report
    assert "@reproduce_failure(" in report
    assert "--hypothesis-profile=explore --hypothesis-seed=" in report.splitlines()[0]
    assert "replay: pytest" in capsys.readouterr().out


def test_exploring_a_right_property_fails_nothing(tmp_path: Path) -> None:
    right = tmp_path / "test_right.py"
    right.write_text(FAILS.replace("< 1000", "== number"))
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    assert explore([right], 120, tmp_path / "saved", random.Random(1), runs_max=1) == 0
    assert not (tmp_path / "saved").exists()
