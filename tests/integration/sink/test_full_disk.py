"""A disk that gets full at every write of a table that the Arrow engine writes: nothing is lost or there twice, and the error is one sentence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.project.mount_namespaces import needs
from verification.lake.full_disk import WORK

pytestmark = needs([], "mounting a small file system needs root")


@pytest.mark.parametrize("kind", WORK)
def test_a_full_disk_leaves_the_table_as_it_was_and_the_work_is_done_with_space(tmp_path: Path, kind: str) -> None:
    # A mount namespace of its own: what is mounted there is seen by no other process and gone with the process.
    command = ["unshare", "-m", sys.executable, "-m", "verification.lake.full_disk", str(tmp_path / "full"), f"--work={kind}"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    found = dict(line.split(": ") for line in ended.stdout.splitlines())
    for what in ("pages", "inodes"):
        met = found[f"{kind} {what}"].split()
        assert met == sorted(met, reverse=True), "first no data file can be written, then no commit"
        assert set(met) == {"commit", "file"}
    assert found[f"{kind} pages"].split().count("file") > (kind != "upsert"), "in the middle of a file; that of the upsert has one page"
    assert not (tmp_path / "full" / kind).exists(), "the mount leaked"
