"""Commands that other packages bring: found by entry point, imported when asked for, and harmless where they cannot be."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from waltz_log.cli import plugins
from waltz_log.cli.main import run

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    declared = {"broken": EntryPoint("broken", "package_that_is_not_there:app", plugins.GROUP)}
    monkeypatch.setattr(plugins, "_declared", lambda: declared)


@pytest.mark.usefixtures("broken")
def test_a_command_without_its_package_is_reported_and_the_others_work(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["broken", "x"]) == 2
    assert "broken needs a package that is not installed" in capsys.readouterr().err
    assert run(["doctor", "--help"]) == 0


@pytest.mark.usefixtures("broken")
def test_help_lists_what_it_can(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    out = capsys.readouterr().out
    assert "doctor" in out
    assert "broken" in out


def test_every_command_that_is_declared_can_be_asked_for_help() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][plugins.GROUP]
    assert declared
    for name, place in declared.items():
        assert EntryPoint(name, place, plugins.GROUP).load().info.help


def test_the_help_of_a_command_does_not_import_what_it_runs() -> None:
    code = (
        "import sys; from waltz_log.cli.main import run; run(['pipeline', '--help']); print([n for n in ('pyspark', 'pyarrow') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
