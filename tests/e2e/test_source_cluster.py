"""The source over real processes: the page's examples, times and sizes as storage nodes report them, a node killed while executors read."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from waltz_log.client import SyncWaltzClient
from waltz_log.processes.local_cluster import LocalCluster

pytestmark = pytest.mark.timeout(400)

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "spark.md"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Six transactions in partition 0, two in partition 1; tests append more."""
    with LocalCluster(tmp_path_factory.mktemp("cluster"), partitions=2) as running:
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
    assert killed_after, "the node was not killed while tasks ran"
    assert killed_after[0] > 5
    assert {row["partition"] for row in found} == {0, 1}
    assert all(row["count(1)"] == row["max(transaction_id)"] + 1 for row in found)
