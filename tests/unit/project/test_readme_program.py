"""The program at the top of the README runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = (Path(__file__).parents[3] / "README.md").read_text()


def test_the_first_program_of_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    beginning = README.split("## Try it")[0]
    (program,) = re.findall(r"```python\n(.*?)```", beginning, re.DOTALL)
    assert len(program.strip().splitlines()) <= 11, "ten lines of code, and one that is empty"
    exec(compile(program, "README.md", "exec"), {"__name__": "readme"})
    assert "rejected: read transaction 0 and decide again" in capsys.readouterr().out
