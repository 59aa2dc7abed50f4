"""A real cluster whose topic is appended to, compacted and trimmed while Spark reads it: nothing above the bound is lost, the rest is named, and the
compacted view with the log behind it is the state of all that was appended."""

from __future__ import annotations

import json
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from waltz_log.cli.main import run as command_line
from waltz_log.client import SyncWaltzClient
from waltz_log.client.inspect import ClusterInspector
from waltz_log.testing.local import LocalCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

KEYS = 40
ROUNDS = 60
BATCH = 150


class Appender(threading.Thread):
    """Appends rounds of keyed transactions and keeps the state that they leave."""

    def __init__(self, cluster: str) -> None:
        super().__init__()
        self._cluster = cluster
        self.state: dict[bytes, bytes | None] = {}
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with SyncWaltzClient(self._cluster) as client:
                topic = client.topic("shop/stock")
                for number in range(ROUNDS):
                    ended = number % 17
                    text = b"." * 200
                    entries = [(b"k%d" % (n * n % KEYS), None if n % 17 == ended else b"%d/%d|" % (number, n) + text) for n in range(BATCH)]
                    done = topic.append_bulk(entries)
                    done.raise_failed()
                    self.state |= dict(entries)
                    time.sleep(0.2)
        except BaseException as error:
            self.error = error


def ends(cluster: str) -> dict[int, tuple[int, int]]:
    """First retained and last id of each partition."""
    with ClusterInspector(cluster) as inspector:
        return {p: (bound.first_transaction_id, bound.high_water_mark) for p, bound in inspector.bounds().items()}


def test_a_stream_over_a_topic_that_is_trimmed_and_compacted(spark: Any, tmp_path: Path) -> None:
    storage = {"segment_bytes": 65_536}
    with LocalCluster(tmp_path / "cluster", partitions=2, servers=1, storage_settings=storage, server_settings={"upkeep_s": 1.0}) as cluster:
        create = ["topic", "create", cluster.cluster, "shop/stock", "--partitions", "2", "--type", "compaction", "--policy", "retention_bytes=200000"]
        assert command_line(create) == 0
        appender = Appender(cluster.cluster)
        appender.start()
        stream = spark.readStream.format("waltz").options(cluster=cluster.cluster, topic="shop/stock", failOnDataLoss="false").load()
        query = (
            stream.drop("data")
            .writeStream.format("parquet")
            .options(path=str(tmp_path / "out"), checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(processingTime="1 second")
            .start()
        )
        appender.join(300)
        assert appender.error is None
        final = ends(cluster.cluster)
        assert sum(last + 1 for _, last in final.values()) == ROUNDS * BATCH
        deadline = time.monotonic() + 120
        while not query.lastProgress or any(
            json.loads(query.lastProgress.sources[0].endOffset).get(str(p), 0) <= last for p, (_, last) in final.items()
        ):
            assert time.monotonic() < deadline
            assert query.exception() is None
            time.sleep(0.5)
        query.stop()
        deadline = time.monotonic() + 120
        while any(first < last - 1500 for first, last in ends(cluster.cluster).values()):
            assert time.monotonic() < deadline, "retention has taken most of it"
            time.sleep(0.5)
        now = ends(cluster.cluster)
        rows = spark.read.parquet(str(tmp_path / "out")).select("partition", "transaction_id").collect()
        read: dict[int, list[int]] = {0: [], 1: []}
        for row in rows:
            read[row.partition].append(row.transaction_id)
        for partition, (first, last) in now.items():
            assert len(set(read[partition])) == len(read[partition]), "nothing twice"
            assert set(range(first, last + 1)) <= set(read[partition]), "nothing above the bound is lost"
        beginning = {"startingTransactionIds": json.dumps({str(p): 0 for p in now})}
        with pytest.raises(PySparkException) as raised:
            spark.read.format("waltz").options(cluster=cluster.cluster, topic="shop/stock", **beginning).load().count()
        named = re.search(r"transactions lost to this query: partition=(\d) first=0 last=(\d+) reason=trimmed", str(raised.value))
        assert named is not None, "what was trimmed is named"
        assert int(named[2]) >= now[int(named[1])][0] - 1
        compacted = spark.read.format("waltz").options(cluster=cluster.cluster, topic="shop/stock", compacted="true").load().collect()
        state: dict[bytes, bytes] = {}
        for row in sorted(compacted, key=lambda row: (row.partition, row.transaction_id)):
            state[bytes(row.key)] = bytes(row.data)
        assert len(compacted) < ROUNDS * BATCH
        assert {key: data for key, data in state.items() if data} == {key: data for key, data in appender.state.items() if data}
