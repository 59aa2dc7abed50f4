"""Ingest on a real standalone cluster, from what `make dist` packs, on workers where nothing of the project is installed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.e2e.chaos_checker import differences, ends_of, log_rows, marks_of, table_rows
from tests.e2e.standalone import BARE_PYTHON, SPARK_HOME, StandaloneSpark, bare_environment, python_workers, wait_for
from waltz_log.client import SyncWaltzClient
from waltz_log.client.inspection.inspect import ClusterInspector
from waltz_log.processes import launch
from waltz_log.processes.local_cluster import LocalCluster

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 600
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For JVMs that run a minute, four of them on two cores."""


@pytest.fixture(scope="module")
def distribution(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a user has on the machine that submits: the folder, and the environment unpacked in it."""
    folder = tmp_path_factory.mktemp("cluster") / "dist"
    subprocess.run([sys.executable, "-m", "tools.dist", "--directory", str(folder), "--level=1"], cwd=ROOT, check=True, timeout=PATIENCE_S)
    (folder / "environment").mkdir()
    subprocess.run(["tar", "-xzf", "environment.tar.gz", "-C", "environment"], cwd=folder, check=True, timeout=PATIENCE_S)
    return folder


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("log"), partitions=2, servers=1) as running:
        yield running


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneSpark]:
    with StandaloneSpark(tmp_path_factory.mktemp("spark"), workers=2) as running:
        yield running


def submit(hosts: StandaloneSpark, folder: Path, *arguments: str) -> list[str]:
    return [
        *(sys.executable, "-I", "-S", launch.__file__, str(os.getpid())),  # the driver ends with this process, whatever ends it
        *(str(SPARK_HOME / "bin" / "spark-submit"), "--properties-file=spark-cluster.conf", f"--master={hosts.url}"),
        *("--driver-memory=1g", "--executor-memory=512m", f"--driver-java-options={SHORT_LIVED}"),
        *("--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.driver.bindAddress=127.0.0.1", "--conf", "spark.ui.enabled=false"),
        *("--conf", f"spark.executor.extraJavaOptions={SHORT_LIVED}", "--conf", "spark.sql.shuffle.partitions=2"),
        *("--conf", "spark.databricks.delta.snapshotPartitions=2"),
        *arguments,
    ]


def environment() -> dict[str, str]:
    """On the machine that submits: the packed environment is the driver's, too."""
    return bare_environment(PYSPARK_PYTHON="./environment/bin/python", SPARK_CONF_DIR=str(ROOT / "conf"))


def packages_in_use(worker: psutil.Process) -> set[str]:
    """Where the compiled code of our packages was loaded from."""
    try:
        return {each.path for each in worker.memory_maps() if "cygrpc" in each.path or "pyarrow/" in each.path}
    except psutil.Error:
        return set()


def test_a_bare_host_has_nothing_of_the_project() -> None:
    for package in ("waltz_log", "pyspark_waltz", "grpc", "pyarrow"):
        done = subprocess.run(
            [BARE_PYTHON, "-c", f"import {package}"], env=bare_environment(), cwd="/", capture_output=True, text=True, timeout=60, check=False
        )
        assert "ModuleNotFoundError" in done.stderr


def test_ingest_is_exact_on_bare_workers_whose_executors_are_killed(
    distribution: Path, log: LocalCluster, hosts: StandaloneSpark, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    rng = random.Random(7)
    with ClusterInspector(log.cluster) as inspector:
        key = str(inspector.parameters.key)

    def append(client: SyncWaltzClient, count: int) -> None:
        for number in range(count):
            client.append_nowait(number % 2, rng.randbytes(rng.randrange(300)), number % 7)
        client.flush()

    def marks() -> dict[int, int]:
        return marks_of(table, key)

    job = [f"--cluster={log.cluster}", f"--table={table}", f"--checkpoint={tmp_path / 'checkpoint'}"]
    follow = ["--trigger=500 milliseconds", "--max-transactions-per-trigger=400"]
    out = tmp_path / "out"
    with SyncWaltzClient(log.cluster) as client, out.open("w") as reported:
        append(client, 1000)
        command = submit(hosts, distribution, "jobs/ingest.py", *job, *follow)
        driver = subprocess.Popen(command, cwd=distribution, env=environment(), stdout=reported, stderr=reported)
        try:

            def reached(at: int) -> bool:
                assert driver.poll() is None, out.read_text()
                return sum(mark + 1 for mark in marks().values()) >= at

            wait_for(lambda: reached(400), "the first rows", PATIENCE_S)
            used = {path for executor in hosts.executors() for worker in python_workers(executor) for path in packages_in_use(worker)}
            places = {executor.cwd() for executor in hosts.executors()}
            assert used
            assert all(any(path.startswith(f"{place}/environment/lib/") for place in places) for path in used), used
            appended = 1000
            for _ in range(2):
                before = hosts.executors()
                append(client, 600)
                appended += 600
                for executor in before:
                    hosts.kill_executor(executor)
                    time.sleep(rng.random())
                gone = {executor.pid for executor in before}
                wait_for(lambda gone=gone: [each for each in hosts.executors() if each.pid not in gone], "executors that came back", PATIENCE_S)  # type: ignore[misc]
                wait_for(lambda at=appended: reached(at), "rows after the kill", PATIENCE_S)  # type: ignore[misc]
            driver.send_signal(signal.SIGTERM)
            assert driver.wait(PATIENCE_S) == 0, out.read_text()
        finally:
            driver.kill()
            driver.wait()
    expected = log_rows(log.cluster)
    assert len(expected) == appended
    assert differences(expected, table_rows(table), marks()) == []
    assert ends_of(expected) == marks()


def test_standalone_refuses_cluster_deploy_mode_for_python(distribution: Path, hosts: StandaloneSpark) -> None:
    command = submit(hosts, distribution, "--deploy-mode=cluster", "jobs/ingest.py", "--help")
    done = subprocess.run(command, cwd=distribution, env=environment(), capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode != 0
    assert "Cluster deploy mode is currently not supported for python applications on standalone clusters" in done.stdout + done.stderr


def test_the_archive_runs_from_any_folder(distribution: Path, tmp_path: Path) -> None:
    moved = tmp_path / "some where"
    os.symlink(distribution / "environment", moved)
    command = [str(moved / "bin" / "python"), "-c", "import waltz_log, pydantic; print(waltz_log.__file__, pydantic.__file__, sep='\\n')"]
    done = subprocess.run(command, env=bare_environment(), cwd="/", capture_output=True, text=True, timeout=60, check=True)
    assert all(f"{distribution}/environment/lib" in path or f"{moved}/lib" in path for path in done.stdout.splitlines())
