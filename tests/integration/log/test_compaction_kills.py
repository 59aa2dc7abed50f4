"""Compaction killed with signal 9: the view is the old or the new one, whole, and never goes back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def killed(directory: Path, kills: int, seed: int) -> dict[str, int]:
    """In a process of its own: this one has threads, and is not to be forked."""
    command = [sys.executable, "-m", "verification.crashes.compaction_kills", str(directory), "--kills", str(kills), "--seed", str(seed)]
    reported = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert reported.returncode == 0, reported.stderr
    return {name: int(value) for name, _, value in (part.partition("=") for part in reported.stdout.split())}


def test_a_view_survives_kills_during_compaction(tmp_path: Path) -> None:
    assert killed(tmp_path / "node", 3, 1)["kills"] == 3


@pytest.mark.slow
def test_a_view_survives_many_kills_during_compaction(tmp_path: Path) -> None:
    figures = killed(tmp_path / "node", 100, 2)
    assert figures["kills"] == 100
    assert figures["further_than_noted"] > 5, "hardly any kill hit a compaction"
    assert figures["bound"] > 1000
