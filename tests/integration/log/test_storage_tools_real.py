"""The storage tools beside real processes: a cluster that accepts appends is inspected, backed up, loses a node's directory and gets it back."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from waltz_log.client.sync import SyncWaltzClient
from waltz_log.processes.local_cluster import LocalCluster

WALTZ = [sys.executable, "-m", "waltz_log.cli", "storage"]

pytestmark = pytest.mark.slow


def waltz(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*WALTZ, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False)


class Appends:
    """A thread that appends until it is stopped."""

    def __init__(self, cluster: str) -> None:
        self.count = 0
        self._stop = threading.Event()
        self._cluster = cluster
        self._thread = threading.Thread(target=self._run)
        self.error: BaseException | None = None

    def _run(self) -> None:
        try:
            with SyncWaltzClient(self._cluster) as client:
                while not self._stop.is_set():
                    client.append(0, b"%d" % self.count * 40, timeout_s=60)
                    self.count += 1
        except BaseException as error:
            self.error = error

    def __enter__(self) -> Appends:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(90)
        assert self.error is None, self.error


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    settings = {"segment_bytes": 16384, "scrub_pause_s": 1.0}
    with LocalCluster(tmp_path / "dev", partitions=1, storages=3, servers=1, storage_settings=settings) as running:
        yield running


def until(condition: Any, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("not in time")
        time.sleep(0.1)


def session_of(directory: Path) -> int:
    reported = json.loads(waltz("dump-control-file", directory, "--output", "json").stdout)
    entry = reported["entries"][0]
    return int(entry["structs"][entry["current"]]["session"])


def records(directory: Path) -> bytes:
    return b"".join(path.read_bytes()[128:] for path in sorted((directory / "0").glob("*.seg")))


def test_a_running_node_is_verified_and_backed_up_and_a_lost_one_restored(cluster: LocalCluster, tmp_path: Path) -> None:
    node = cluster.directory / "storage-0"
    with Appends(cluster.cluster) as appends:
        until(lambda: appends.count > 300)
        for _ in range(3):
            done = waltz("verify", node)
            assert done.returncode == 0, done.stdout
        # Killed in the middle, it leaves nothing that could pass for a backup; the next one does not mind.
        slow = subprocess.Popen([*WALTZ, "backup", str(node), str(tmp_path / "backup"), "--mib-per-s", "0.02"])
        until(lambda: (tmp_path / "backup.incomplete" / "partitions" / "0").exists())
        slow.kill()
        slow.wait()
        assert not (tmp_path / "backup").exists()
        done = waltz("backup", node, tmp_path / "backup", "--output", "json")
        assert done.returncode == 0, done.stderr
        reported = json.loads(done.stdout)
        assert reported["linked_bytes"] > 0
        assert reported["partitions"][0]["last_transaction_id"] >= 300
        assert waltz("verify", tmp_path / "backup").returncode == 0
        # The directory is lost; what comes back from the backup catches up while appends go on.
        cluster.kill("storage-0")
        shutil.move(node, tmp_path / "lost")
        done = waltz("restore", tmp_path / "backup", node)
        assert done.returncode == 0, done.stderr
        assert session_of(node) < -1
        before = appends.count
        cluster.start("storage-0")
        until(lambda: session_of(node) > 0)
        until(lambda: appends.count > before + 50)
        # Corruption in a closed segment, while the node runs.
        path = sorted((node / "0").glob("*.seg"))[0]
        whole = path.read_bytes()
        with path.open("r+b") as file:
            file.seek(5000)
            file.write(bytes([whole[5000] ^ 1]))
        until(lambda: path.read_bytes() == whole)
    assert waltz("verify", node).returncode == 0
    for name in ("storage-0", "storage-1", "storage-2"):
        cluster.stop(name)
    assert records(node) == records(cluster.directory / "storage-1") == records(cluster.directory / "storage-2")
    assert waltz("verify", tmp_path / "backup").returncode == 0, "it is what it was"
    # The directory that was replaced is refused from now on.
    shutil.rmtree(node)
    shutil.move(tmp_path / "lost", node)
    pid = cluster.start("storage-0")
    assert pid
    assert cluster.wait_ended(60) == "storage-0"
    assert "copy of an earlier state" in cluster.how_ended("storage-0")
