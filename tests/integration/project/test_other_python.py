"""Unit tests under the newest Python that is promised, which this machine need not have: `.ci/other-python`. It needs root, a package index and a
mirror of Debian."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.integration.project.mount_namespaces import needs
from tools.versions import PROMISED

ROOT = Path(__file__).resolve().parents[3]
pytestmark = [
    pytest.mark.install,
    pytest.mark.timeout(900),
    *needs(["mmdebstrap"], "a mount namespace needs root"),
]


def test_unit_tests_pass_under_the_newest_python_that_is_promised() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run([ROOT / ".ci" / "other-python"], env=environment, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert f"Python {PROMISED[-1]}." in done.stdout
    (passed,) = re.findall(r"(\d+) passed", done.stdout)
    assert int(passed) > 1000
