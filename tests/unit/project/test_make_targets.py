"""What `make` says at the end of a setup and before the tests, and what README says of its commands."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def commands(target: str) -> list[str]:
    """What make would run, without running it."""
    done = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.splitlines()


def test_setup_ends_with_the_next_step() -> None:
    last = commands("setup")[-1]
    assert last.startswith("echo ")
    for step in ("make demo", "source .venv/bin/activate", "waltz dev"):
        assert step in last


@pytest.mark.parametrize("target", ["doctor", "test"])
def test_a_target_that_sets_up_first_says_nothing_of_a_next_step(target: str) -> None:
    assert not any("Next:" in line for line in commands(target))


def _announced() -> tuple[str, str]:
    """The number of tests and their minutes, as `make test` says before the first test starts."""
    lines = commands("test")
    said = next(at for at, line in enumerate(lines) if line.startswith("echo") and "minutes" in line)
    assert said < next(at for at, line in enumerate(lines) if "pytest" in line)
    found = re.search(r"test: ([\d,]+) tests, about (\d+) minutes on two cores; make test-unit takes (\d+)", lines[said])
    assert found is not None, lines[said]
    return found[1], found[2]


def test_make_test_begins_with_the_minutes_that_readme_says() -> None:
    tests, minutes = _announced()
    readme = (ROOT / "README.md").read_text()
    assert f"make test       # {tests} tests" in readme
    assert f"{minutes} for the tests |" in readme


def test_the_first_screen_of_readme_names_both_commands_and_what_they_need() -> None:
    screen = (ROOT / "README.md").read_text().splitlines()[:55]
    block = screen[screen.index("```sh") + 1 :]
    assert [line.split("#")[0].strip() for line in block[: block.index("```")]] == ["make demo", "make test"]
    needs = dict(re.findall(r"^\| (\w[\w, ]*) \| (.+) \|$", "\n".join(block), re.MULTILINE))
    for need, said in {
        "Python": r"3\.11 or newer",
        "Java": r"17 or 21; .*its own",
        "Disk, memory": r"\d+ GB of disk, \d+ GB of memory",
        "Network": r"package index and Maven Central",
        "Time on two cores": r"\d+ minutes for the set-up, \d+ for the demo, \d+ for the tests",
    }.items():
        assert re.search(said, needs[need]), need
