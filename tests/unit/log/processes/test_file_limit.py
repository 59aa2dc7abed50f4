"""What a node does about the limit of open files before it opens any: real processes under real limits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LOW = 600
"""Enough for Python, and for a server; a storage node keeps 512 files open beside its sockets."""


def _limited(soft: int, hard: int, *command: str) -> subprocess.CompletedProcess[str]:
    """The shell sets them, not this process between fork and exec: it has threads of gRPC when other tests ran before."""
    limited = ["sh", "-c", f'ulimit -Sn {soft} && ulimit -Hn {hard} && exec "$@"', "sh", *command]
    return subprocess.run(limited, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("node", "hard", "needed"),
    [("server", 256, 512), ("storage", LOW, 1024)],
)
def test_a_node_with_too_few_files_ends_with_one_sentence_before_it_does_anything(node: str, hard: int, needed: int, tmp_path: Path) -> None:
    directory = tmp_path / "data"
    about = ["server"] if node == "server" else ["storage", "--name", "storage-0", "--directory", str(directory)]
    found = _limited(hard, hard, sys.executable, "-P", "-m", "waltz_log.cli", *about, "--coordinator", "127.0.0.1:1/waltz")
    assert found.returncode == 2, found.stderr
    assert f"a process may open only {hard} files, and {needed} are needed" in found.stderr
    assert "Traceback" not in found.stderr
    assert not directory.exists()


def test_the_soft_limit_of_a_node_is_raised_as_far_as_allowed() -> None:
    code = "from waltz_log.processes.file_limit import *; prepare_open_files(512); import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    found = _limited(256, 2048, sys.executable, "-P", "-c", code)
    assert found.stdout.strip() == "(2048, 2048)", found.stderr
