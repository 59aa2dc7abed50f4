"""The programs of docs/guides/testing.md run as they stand there, the fixtures in a pytest of their own; the page names everything that there is."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from waltz_log import testing
from waltz_log.testing import InMemoryCluster, SyncInMemoryCluster, pytest_plugin

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "guides" / "testing.md").read_text()

PROGRAMS: list[str] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)

TIMEOUT_S = 200


def test_the_programs_on_the_page_run() -> None:
    alone = [program for program in PROGRAMS if "pytest" not in program]
    assert len(alone) == 3
    for program in alone:
        exec(compile(program, "docs/guides/testing.md", "exec"), {"__name__": "docs_testing"})


def test_the_fixtures_on_the_page_work_in_a_project_of_their_own(tmp_path: Path) -> None:
    conftest, tests = (program for program in PROGRAMS if "pytest" in program)
    (tmp_path / "conftest.py").write_text(conftest)
    (tmp_path / "test_page.py").write_text(tests)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-W",
        "error",
        "-p",
        "no:asyncio",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


@pytest.mark.timeout(60)
def test_the_page_names_all_that_is_public() -> None:
    faults = {name for name in dir(SyncInMemoryCluster) if not name.startswith("_")} - {"call"}
    names = {*testing.__all__, *pytest_plugin.__all__, *faults, "fail_next_append", "lose_next_answer", "conflict_next_append"}
    assert sorted(name for name in names if name not in PAGE) == []


def test_both_forms_offer_the_same() -> None:
    own = {name for name, each in inspect.getmembers(SyncInMemoryCluster) if not name.startswith("_") and callable(each)} - {"call"}
    assert own <= set(dir(InMemoryCluster))
