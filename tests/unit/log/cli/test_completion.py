"""Shell completion: the shells' own protocol with the command, and a real bash that completes a line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SHELLS = {
    "bash": {"_WALTZ_COMPLETE": "complete_bash", "COMP_WORDS": "waltz re", "COMP_CWORD": "1"},
    "zsh": {"_WALTZ_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "waltz re"},
}
WALTZ = Path(sys.executable).with_name("waltz")


@pytest.mark.parametrize("shell", SHELLS)
def test_commands_are_completed(shell: str) -> None:
    found = subprocess.run([WALTZ], env=os.environ | SHELLS[shell], capture_output=True, text=True, timeout=60, check=False)
    assert "read" in found.stdout, found.stderr
    assert "rebalance" in found.stdout
    assert "drain" not in found.stdout


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_for_the_shell_is_printed_and_valid(shell: str, tmp_path: Path) -> None:
    environment = os.environ | {"_WALTZ_COMPLETE": f"source_{shell}"}
    found = subprocess.run([WALTZ], env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert "_WALTZ_COMPLETE" in found.stdout, found.stderr
    program = shutil.which(shell)
    if program is None:
        return  # only the protocol can be checked without the shell
    script = tmp_path / "completion"
    script.write_text(found.stdout)
    assert subprocess.run([program, "-n", script], capture_output=True, timeout=60, check=False).returncode == 0
    if shell == "bash":
        line = f'source {script}; COMP_WORDS=(waltz reb); COMP_CWORD=1; _waltz_completion waltz; printf "%s\\n" "${{COMPREPLY[@]}}"'
        environment = os.environ | {"PATH": f"{WALTZ.parent}:{os.environ['PATH']}"}
        done = subprocess.run([program, "-c", line], env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.stdout.split() == ["rebalance"], done.stderr
