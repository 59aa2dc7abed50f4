"""Prometheus' own tools, from Debian's package `prometheus`. Tests that need them are skipped where they are missing, and say how to install
them."""

from __future__ import annotations

import shutil
import subprocess

import pytest

__all__ = ["HOW_TO_INSTALL", "needs_prometheus", "promtool"]

HOW_TO_INSTALL = "not run: promtool and prometheus are not installed (Debian: apt-get install prometheus)"

needs_prometheus = pytest.mark.skipif(shutil.which("promtool") is None or shutil.which("prometheus") is None, reason=HOW_TO_INSTALL)


def promtool(*arguments: str, text: str | None = None) -> str:
    """What it prints. Fails if it finds something wrong."""
    done = subprocess.run(["promtool", *arguments], input=text, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
