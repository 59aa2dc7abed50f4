"""The process that reads, and a directory for each case."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.log.files.runner import Runner


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with tempfile.TemporaryDirectory(prefix="waltz-files-") as out:
        words = [sys.executable, "-m", "tests.integration.log.files.readers", out]
        environment = {**os.environ, "COLUMNS": "200"}
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as process:
            yield Runner(process)
            assert process.stdin is not None
            process.stdin.close()


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that other users may enter, as pytest's are not."""
    with tempfile.TemporaryDirectory(prefix="waltz-file-") as made:
        Path(made).chmod(0o755)
        yield Path(made)
