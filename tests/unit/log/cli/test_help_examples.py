"""Each command shows an example in its `--help`, and the example is one of that command (tests/unit/project parses them)."""

from __future__ import annotations

import pytest

from tools.reference_commands import commands
from waltz_log.cli.examples import EXAMPLES
from waltz_log.cli.main import run

COMMANDS = [name for name, _ in commands()]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_ends_with_an_example(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 300)  # read from the environment once, at its import
    assert EXAMPLES[name].removeprefix("waltz ").startswith(name)
    assert run([*name.split(), "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"Example: {' '.join(EXAMPLES[name].split())}" in shown
