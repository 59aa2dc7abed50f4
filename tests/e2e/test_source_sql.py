"""The log by name, in SQL: `CREATE TABLE ... USING waltz OPTIONS (...)`, and queries of the table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from pyspark_waltz.testing import StubCluster
from tools.doc_blocks import blocks

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "spark.md"

Sql = Callable[[str], list[tuple[Any, ...]]]


@pytest.fixture
def log(stub: Callable[..., StubCluster]) -> StubCluster:
    """20 transactions in partition 0, 10 in partition 1."""
    cluster = stub(partitions=2)
    cluster.append(0, [b"a%d" % n for n in range(20)])
    cluster.append(1, [b"b%d" % n for n in range(10)])
    return cluster


@pytest.fixture
def sql(spark: Any) -> Iterator[Sql]:
    """Runs statements with the session catalog that docs/reference/spark.md names; drops the tables `log...` in the end."""
    name = "spark.sql.catalog.spark_catalog"
    before = spark.conf.get(name)
    spark.conf.set(name, "builtin")
    yield lambda text: [tuple(row) for row in spark.sql(text).collect()]
    for row in spark.sql("SHOW TABLES LIKE 'log*'").collect():
        spark.sql(f"DROP {'VIEW' if row.isTemporary else 'TABLE'} {row.tableName}")
    spark.conf.set(name, before)


def test_the_statements_of_the_page_run(sql: Sql, stub: Callable[..., StubCluster]) -> None:
    log = stub(partitions=4)
    log.append(0, [b"a%d" % n for n in range(20)])
    log.append(3, [b"b0"])
    shown = [block.text for block in blocks(PAGE.name, PAGE.read_text()) if block.language == "sql"]
    local = [block.replace("USING waltz", "USING waltz_stub").replace("10.0.0.5:5101", log.address) for block in shown]
    results = [[sql(statement) for statement in block.split(";\n") if statement] for block in local]
    (catalog, created, counted, read), (view,) = results
    assert (catalog, created, view) == ([("spark.sql.catalog.spark_catalog", "builtin")], [], [])
    assert (sorted(counted), [row[:2] for row in read]) == ([(0, 20), (3, 1)], [(0, 18), (0, 19)])
    assert sql("SELECT count(*) FROM log_now") == [(21,)]


def test_a_table_is_the_log_by_name_and_shows_what_is_appended_later(sql: Sql, log: StubCluster) -> None:
    sql(f"CREATE TABLE log USING waltz_stub OPTIONS (cluster '{log.address}') COMMENT 'the log' TBLPROPERTIES ('team' = 'ops')")
    assert sql("SELECT partition, count(*) FROM log GROUP BY partition ORDER BY partition") == [(0, 20), (1, 10)]
    found = sql("SELECT transaction_id, CAST(data AS STRING) FROM log WHERE partition = 0 AND transaction_id >= 18 ORDER BY transaction_id")
    assert found == [(18, "a18"), (19, "a19")]
    log.append(1, [b"later"])
    assert sql("SELECT CAST(data AS STRING) FROM log WHERE partition = 1 AND transaction_id = 10") == [("later",)]


def test_two_references_in_a_query_have_the_rows_of_their_own(sql: Sql, log: StubCluster) -> None:
    sql(f"CREATE TABLE log USING waltz_stub OPTIONS (cluster '{log.address}')")
    pair = "SELECT count(*) FROM log WHERE partition = 0 UNION ALL SELECT count(*) FROM log WHERE transaction_id < 3"
    assert sql(pair) == [(20,), (6,)]
    with pytest.raises(PySparkException, match=r"partitions cannot be in WITH .* of a query"):
        sql("SELECT count(*) FROM log WITH (partitions = '0')")


def test_the_options_of_a_table_hold_in_its_queries(sql: Sql, log: StubCluster) -> None:
    start = """startingTransactionIds '{"0": 15}', partitions '0', includeMetadata 'true'"""
    sql(f"CREATE TABLE log_end USING waltz_stub OPTIONS (cluster '{log.address}', {start})")
    assert sql("SELECT min(transaction_id), max(transaction_id), count(checksum) FROM log_end") == [(15, 19, 5)]
    sql(f"CREATE TABLE log_partitions USING waltz_stub OPTIONS (cluster '{log.address}', mode 'metadata')")
    assert sql("SELECT partition, high_water_mark FROM log_partitions ORDER BY partition") == [(0, 19), (1, 9)]


@pytest.mark.parametrize(
    ("statement", "reported"),
    [
        (
            "CREATE TABLE log USING waltz_stub OPTIONS (cluster '{a}', partitons '0')",
            "partitons: no such option of the source .did you mean",
        ),
        ("CREATE TABLE log USING waltz_stub OPTIONS (cluster '{a}', filterPushdown 'true')", "filterPushdown cannot be true for a table"),
        ("CREATE TABLE log USING waltz_stub", "cluster is required"),
    ],
)
def test_a_table_that_cannot_be_is_refused_when_it_is_made(sql: Sql, log: StubCluster, statement: str, reported: str) -> None:
    with pytest.raises(PySparkException, match=reported):
        sql(statement.format(a=log.address))


def test_a_table_with_columns_of_its_own_is_refused_with_the_reason(sql: Sql, log: StubCluster) -> None:
    sql(f"CREATE TABLE log (partition INT) USING waltz_stub OPTIONS (cluster '{log.address}')")
    with pytest.raises(PySparkException, match="only if the statement lists no columns"):
        sql("SELECT * FROM log")
