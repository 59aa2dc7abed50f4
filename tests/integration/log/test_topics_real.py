"""A compaction topic in a cluster of real processes: trimmed, compacted, held by a subscriber, shown by the commands, whole after a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from waltz_log.client import SyncSubscribers, SyncWaltzClient
from waltz_log.errors import OutOfRange
from waltz_log.processes.local_cluster import LocalCluster

KEYS = 5
VALUES = 300


def waltz(*arguments: str | Path) -> str:
    ended = subprocess.run([sys.executable, "-m", "waltz_log.cli", *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def until(condition: Callable[[], bool], timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(0.5)


@pytest.mark.slow
def test_a_topic_is_trimmed_up_to_its_subscriber_and_its_view_keeps_the_latest_of_each_key(tmp_path: Path) -> None:
    small = {"segment_bytes": 8192, "disk_warn_free_bytes": 0, "disk_refuse_free_bytes": 0}
    with LocalCluster(tmp_path, partitions=1, servers=1, session_timeout_s=2, storage_settings=small, server_settings={"upkeep_s": 0.2}) as cluster:
        waltz("topic", "create", cluster.cluster, "shop/prices", "--partitions", "1", "--type", "compaction", "--policy", "retention_bytes=0")

        def described() -> dict[str, Any]:
            found: dict[str, Any] = json.loads(waltz("topic", "describe", cluster.cluster, "shop/prices", "--output", "json"))["partitions"][0]
            return found

        with SyncSubscribers(cluster.cluster) as subscribers, SyncWaltzClient(cluster.cluster) as client:
            subscribers.register("reports", {0: -1}, {"host": "test"})
            topic = client.topic("shop/prices")
            for n in range(VALUES):
                topic.append(b"%d|" % n + bytes(100), key=b"k%d" % (n % KEYS))
            until(lambda: all(view["bound"] == VALUES for view in described()["view"].values()) and len(described()["view"]) == 3)
            place = described()
            assert (place["first_retained"], place["held_by"]) == (0, "subscriber reports")
            assert place["subscribers"]["reports"]["lag_transactions"] == VALUES
            (reported,) = json.loads(waltz("subscriber", "list", cluster.cluster, "--output", "json"))
            assert reported["partitions"][0]["lag_transactions"] == VALUES
            assert "reports" in waltz("topic", "describe", cluster.cluster, "shop/prices")
            subscribers.report("reports", {0: VALUES - 1})
            until(lambda: described()["first_retained"] > VALUES // 2)
            os.kill(cluster.processes["storage-1"], signal.SIGKILL)
            first = described()["first_retained"]
            with pytest.raises(OutOfRange) as gone:
                next(iter(client.feed(0)))
            assert (gone.value.first, gone.value.last) == (first, VALUES - 1)
            latest = {}
            for record in topic.feed(compacted=True):
                latest[record.key] = record.value.partition(b"|")[0]
                if record.transaction_id == VALUES - 1:
                    break
            assert latest == {b"k%d" % (n % KEYS): b"%d" % n for n in range(VALUES - KEYS, VALUES)}
        assert "removed: reports" in waltz("subscriber", "remove", cluster.cluster, "reports")
        assert (tmp_path / "storage-0" / "shop" / "prices" / "0" / "metadata").exists()
    for name in ("storage-0", "storage-1", "storage-2"):
        assert "compacted view shop/prices/0 up to 300" in waltz("storage", "verify", tmp_path / name)
