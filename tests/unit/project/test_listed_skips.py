"""A test that is skipped where everything can run is noticed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

TESTS = """
import pytest

def test_passes():
    pass

@pytest.mark.skipif(True, reason="no such program")
def test_skips():
    pass

def test_skips_inside():
    pytest.skip("no such file")
"""


@pytest.mark.parametrize(("listed", "spread"), [(("test_skips",), ("-n", "1")), (("test_skips", "test_skips_inside"), ())])
def test_only_listed_tests_may_be_skipped(listed: tuple[str, ...], spread: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (tmp_path / "listed_skips.txt").write_text("# reasons\n" + "".join(f"test_some.py::{name}  # no reason\n" for name in listed))
    (tmp_path / "test_some.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), *spread, str(tmp_path)]
    found = subprocess.run([*command, "--skips-listed"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    unlisted = {"test_skips", "test_skips_inside"} - set(listed)
    assert found.returncode == (1 if unlisted else 0), found.stdout
    for name in ("test_skips", "test_skips_inside"):
        assert (f"SKIPPED, and not in listed_skips.txt: test_some.py::{name}\n" in found.stdout) == (name in unlisted)
