"""`jobs/ingest.py` on a disk that gets full: its last line says so, nothing is lost or there twice, and it goes on when there is space."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.submitted import PATIENCE_S, ROOT
from tests.integration.project.mount_namespaces import needs
from waltz_log.exit_codes import MACHINE, OK

pytestmark = [*needs([], "mounting a small file system needs root"), pytest.mark.timeout(900)]

SENTENCE = re.compile(r"ingest: the table's store is unavailable: [^\n]+: path=\S+")


@pytest.mark.slow
def test_a_job_whose_disk_is_full_ends_with_one_sentence_and_the_next_one_goes_on(tmp_path: Path, spark_environment: dict[str, str]) -> None:
    """What is mounted is seen by no other process, and gone with the process."""
    command = ["unshare", "-m", sys.executable, "-m", "tests.e2e.on_a_full_disk", str(tmp_path / "disk"), str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=spark_environment, capture_output=True, text=True, timeout=6 * PATIENCE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lives = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(life["code"], life["differs"]) for life in lives] == [(OK, False), (MACHINE, True), (MACHINE, True), (OK, False)], lives
    for life in lives[1:3]:
        assert SENTENCE.fullmatch(life["said"]), life
        assert "No space left on device" in life["said"]
    assert lives[1]["rows"] == lives[0]["rows"], "nothing was written"
    assert not (tmp_path / "disk" / "all").exists(), "the mount leaked"
