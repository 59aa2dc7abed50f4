"""The short run of `make machines`: every refusal, and the README's session under most conditions at once."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from verification.machines.__main__ import in_its_place, run
from verification.machines.conditions import CONDITIONS, Condition
from verification.machines.judging import judge

ROOT = Path(__file__).resolve().parents[2]
REFUSALS = [each for each in CONDITIONS if each.short and each.fails]
SESSIONS = [each for each in CONDITIONS if each.short and not each.fails]


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Which other users may enter."""
    path = tmp_path_factory.mktemp("machines")
    for each in (path, *path.parents[:3]):
        if each.stat().st_uid == os.geteuid() and each != Path("/tmp"):
            each.chmod(each.stat().st_mode | 0o711)
    return path


def _needs_root(condition: Condition) -> bool:
    return bool(condition.inside) and os.geteuid() != 0


@pytest.mark.parametrize("condition", REFUSALS, ids=lambda each: each.name)
def test_a_machine_that_will_not_do_is_refused_in_one_sentence(condition: Condition, folder: Path) -> None:
    if _needs_root(condition):
        pytest.skip("a namespace or another user needs root")
    assert run(condition, folder) is None


@pytest.mark.long
@pytest.mark.parametrize("condition", SESSIONS, ids=lambda each: each.name)
def test_the_session_works_whatever_the_machine_holds(condition: Condition, folder: Path) -> None:
    if _needs_root(condition):
        pytest.skip("a namespace needs root")
    assert run(condition, folder) is None


def test_a_condition_counts_only_if_it_ends_as_documented() -> None:
    refused = Condition("x", lambda machine: machine.folder, "make setup", "has a colon", fails=True)
    assert judge(refused, 2, "setup: the path has a colon\n") is None
    assert judge(refused, 0, "setup: the path has a colon\n") is not None
    assert judge(refused, 1, "Traceback (most recent call last):\nOSError: has a colon\n") is not None
    assert judge(refused, 2, "another sentence\n") is not None
    session = Condition("x", lambda machine: machine.folder, expected="12A\tZoë")
    assert judge(session, 0, "12A\tZoë\n") is None
    assert judge(session, 0, "12A\tZo?\n") is not None
    assert judge(session, 1, "12A\tZoë\n") is not None


@pytest.mark.parametrize("condition", [each for each in CONDITIONS if each.has_session], ids=lambda each: each.name)
def test_another_command_stands_where_the_session_was(condition: Condition) -> None:
    command = in_its_place(condition, "make demo")
    assert "spark-submit" not in command
    assert command.count("make demo") == (2 if "two" in condition.name else 1)
    assert ("hostname" in command) == ("hostname" in condition.command)


def test_the_target_says_how_many_conditions_there_are() -> None:
    (number,) = re.findall(r"^machines: .* (\d+) conditions", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert int(number) == len(CONDITIONS) == len({each.name for each in CONDITIONS})
