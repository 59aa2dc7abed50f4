"""One real local Spark for all of these tests, and logs to read from. A session costs ten seconds and a first batch five: share, and keep batches
few."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.submitted import ROOT, SUBMIT, Submit
from waltz_delta.launch import clean_environment, enter_environment

JARS = ROOT / ".cache" / "delta-jars"

ARCHIVE = ROOT / ".cache" / "spark.jsa"
LOGGING = ROOT / "conf" / "log4j2.properties"
SHORT_LIVED = "-XX:TieredStopAtLevel=1"
"""For drivers that end before the optimizing compiler has paid for itself: for a few commits they need four tenths less processor time."""

INTERPRETED: dict[str, Any] = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""For plans of a few rows: a compiled class for each is a fifth of these tests. Jobs, the demo and chaos run as users run them."""


@pytest.fixture(scope="session")
def spark_environment() -> dict[str, str]:
    """For processes that start Spark: this interpreter for workers, the project's settings, and nothing of the caller's Spark."""
    return {**clean_environment(), "SPARK_SUBMIT_OPTS": SHORT_LIVED}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, spark_environment: dict[str, str]) -> Iterator[Any]:
    assert list(JARS.glob("*.jar")), f"no jars in {JARS}: run make setup"
    enter_environment()
    os.environ.update(spark_environment)
    from pyspark.sql import SparkSession

    from pyspark_waltz.testing import StubSource

    session = (
        SparkSession.builder.master("local[2]")
        .appName("tests")
        .config("spark.driver.extraClassPath", f"{JARS}/*")
        .config("spark.driver.extraJavaOptions", f'"-Dlog4j2.configurationFile={LOGGING}" -XX:+UseSerialGC "-XX:SharedArchiveFile={ARCHIVE}"')
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.databricks.delta.snapshotPartitions", "2")
        .config("spark.sql.codegen.cache.maxEntries", "1000")
        .config("spark.sql.sources.parallelPartitionDiscovery.parallelism", "2")  # VACUUM lists with this many tasks
        .config(map=INTERPRETED)
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.driver.memory", "1g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    session.dataSource.register(StubSource)
    yield session
    session.stop()


@pytest.fixture
def submit(spark_environment: dict[str, str]) -> Iterator[Submit]:
    """Starts spark-submit; what still runs at the end of a test is killed."""
    started: list[subprocess.Popen[str]] = []

    def start(script: str, *arguments: str) -> subprocess.Popen[str]:
        command = [*SUBMIT, str(ROOT / script), *arguments]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, cwd=ROOT, env=spark_environment, stdout=pipe, stderr=subprocess.STDOUT, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def offer_filters(spark: Any) -> Iterator[Callable[[bool], None]]:
    """Has Spark offer filters to sources written in Python, or not, for one test. The session is shared: what was set before comes back."""
    name = "spark.sql.python.filterPushdown.enabled"
    before = spark.conf.get(name)
    yield lambda offered: spark.conf.set(name, str(offered).lower())
    spark.conf.set(name, before)


@pytest.fixture
def stub(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Makes `StubCluster`s, and closes them."""
    from pyspark_waltz.testing import StubCluster

    made: list[StubCluster] = []

    def make(**settings: Any) -> StubCluster:
        cluster = StubCluster(tmp_path, **settings)
        made.append(cluster)
        return cluster

    yield make
    for cluster in made:
        cluster.close()
