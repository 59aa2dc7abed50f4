"""The drill of docs/guides/disaster_recovery.md for a table that was dropped by mistake: the job refuses to go on, and builds the table again."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable

from waltz_log.client import SyncWaltzClient
from waltz_log.processes.local_cluster import LocalCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
SUBMIT = [str(Path(sys.executable).with_name("spark-submit")), "--properties-file", str(ROOT / "conf" / "spark-defaults.conf")]
TIMEOUT_S = 240


def test_a_dropped_table_is_not_filled_from_the_middle_and_is_built_again_from_the_log(tmp_path: Path, spark_environment: dict[str, str]) -> None:
    table, checkpoint = tmp_path / "orders", tmp_path / "checkpoint"

    def ingest(cluster: LocalCluster) -> subprocess.CompletedProcess[str]:
        arguments = [f"--cluster={cluster.cluster}", f"--table={table}", f"--checkpoint={checkpoint}", "--trigger=available-now", "--schema=n INT"]
        command = [*SUBMIT, str(ROOT / "jobs" / "ingest.py"), *arguments]
        return subprocess.run(command, cwd=ROOT, env=spark_environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)

    def append(cluster: LocalCluster, numbers: range) -> None:
        with SyncWaltzClient(cluster.cluster) as client:
            for number in numbers:
                client.append(0, b'{"n": %d}' % number)

    with LocalCluster(tmp_path / "cluster", partitions=1, servers=1) as cluster:
        append(cluster, range(50))
        done = ingest(cluster)
        assert done.returncode == 0, done.stdout + done.stderr
        shutil.rmtree(table)
        append(cluster, range(50, 60))
        done = ingest(cluster)
        assert done.returncode != 0
        assert "GapInTable" in done.stdout + done.stderr
        assert not DeltaTable.is_deltatable(str(table)), "no table of the last ten rows"
        shutil.rmtree(checkpoint)
        done = ingest(cluster)
        assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(DeltaTable(str(table)).to_pyarrow_table(columns=["n"])["n"].to_pylist()) == list(range(60))
