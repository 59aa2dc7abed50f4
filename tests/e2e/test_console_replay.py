"""Dead letters that a real Spark job wrote are replayed from the console, by another real Spark job, and their rows are in the table."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from deltalake import DeltaTable

from waltz_log.client import SyncWaltzClient
from waltz_log.processes.local_cluster import LocalCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
SUBMIT = [str(Path(sys.executable).with_name("spark-submit")), "--properties-file", str(ROOT / "conf" / "spark-defaults.conf")]
PATIENCE_S = 240
"""For a job that starts a JVM."""

PIPELINE = """\
name: shop
source: {{cluster: "{cluster}"}}
checkpoint: {folder}/checkpoint
trigger: available-now
dead_letters: {{table: {folder}/dead}}
outputs:
  - decode: {{format: json, columns: "k STRING NOT NULL, n {kind}"}}
    projection: {{select: "{select}"}}
    target: {{table: {folder}/orders}}
"""
GOOD, TEXT, BROKEN = b'{"k": "a", "n": 1}', b'{"k": "b", "n": "two"}', b'{"k": "c"'


@contextmanager
def console(cluster: str, pipeline: Path, environment: dict[str, str]) -> Iterator[httpx.Client]:
    replay = " ".join([*SUBMIT, str(ROOT / "jobs" / "replay_dead_letters.py")])
    options = ["--listen=127.0.0.1:0", f"--pipelines={pipeline}", "--allow-actions", f"--replay-command={replay}"]
    command = [sys.executable, "-m", "waltz_log.cli", "console", cluster, *options]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            found = re.search(r"url=(\S+)", process.stdout.readline())
            assert found is not None, "the console did not start"
            with httpx.Client(base_url=found[1], timeout=20, headers={"origin": found[1].rstrip("/")}) as browser:
                yield browser
        finally:
            process.terminate()


def wait_for(true: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < until
        time.sleep(0.5)


def rows(table: Path) -> list[tuple[int, str, int | None]]:
    found = DeltaTable(table).to_pyarrow_table(columns=["transaction_id", "k", "n"]).to_pylist()
    return sorted((row["transaction_id"], row["k"], row["n"]) for row in found)


def test_dead_letters_are_replayed_from_the_console_and_their_rows_are_in_the_table(spark_environment: dict[str, str], tmp_path: Path) -> None:
    pipeline = tmp_path / "shop.yaml"
    with LocalCluster(tmp_path / "cluster", partitions=1, storages=1, servers=1) as cluster:
        with SyncWaltzClient(cluster.cluster) as client:
            for data in (GOOD, TEXT, BROKEN):
                client.append(0, data)
        pipeline.write_text(PIPELINE.format(cluster=cluster.cluster, folder=tmp_path, kind="INT", select="k, n"))
        ingest = [*SUBMIT, str(ROOT / "jobs" / "ingest.py"), f"--pipeline={pipeline}"]
        done = subprocess.run(ingest, cwd=ROOT, env=spark_environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert done.returncode == 0, done.stderr
        assert rows(tmp_path / "orders") == [(0, "a", 1)]
        with console(cluster.coordinator, pipeline, spark_environment) as browser:
            letters = "/pipelines/shop/dead-letters"
            wait_for(lambda: "2 to replay" in browser.get(letters).text)
            pipeline.write_text(PIPELINE.format(cluster=cluster.cluster, folder=tmp_path, kind="STRING", select="k, try_cast(n AS INT) AS n"))
            (action,) = re.findall(r'href="(/actions/replay-dead-letters\?[^"]+)"', browser.get(letters).text)
            asked = browser.get(action).text
            assert "2 dead letters of shop" in asked
            form = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', asked))
            assert browser.post(action.partition("?")[0], data=form).status_code == 303
            wait_for(lambda: ">running<" not in browser.get(letters).text)
            page = browser.get(letters).text
            assert ">done<" in page, page
            assert "landed=1 still=1 waiting=0" in page
            assert "1 to replay" in page
            assert rows(tmp_path / "orders") == [(0, "a", 1), (1, "b", None)]
            assert "Replay dead letters" in browser.get("/actions").text
