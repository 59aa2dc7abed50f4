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
from deltalake import DeltaTable
from pyspark.errors import PySparkException

from waltz_delta import high_water_marks
from waltz_delta.jobs.audit import audit_pipeline
from waltz_delta.jobs.backfill import fill, pieces, where_to_begin
from waltz_delta.landing.landing import Landing
from waltz_delta.pipelines.listener import StatusBoard
from waltz_delta.pipelines.pipeline import PipelineSettings
from waltz_delta.pipelines.pipeline_run import PipelineRun
from waltz_delta.settings import DecodeSettings, OutputSettings, TargetSettings
from waltz_log.cli.main import run as command_line
from waltz_log.client import SyncWaltzClient
from waltz_log.client.inspection.inspect import ClusterInspector
from waltz_log.processes.local_cluster import LocalCluster

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
        create = [
            "topic",
            "create",
            cluster.cluster,
            "shop/stock",
            "--partitions",
            "2",
            "--type",
            "compaction",
            "--policy",
            "retention_bytes=200000",
        ]
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
        named = re.search(r"transactions lost to this query: trimmed[^:]*: partition=(\d) first=0 last=(\d+)", str(raised.value))
        assert named is not None, "what was trimmed is named"
        assert int(named[2]) >= now[int(named[1])][0] - 1
        compacted = spark.read.format("waltz").options(cluster=cluster.cluster, topic="shop/stock", compacted="true").load().collect()
        state: dict[bytes, bytes] = {}
        for row in sorted(compacted, key=lambda row: (row.partition, row.transaction_id)):
            state[bytes(row.key)] = bytes(row.data)
        assert len(compacted) < ROUNDS * BATCH
        assert {key: data for key, data in state.items() if data} == {key: data for key, data in appender.state.items() if data}


def test_a_pipeline_over_one_topic_of_several_lands_its_partitions_and_backfill_and_audit_agree(spark: Any, tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "cluster", partitions=4, servers=1, storages=1) as cluster:
        for name, more in (("air/seats", []), ("shop/orders", ["--keyed"])):
            assert command_line(["topic", "create", cluster.cluster, name, "--partitions", "2", *more]) == 0
        with SyncWaltzClient(cluster.cluster) as client:
            client.topic("air/seats").append_bulk([b"of another topic"] * 10)
            client.topic("shop/orders").append_bulk([(b"k%d" % n, b'{"n": %d}' % n) for n in range(60)])
            marks = {p: mark for p in range(4) if (mark := client.high_water_mark(p)) >= 0}
        table = str(tmp_path / "orders")
        decode = DecodeSettings(format="json", columns="n BIGINT")
        settings = PipelineSettings(
            name="orders",
            source={"cluster": cluster.cluster, "topic": "shop/orders"},
            outputs=(OutputSettings(target=TargetSettings(table=table), decode=decode),),
            checkpoint=str(tmp_path / "checkpoint"),
            trigger="available-now",
        )
        with ClusterInspector(cluster.cluster) as inspector:
            wanted = settings.options.wanted_partitions(inspector.catalogue)
            key = str(inspector.parameters.key)
            extents = {p: (bound.first_transaction_id, bound.high_water_mark) for p, bound in inspector.bounds(wanted).items()}
        assert wanted == (2, 3)
        landing = Landing(settings, key)
        starts = where_to_begin(spark, landing, {p: first for p, (first, _) in extents.items()})
        half = {p: last // 2 for p, (_, last) in extents.items()}
        fill(spark, settings, landing, list(pieces(starts, half, 1000)))
        run = PipelineRun(spark, settings, StatusBoard(), NoStop(), lambda name, line: None)
        run.start()
        run.join(240)
        assert (run.is_alive(), run.failure, run.error) == (False, None, None)
        rows = DeltaTable(table).to_pyarrow_table(columns=["topic", "key", "n", "partition", "transaction_id"]).to_pylist()
        assert sorted((row["topic"], row["key"], row["n"]) for row in rows) == sorted(("shop/orders", b"k%d" % n, n) for n in range(60))
        assert {row["partition"] for row in rows} == {2, 3}
        assert high_water_marks(table) == {p: marks[p] for p in (2, 3)}
        (audited,) = audit_pipeline(spark, settings, key, lambda: extents)
        assert [str(difference) for difference in audited.differences] == []
        assert set(audited.partitions) == {2, 3}


class NoStop:
    """No caller asks for one."""

    asked = False

    def wait(self, seconds: float) -> bool:
        time.sleep(min(seconds, 0.1))
        return False
