"""The airline with a few flights, end to end and with its faults: as a slow test, for those who change the demo."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("faults", [[], ["--faults"]], ids=["calm", "faults"])
def test_the_demo_checks_its_tables(tmp_path: Path, faults: list[str]) -> None:
    environment = {**os.environ, "PATH": f"{sys.prefix}/bin:{os.environ['PATH']}", "PYSPARK_PYTHON": sys.executable}
    command = [sys.executable, "-m", "demo", "--limit", "2000", "--directory", str(tmp_path / "demo"), *faults]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "wrong" in done.stdout
    assert done.stdout.count(" ok ") >= 9
