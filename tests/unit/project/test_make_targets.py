"""What `make` says at the end of a setup."""

from __future__ import annotations

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
