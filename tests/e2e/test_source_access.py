"""Spark over mutual TLS, with rules of access: a job reads the topic that its principal may read, and is refused another one with the reason."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from pyspark_waltz import DefaultSource
from waltz_log.cli.main import run as command_line
from waltz_log.client import ClientSettings, SyncWaltzClient
from waltz_log.processes.local_cluster import LocalCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

JOB = "spiffe://waltz/reader/job"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with (
        LocalCluster(tmp_path_factory.mktemp("cluster"), partitions=2, storages=1, servers=1, secure=True) as cluster,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in cluster.variables("operator", "dev").items():
            patch.setenv(name, value)
        for topic in ("shop/orders", "shop/secrets"):
            assert command_line(["topic", "create", cluster.cluster, topic, "--partitions=1"]) == 0
        assert command_line(["access", "grant", cluster.coordinator, JOB, "read", "shop/orders"]) == 0
        with SyncWaltzClient(cluster.cluster, ClientSettings(tls=cluster.certificate("operator", "dev"))) as client:
            for number in range(5):
                client.topic("shop/orders").append(b"%d" % number, partition=0)
            client.topic("shop/secrets").append(b"swordfish", partition=0)
        yield cluster


@pytest.fixture(scope="module")
def source(spark: Any, cluster: LocalCluster) -> str:
    """The name of a source whose Python processes, of driver and executors, have the certificate of the job. The session is shared, so they do not
    have it from the environment of the whole session."""

    class JobSource(DefaultSource):
        @classmethod
        def name(cls) -> str:
            return "waltz_of_job"

    given = spark.sparkContext.environment
    variables = cluster.variables("reader", "job")
    given.update(variables)
    try:
        spark.dataSource.register(JobSource)
    finally:
        for name in variables:
            del given[name]
    return "waltz_of_job"


def test_a_job_reads_what_its_principal_may_read_and_a_revocation_ends_its_query(
    spark: Any, cluster: LocalCluster, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = spark.read.format(source).options(cluster=cluster.cluster, topic="shop/orders").load()
    assert sorted(bytes(row.data) for row in orders.collect()) == [b"0", b"1", b"2", b"3", b"4"]
    with pytest.raises(PySparkException, match="no such topic: shop/secrets"):
        spark.read.format(source).options(cluster=cluster.cluster, topic="shop/secrets").load().collect()

    stream = spark.readStream.format(source).options(cluster=cluster.cluster, topic="shop/orders").load()
    query = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(processingTime="0 seconds").start()
    try:
        until = time.monotonic() + 120
        while not any(each["numInputRows"] for each in query.recentProgress):
            assert query.isActive, query.exception()
            assert time.monotonic() < until
            time.sleep(0.1)
        for name, value in cluster.variables("operator", "dev").items():
            monkeypatch.setenv(name, value)
        assert command_line(["access", "revoke", cluster.coordinator, JOB]) == 0
        with pytest.raises(PySparkException, match=rf"permission denied: no rule permits {JOB} to (read shop/orders|follow the cluster)"):
            query.awaitTermination(120)
    finally:
        query.stop()
