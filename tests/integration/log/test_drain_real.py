"""`waltz drain` on a cluster of real processes, with appends going on: a storage node although the command is killed halfway, then a log server."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from waltz_log.client import ClientSettings, SyncWaltzClient
from waltz_log.processes.local_cluster import LocalCluster

pytestmark = pytest.mark.long

WALTZ = [sys.executable, "-m", "waltz_log.cli"]
PARTITIONS = 4


class Appending:
    """Appends to all partitions in turn, in a thread, and remembers what was acknowledged."""

    def __init__(self, cluster: str) -> None:
        self._client = SyncWaltzClient(cluster, ClientSettings(append_timeout_s=60.0))
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.acknowledged: dict[int, dict[int, bytes]] = {partition: {} for partition in range(PARTITIONS)}
        self.error: BaseException | None = None
        self._thread.start()

    def _run(self) -> None:
        number = 0
        try:
            while not self._ended.is_set():
                data = b"%d" % number
                receipt = self._client.append(number % PARTITIONS, data)
                self.acknowledged[receipt.partition][receipt.transaction_id] = data
                number += 1
                time.sleep(0.01)
        except BaseException as error:
            self.error = error

    @property
    def count(self) -> int:
        return sum(len(each) for each in self.acknowledged.values())

    def end(self) -> None:
        self._ended.set()
        self._thread.join(120)
        assert not self._thread.is_alive()
        self._client.close()
        if self.error is not None:
            raise self.error


def _waltz(*arguments: str, code: int = 0) -> Any:
    found = subprocess.run([*WALTZ, *arguments, "--output", "json"], capture_output=True, text=True, timeout=240, check=False)
    assert found.returncode == code, found.stderr
    return json.loads(found.stdout)


def _until(condition: Callable[[], bool], timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(0.05)


@contextmanager
def _killed_after_a_move(*arguments: str) -> Any:
    """Runs a command up to its first complete move, then kills it."""
    with subprocess.Popen([*WALTZ, *arguments], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "of" in line and "partitions moved" in line:
                process.send_signal(signal.SIGKILL)
                break
        else:
            raise AssertionError("the command ended before it could be killed")
    yield process.returncode


def test_a_storage_node_and_a_server_are_drained_while_clients_append(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, partitions=PARTITIONS, servers=2, storages=4, session_timeout_s=2) as cluster:
        address = cluster.coordinator
        appending = Appending(cluster.cluster)
        try:
            _until(lambda: appending.count > 50)
            planned = _waltz("drain", address, "storage-0", "--dry-run")
            assert len(planned["moves"]) == 3
            with _killed_after_a_move("drain", address, "storage-0", "--at-once", "1") as code:
                assert code == -signal.SIGKILL
            listed = _waltz("cluster", "replica", "list", address)
            assert 0 < listed["nodes"]["storage-0"] < len(planned["moves"])
            result = _waltz("drain", address, "storage-0")
            assert (result["drained"], result["left"]) == (True, [])
            listed = _waltz("cluster", "replica", "list", address)
            assert listed["nodes"]["storage-0"] == 0
            assert {len(each["replicas"]) for each in listed["partitions"]} == {3}
            cluster.kill("storage-0")
            status = _waltz("cluster", "status", address, "--wait", "60")
            assert status["drained"] == ["storage-0"]
            server = status["servers"][0]
            assert _waltz("drain", address, str(server["server_id"]))["left"] == []
            status = _waltz("cluster", "status", address, "--wait", "60")
            assert {each["server_id"] for each in status["partitions"]} == {status["servers"][1]["server_id"]}
            before = appending.count
            _until(lambda: appending.count > before + 20)
        finally:
            appending.end()
        with SyncWaltzClient(cluster.cluster) as client:
            for partition, acknowledged in appending.acknowledged.items():
                assert acknowledged
                found = {each.transaction_id: each.data for each in client.fetch(partition, sorted(acknowledged))}
                assert found == acknowledged
