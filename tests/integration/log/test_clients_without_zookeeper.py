"""Clients while ZooKeeper is away: those that are connected, and new ones, as long as owners live."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from verification.console import console_of
from waltz_log.client import ClientSettings, Intent, SyncOutbox, SyncWaltzClient
from waltz_log.client.inspection.inspect import ClusterInspector
from waltz_log.processes.local_cluster import LocalCluster

AWAY_S = 12.0
"""Twice as long as a session of a server lasts."""


MINUTE_S = 60.0

STALL_MAX_S = 3.0
"""Half of a session of a server: nothing waits for ZooKeeper."""

CLIENT_PAUSE_S = 0.11
"""Eight new clients a second: so many get an id from the block of a server, which cannot reserve another one meanwhile."""

LAST = 9
"""The header of the last append."""


class Timed(list[float]):
    """The durations of blocks, in seconds."""

    def __enter__(self) -> None:
        self._began_s = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self.append(time.monotonic() - self._began_s)

    def __str__(self) -> str:
        return f"{len(self)}, median {1000 * statistics.median(self):.1f} ms, longest {1000 * max(self):.0f} ms"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("away"), partitions=2, storages=3, servers=2) as made:
        yield made


def test_clients_append_read_and_connect_while_zookeeper_is_away(cluster: LocalCluster, tmp_path: Path) -> None:
    settings = ClientSettings(append_timeout_s=20)
    with SyncWaltzClient(cluster.cluster, settings) as first:
        first.append(0, b"before")
        cluster.kill("zookeeper")
        away_s = time.monotonic()
        number = 0
        while time.monotonic() - away_s < AWAY_S:
            began_s = time.monotonic()
            with SyncWaltzClient(cluster.cluster, settings) as late:
                connected_s = time.monotonic() - began_s
                late.append(number % 2, b"%d" % number)
                assert next(iter(late.feed(0))).data == b"before"
            assert connected_s < 5.0
            first.append(number % 2, b"also")
            number += 1
            time.sleep(0.5)
        with ClusterInspector(cluster.cluster) as inspector:
            assert sum(bound.high_water_mark + 1 for bound in inspector.bounds().values()) == 1 + 2 * number
            assert [len(each) for each in inspector.replicas().values()] == [3, 3]
        cluster.start("zookeeper")
        cluster.wait_ready()
        first.append(1, b"after")
        with SyncOutbox(tmp_path, cluster.cluster) as outbox:
            outbox.submit(Intent.data(0, b"owed"))
            outbox.flush()


@pytest.mark.slow
def test_appends_feeds_and_new_clients_go_on_for_a_minute_without_zookeeper(cluster: LocalCluster) -> None:
    """docs/guides/operations.md has the figures that it prints."""
    settings = ClientSettings(append_timeout_s=20)
    with SyncWaltzClient(cluster.cluster, settings) as writer, SyncWaltzClient(cluster.cluster, settings) as reader:
        appends, connects, delays = Timed(), Timed(), Timed()
        mark = writer.append(0, b"%f" % time.monotonic()).transaction_id
        written, seen = set[int](), set[int]()

        def read() -> None:
            for transaction in reader.feed(0, mark):
                delays.append(time.monotonic() - float(transaction.data))
                seen.add(transaction.transaction_id)
                if transaction.header == LAST:
                    return

        cluster.kill("zookeeper")
        away_s = time.monotonic()
        with ThreadPoolExecutor(1) as threads:
            feeding = threads.submit(read)
            while (gone_s := time.monotonic() - away_s) < MINUTE_S:
                with connects, SyncWaltzClient(cluster.cluster, settings) as late:
                    pass
                with SyncWaltzClient(cluster.cluster, settings) as late:
                    for client in (writer, late):
                        began = time.monotonic()
                        with appends:
                            receipt = client.append(0, b"%f" % began)
                        written.add(receipt.transaction_id)
                time.sleep(CLIENT_PAUSE_S)
            cluster.start("zookeeper")
            cluster.wait_ready()
            written.add(writer.append(0, b"%f" % time.monotonic(), header=LAST).transaction_id)
            feeding.result(30)
        print(f"away_s={gone_s:.0f} appends: {appends}; connects: {connects}; from the call of append to the reader: {delays}")
        assert seen == written, "the feed has everything"
        assert max(appends) < STALL_MAX_S
        assert max(connects) < STALL_MAX_S
        assert max(delays) < STALL_MAX_S


def _waltz(*arguments: str) -> str:
    done = subprocess.run([sys.executable, "-P", "-m", "waltz_log.cli", *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_commands_and_the_console_work_while_zookeeper_is_away(cluster: LocalCluster) -> None:
    with SyncWaltzClient(cluster.cluster) as client:
        _waltz("cluster", "grow", cluster.coordinator, "--partitions", "4")
        _waltz("topic", "create", cluster.cluster, "shop/orders", "--partitions", "2")
        receipt = client.topic("shop/orders").append(b"three chairs", partition=1)
        partition = client.topic("shop/orders").log_partition(1)
    cluster.kill("zookeeper")
    try:
        time.sleep(AWAY_S)
        (listed,) = json.loads(_waltz("topic", "list", cluster.cluster, "--output", "json"))
        assert (listed["topic"], listed["state"]) == ("shop/orders", "active")
        described = json.loads(_waltz("topic", "describe", cluster.cluster, "shop/orders", "--output", "json"))
        assert [each["high_water_mark"] for each in described["partitions"]] == [-1, 0]
        traced = json.loads(
            _waltz("trace", cluster.cluster, "-p", str(partition), "-t", str(receipt.transaction_id), "--output", "json", "--timeout", "10")
        )
        assert [each["holds"] for each in traced["replicas"]] == [True, True, True]
        late = _lag_of_a_checkpoint(cluster, partition)
        assert (late["kind"], late["lag"]) == ("checkpoint", 1)
        with console_of(cluster) as console, httpx.Client(base_url=f"http://127.0.0.1:{console.port}", timeout=30) as browser:
            for path in ("/", "/partitions", f"/partitions/{partition}", "/transactions", "/conflicts", "/topics", "/topics/shop/orders", "/nodes"):
                answer = browser.get(path)
                assert answer.status_code == 200, (path, answer.text)
            assert "three chairs" in browser.get("/transactions?topic=shop/orders").text
            assert "have not reached the coordinator" in browser.get("/").text
            traced_page = browser.get(f"/transactions/{partition}/{receipt.transaction_id}/replicas", headers={"hx-request": "true"}).text
            assert "storage-2" in traced_page
    finally:
        cluster.start("zookeeper")
        cluster.wait_ready()


def _lag_of_a_checkpoint(cluster: LocalCluster, partition: int) -> dict[str, object]:
    """Of a query that has read nothing of the partition."""
    folder = cluster.directory / "checkpoint"
    for kind in ("offsets", "commits"):
        (folder / kind).mkdir(parents=True)
    (folder / "offsets" / "0").write_text(f'v1\n{{"batchWatermarkMs":0}}\n{{"logOffset":1}}\n{json.dumps({str(partition): 0})}')
    (folder / "commits" / "0").write_text('v1\n{"nextBatchWatermarkMs":0}')
    (found,) = json.loads(_waltz("lag", cluster.cluster, "--checkpoint", str(folder), "--output", "json"))
    return dict(found)
