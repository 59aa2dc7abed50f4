"""The source over real processes: the page's examples, times and sizes as storage nodes report them, a node killed while executors read."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from deltalake import DeltaTable
from opentelemetry import trace

from tests.integration.log.span_collector import Collector, collector
from waltz_delta.base.stopping import StopRequest
from waltz_delta.pipelines.listener import StatusBoard
from waltz_delta.pipelines.pipeline import PipelineSettings
from waltz_delta.pipelines.pipeline_run import PipelineRun
from waltz_delta.settings import OutputSettings, TargetSettings
from waltz_log.client import ClientSettings, SyncWaltzClient
from waltz_log.processes.local_cluster import LocalCluster
from waltz_log.telemetry.settings import TracingSettings

pytestmark = pytest.mark.timeout(400)

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "spark.md"


@pytest.fixture(scope="module")
def spans() -> Iterator[Collector]:
    with collector() as found:
        yield found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, spans: Collector) -> Iterator[LocalCluster]:
    """Six transactions in partition 0, two in partition 1; tests append more."""
    tracing = {"tracing": {"endpoint": spans.address, "export_interval_s": 0.1}}
    with LocalCluster(tmp_path_factory.mktemp("cluster"), partitions=2, server_settings=tracing, storage_settings=tracing) as running:
        with SyncWaltzClient(running.cluster) as client:
            for n in range(6):
                client.append(0, b"%d" % n, header=n)
            for n in range(2):
                client.append(1, b"%d" % n)
        yield running


def test_the_examples_of_the_page_run(
    spark: Any, cluster: LocalCluster, offer_filters: Callable[[bool], None], capsys: pytest.CaptureFixture[str]
) -> None:
    programs = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(programs) >= 6
    namespace: dict[str, Any] = {"spark": spark, "cluster": cluster.cluster}
    try:
        for program in programs:
            exec(program, namespace)
    finally:
        for query in spark.streams.active:
            query.stop()
    shown = capsys.readouterr().out
    assert re.search(r"\|count\(1\)\|\n\+-+\+\n\| +8\|", shown)
    assert re.search(r"\|0 +\|0 +\|5 +\|127.0.0.1:\d+ *\|\[127.0.0.1:\d+, 127.0.0.1:\d+, 127.0.0.1:\d+\] *\|", shown)


def test_the_trace_of_an_append_ends_with_the_commit_of_its_row(spark: Any, cluster: LocalCluster, spans: Collector, tmp_path: Path) -> None:
    root = trace.SpanContext(0xABCDEF, 0xABC, is_remote=True, trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED))
    with SyncWaltzClient(cluster.cluster, ClientSettings(tracing=True)) as client, trace.use_span(trace.NonRecordingSpan(root)):
        receipt = client.append(0, b"traced")
    settings = PipelineSettings(
        name="traced",
        source={"cluster": cluster.cluster, "partitions": "0"},
        outputs=(OutputSettings(target=TargetSettings(table=str(tmp_path / "table"))),),
        checkpoint=str(tmp_path / "checkpoint"),
        trigger="available-now",
        tracing=TracingSettings(endpoint=spans.address, export_interval_s=0.1),
    )
    run = PipelineRun(spark, settings, StatusBoard(), StopRequest(spark), lambda name, line: None)
    run.run()
    assert run.failure is None
    found = spans.wait(f"{root.trace_id:032x}", lambda got: "waltz.delta.commit" in [span.name for span in got])
    commit = next(span for span in found if span.name == "waltz.delta.commit")
    assert (commit.service, commit.instance) == ("waltz-pipeline", "traced")
    place = {"waltz.partition": 0, "waltz.transaction_id": receipt.transaction_id}
    assert commit.attributes == {"waltz.pipeline": "traced", "waltz.tables": 1, "waltz.batch_id": 0, **place}
    (batch_trace,) = commit.links
    (batch,) = spans.wait(batch_trace, lambda got: len(got) == 1)
    assert (batch.name, batch.links) == ("waltz.delta.batch", (commit.trace,))
    appended = next(span for span in found if span.name == "waltz.server.append")
    assert appended.end_ns <= commit.start_ns <= commit.end_ns
    assert len({span.parent for span in found if span.name in ("waltz.server.append", "waltz.delta.commit")}) == 1


def test_times_and_sizes_are_reported_by_the_storage_nodes(spark: Any, cluster: LocalCluster, tmp_path: Path) -> None:
    def read(**options: str) -> Any:
        return spark.read.format("waltz").options(cluster=cluster.cluster, **options).load()

    with SyncWaltzClient(cluster.cluster) as client:
        before = client.append(0, b"early").transaction_id
        time.sleep(0.01)
        receipt = client.append(0, b"late" * 100)
    rows = {row.transaction_id: row for row in read(partitions="0", includeMetadata="true").collect()}
    late_ms = round(rows[receipt.transaction_id].timestamp.timestamp() * 1000)
    found = read(partitions="0", startingTimestamp=str(late_ms)).collect()
    assert [row.transaction_id for row in found] == [receipt.transaction_id]
    until = read(partitions="0", endingTimestamp=str(late_ms)).collect()
    assert max(row.transaction_id for row in until) == before

    batches: list[int] = []
    stream = spark.readStream.format("waltz").options(cluster=cluster.cluster, partitions="0", maxBytesPerTrigger="100").load()
    writer = stream.writeStream.foreachBatch(lambda batch, _: batches.append(batch.selectExpr("sum(40 + length(data))").first()[0]))
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    assert query.awaitTermination(240)
    sizes = [size for size in batches if size]
    assert sum(sizes) == sum(40 + len(row.data) for row in rows.values())
    assert all(size <= 100 or size == 440 for size in sizes)


def test_a_storage_node_killed_while_executors_read_costs_no_row(spark: Any, cluster: LocalCluster) -> None:
    with SyncWaltzClient(cluster.cluster) as client:
        for future in [client.append_nowait(n % 2, b"%d" % n + b"." * 200) for n in range(6000)]:
            future.result(60)
    rows = spark.read.format("waltz").options(cluster=cluster.cluster, maxRecordsPerPartition="100", fetchTimeoutMs="30000").load()
    unfinished = 0
    for _ in range(5):  # on a busy machine, the tasks may be over before the node is killed
        found, unfinished = _read_and_kill(spark, cluster, rows)
        assert {row["partition"] for row in found} == {0, 1}
        assert all(row["count(1)"] == row["max(transaction_id)"] + 1 for row in found)
        if unfinished > 5:
            break
    assert unfinished > 5, "the node was not killed while tasks ran"


def _read_and_kill(spark: Any, cluster: LocalCluster, rows: Any) -> tuple[list[Any], int]:
    """What was read, and how many tasks were not over when a storage node was killed."""
    tracker = spark.sparkContext.statusTracker()
    killed_after: list[int] = []
    done = threading.Event()

    def kill() -> None:
        while not done.wait(0.02):
            for stage in tracker.getActiveStageIds():
                info = tracker.getStageInfo(stage)
                if info is not None and info.numCompletedTasks >= 5:
                    cluster.kill("storage-0")
                    killed_after.append(info.numTasks - info.numCompletedTasks)
                    return

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        found = rows.groupBy("partition").agg({"transaction_id": "max", "*": "count"}).collect()
    finally:
        done.set()
        thread.join()
        if killed_after:
            cluster.start("storage-0")
    return found, sum(killed_after)


@contextmanager
def _refused_at_zookeepers_port(cluster: LocalCluster) -> Iterator[set[int]]:
    """ZooKeeper is away, and what connects to its port is closed at once. Yields the processes that tried."""
    port = int(cluster.coordinator.partition("/")[0].rpartition(":")[2])
    tried: set[int] = set()
    cluster.kill("zookeeper")
    with socket.create_server(("127.0.0.1", port)) as listener:

        def refuse() -> None:
            while True:
                try:
                    peer, (_, from_port) = listener.accept()
                except OSError:  # the test is over
                    return
                with peer:
                    ends = psutil.net_connections("tcp4")
                    owners = [each.pid for each in ends if each.laddr and each.raddr and (each.laddr.port, each.raddr.port) == (from_port, port)]
                    tried.update(-1 if pid is None else pid for pid in owners or [-1])

        thread = threading.Thread(target=refuse)
        thread.start()
        try:
            yield tried
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
    cluster.start("zookeeper")
    cluster.wait_ready()


def test_source_and_sink_work_while_zookeepers_port_refuses_and_connect_to_it_never(spark: Any, cluster: LocalCluster, tmp_path: Path) -> None:
    cluster.wait_ready()
    with _refused_at_zookeepers_port(cluster) as tried:
        with SyncWaltzClient(cluster.cluster) as client:
            last = client.append(1, b"while it is away").transaction_id
        source = {"cluster": cluster.cluster, "partitions": "1"}
        (row,) = spark.read.format("waltz").options(**source).load().orderBy("transaction_id").tail(1)
        assert (row.transaction_id, bytes(row.data)) == (last, b"while it is away")
        settings = PipelineSettings(
            name="away",
            source=source,
            outputs=(OutputSettings(target=TargetSettings(table=str(tmp_path / "table"))),),
            checkpoint=str(tmp_path / "checkpoint"),
            trigger="available-now",
        )
        run = PipelineRun(spark, settings, StatusBoard(), StopRequest(spark), lambda name, line: None)
        run.run()
        assert run.failure is None
        landed = DeltaTable(str(tmp_path / "table")).to_pyarrow_table(columns=["transaction_id"])["transaction_id"].to_pylist()
        assert sorted(landed) == list(range(last + 1))
        nodes = {each.pid for pid in cluster.processes.values() for each in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True))}
    assert tried, "the nodes try to return"
    assert tried <= nodes, "nodes alone"
