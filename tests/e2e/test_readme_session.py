"""The session of the README, executed as it is written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from waltz_log.testing.local import LocalCluster

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.timeout(240)


def _blocks() -> dict[str, str]:
    """Marked blocks by name."""
    return dict(re.findall(r"<!-- session: (\w+) -->\n```\w+\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL))


def _run(command: list[str] | str, where: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        command, cwd=where, env=environment, shell=isinstance(command, str), capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def test_the_readmes_session_works_as_written(tmp_path: Path) -> None:
    blocks = _blocks()
    assert set(blocks) == {"python", "spark", "job", "sql"}
    for name in ("conf", "jobs", ".cache"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / ".venv").symlink_to(Path(sys.prefix))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK", "PYSPARK", "PYTHON"))}
    environment = {**kept, "PATH": f"{sys.prefix}/bin:{kept['PATH']}"}  # what `source .venv/bin/activate` does
    with LocalCluster(tmp_path / "cluster", partitions=2, servers=1) as cluster:
        environment["CLUSTER"] = cluster.cluster
        prelude = f"CLUSTER = {cluster.cluster!r}\n"
        told = _run([sys.executable, "-c", prelude + blocks["python"]], tmp_path, environment)
        assert "Ada" in told
        script = tmp_path / "session.py"
        script.write_text("from pyspark.sql import SparkSession\nspark = SparkSession.builder.getOrCreate()\n" + prelude + blocks["spark"])
        told = _run(["spark-submit", "--properties-file", "conf/spark-defaults.conf", str(script)], tmp_path, environment)
        assert re.search(r"\|\s*0\|\s*1\|", told)
        _run(blocks["job"], tmp_path, environment)
        assert re.search(r"12A\s+Ada\s+0", _run(blocks["sql"], tmp_path, environment))
