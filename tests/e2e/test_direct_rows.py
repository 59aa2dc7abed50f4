"""Rows that a task of the Arrow engine reads, decodes and writes by itself are those that Spark would make of the same transactions: tables, marks,
dead letters and errors, for each format and mode. What the engine cannot do by itself still goes through Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from pyspark_waltz.options import SourceOptions
from pyspark_waltz.range_rows import is_of_ranges, transactions_schema
from pyspark_waltz.schema import SCHEMA
from pyspark_waltz.testing import StubCluster
from waltz_delta import high_water_marks
from waltz_delta.decode.simple_projection import parse_where
from waltz_delta.engine import arrow_transaction
from waltz_delta.engine.packed_rows import collect_direct
from waltz_delta.engine.written_files import write_direct
from waltz_delta.errors import Undecodable
from waltz_delta.landing import merge_sink
from waltz_delta.landing.landing import Landing
from waltz_delta.settings import LandingSettings
from waltz_log.errors import InvalidSetting

pytestmark = pytest.mark.timeout(600)

KEY = "7a1e1d7e-0000-0000-0000-000000000000"
Stub = Callable[..., StubCluster]
COLUMNS = "k STRING, n INT, at TIMESTAMP, amount DECIMAL(9,2)"


def document(n: int) -> bytes:
    if n % 50 == 7:
        return b'{"k": 1, "n": "no number"}'
    return json.dumps({"k": f"key {n % 20}" if n % 9 else None, "n": n, "at": f"2026-01-02T03:{n % 60:02}:00Z", "amount": n / 4}).encode()


def packed(n: int) -> bytes:
    sink = pa.BufferOutputStream()
    batch = pa.record_batch({"k": pa.array([f"key {n % 20}", None]), "n": pa.array([n, -n], pa.int32())})
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return bytes(sink.getvalue()) if n % 50 != 7 else b"no stream"


def log(stub: Stub, made: Callable[[int], bytes] = document, count: int = 300) -> StubCluster:
    """Keys stay in their partition."""
    cluster = stub(partitions=2)
    for partition in (0, 1):
        for first in range(0, count, 100):
            cluster.append(partition, [made(n) for n in range(first, first + 100) if n % 20 % 2 == partition], headers=lambda id: id % 3)
    return cluster


class Counted:
    """How many jobs made rows without Spark."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.direct = 0
        monkeypatch.setattr(arrow_transaction, "write_direct", self._counting(write_direct))
        monkeypatch.setattr(merge_sink, "collect_direct", self._counting(collect_direct))

    def _counting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            self.direct += 1
            return original(*arguments)

        return run


def landed(spark: Any, cluster: StubCluster, mode: str, folder: Path, output: dict[str, Any], **more: Any) -> Landing:
    """The log in the table `folder/table`, half by half."""
    declared = {**output, "target": {"table": str(folder / "table"), "engine": "arrow", **output.get("target", {})}}
    settings = LandingSettings.model_validate({"outputs": [declared], **more})
    landing = Landing(settings, KEY)
    for start, end in ((0, 60), (60, -1)):
        bounds = {
            "startingTransactionIds": json.dumps({"0": start, "1": start}),
            "endingTransactionIds": json.dumps({"0": end, "1": end}),
        }
        landing.write(spark.read.format("waltz_stub").options(cluster=cluster.address, mode=mode, **bounds).load())
    return landing


def content(folder: Path, name: str = "table") -> list[dict[str, Any]]:
    rows = DeltaTable(str(folder / name)).to_pyarrow_table().to_pylist()
    return sorted(({key: value for key, value in row.items() if key != "failed_at"} for row in rows), key=repr)


JSON = {"format": "json", "columns": COLUMNS}
TEXTS = [
    *("tail IS NOT NULL", "tail is null", "tail = 'N1'", "tail <> 'N1'", "tail != 'n1'", "tail > 'N1'", "tail <= ''", "tail IN ('N2', 'é')"),
    *("leg >= 2", "leg < 3000000000", "leg = 2147483648", "leg IN (1, 3, -5)", "total < 8", "TOTAL = 1099511627776", "total > -999999999999999999"),
    *("leg = 007", "`leg` > 0 AND tail IS NOT NULL and leg<2", "total IS NOT  NULL\nAND leg <> 1"),
]
UPSERT = {"mode": "upsert", "keys": ["k"]}


@pytest.mark.parametrize(
    ("output", "made"),
    [
        ({"decode": JSON}, document),
        ({"decode": JSON, "projection": {"where": "k IS NOT NULL AND n >= 5", "select": "k AS name, n, at"}}, document),
        ({"decode": {"format": "bytes"}}, document),
        ({"decode": JSON, "route": {"headers": [1, 2]}}, document),
        ({"decode": {"format": "arrow", "columns": "k STRING, n INT"}}, packed),
        ({"decode": JSON, "projection": {"where": "k IS NOT NULL"}, "target": UPSERT}, document),
        ({"decode": JSON, "projection": {"where": "k IS NOT NULL"}, "target": {"mode": "history", "keys": ["k"]}}, document),
    ],
    ids=["json", "projected", "bytes", "routed", "arrow", "upsert", "history"],
)
def test_tasks_make_the_rows_that_spark_makes(
    spark: Any, stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: dict[str, Any], made: Callable[[int], bytes]
) -> None:
    cluster, counted = log(stub, made), Counted(monkeypatch)
    found = []
    for mode in ("data", "ranges"):
        folder = tmp_path / mode
        landing = landed(spark, cluster, mode, folder, output, dead_letters={"table": str(folder / "letters"), "engine": "arrow"})
        marks = high_water_marks(str(folder / "table"), KEY)
        letters = content(folder, "letters")
        assert len(letters) == landing.statistics().dead_letters
        found.append((content(folder), marks, [{**row, "target": ""} for row in letters]))
        assert counted.direct == (0 if mode == "data" else 2)
    assert found[0] == found[1]
    assert found[0][0], "the table has rows"
    assert found[0][1] == {0: 149, 1: 149}
    assert len(found[0][2]) == (0 if output["decode"]["format"] == "bytes" else 4 if "route" in output else 6)
    assert DeltaTable(str(tmp_path / "data" / "table")).schema() == DeltaTable(str(tmp_path / "ranges" / "table")).schema()


@pytest.mark.parametrize(
    "output",
    [
        {"decode": JSON, "target": {"layout": {"partition_by": ["k"]}}},
        {"decode": JSON, "projection": {"where": "n % 2 = 0", "select": "k, n + 1 AS n"}},
        {"decode": {**JSON, "columns": COLUMNS.replace("k STRING", "k STRING NOT NULL")}, "target": {**UPSERT, "deletes": {"where": "n > 290"}}},
        {"decode": {**JSON, "columns": f"{COLUMNS}, any VARIANT"}, "target": {"engine": "spark"}},
        {"decode": JSON, "target": {"engine": "spark"}},
    ],
    ids=["partitioned", "expressions", "deletes", "variant", "spark"],
)
def test_what_needs_spark_is_read_from_ranges_too(
    spark: Any, stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: dict[str, Any]
) -> None:
    cluster, counted = log(stub), Counted(monkeypatch)
    found = []
    for mode in ("data", "ranges"):
        folder = tmp_path / mode
        landed(spark, cluster, mode, folder, output, dead_letters={"table": str(folder / "letters")})
        rows = spark.read.format("delta").load(str(folder / "table"))
        found.append(sorted((row.asDict() for row in rows.drop("any").collect()), key=repr))
    assert found[0] == found[1]
    assert found[0]
    assert counted.direct == 0


def test_a_batch_that_the_table_holds_in_part_lands_the_other_part(spark: Any, stub: Stub, tmp_path: Path) -> None:
    """As after the loss of a checkpoint, and after a driver died between the commits of two tables."""
    cluster = log(stub)
    whole = spark.read.format("waltz_stub").options(cluster=cluster.address, mode="ranges").load()
    settings = LandingSettings.model_validate({"outputs": [{"decode": {**JSON, "undecodable": "skip"}, "target": {"table": str(tmp_path / "t")}}]})
    first = spark.read.format("waltz_stub").options(cluster=cluster.address, mode="ranges", endingTransactionIds='{"0": 70, "1": 0}').load()
    Landing(settings, KEY).write(first)
    assert high_water_marks(str(tmp_path / "t"), KEY) == {0: 69}
    for _ in range(2):
        Landing(settings, KEY).write(whole)
    rows = DeltaTable(str(tmp_path / "t")).to_pyarrow_table()
    places = sorted(zip(rows["partition"].to_pylist(), rows["transaction_id"].to_pylist(), strict=True))
    assert len(set(places)) == len(places) == 300 - 6
    assert high_water_marks(str(tmp_path / "t"), KEY) == {0: 149, 1: 149}


@pytest.mark.parametrize("data", [b'{"k": ', b'{"n": "the table refuses a row: k: no"}'], ids=["cut", "like another error"])
def test_a_query_that_fails_at_undecodable_data_names_the_transaction_and_commits_nothing(
    spark: Any, stub: Stub, tmp_path: Path, data: bytes
) -> None:
    cluster = stub(partitions=1)
    cluster.append(0, [b'{"k": "a"}', data, b'{"k": "b"}'])
    settings = LandingSettings.model_validate({"outputs": [{"decode": JSON, "target": {"table": str(tmp_path / "t")}}]})
    landing = Landing(settings, KEY)
    with pytest.raises(Undecodable, match=r"transaction 1 of partition 0: .") as raised:
        landing.write(spark.read.format("waltz_stub").options(cluster=cluster.address, mode="ranges").load())
    assert "\n" not in str(raised.value)
    assert not list((tmp_path / "t" / "_delta_log").glob("*.json"))


def test_a_type_that_the_table_holds_wider_is_converted_by_spark(spark: Any, stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, counted = log(stub), Counted(monkeypatch)
    path = tmp_path / "data" / "table"
    spark.sql(f"CREATE TABLE delta.`{path}` (partition INT, transaction_id BIGINT, timestamp TIMESTAMP, header INT, k STRING, n BIGINT) USING delta")
    decode = {"format": "json", "columns": "k STRING, n INT", "undecodable": "skip"}
    landed(spark, cluster, "ranges", tmp_path / "data", {"decode": decode})
    assert counted.direct == 0
    assert {row["n"] for row in content(tmp_path / "data")} == {n for n in range(300) if n % 50 != 7}


def test_columns_are_added_before_tasks_write_them(spark: Any, stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, counted = log(stub), Counted(monkeypatch)
    few = {"decode": {"format": "json", "columns": "k STRING", "undecodable": "skip"}}
    landing = landed(spark, cluster, "ranges", tmp_path, few)
    assert landing.statistics().batches == 2
    cluster.append(0, [b'{"k": "new", "n": 1}'])
    more = {"decode": {"format": "json", "columns": "k STRING, n INT"}, "target": {"table": str(tmp_path / "table"), "evolution": "add_columns"}}
    settings = LandingSettings.model_validate({"outputs": [more]})
    Landing(settings, KEY).write(
        spark.read.format("waltz_stub").options(cluster=cluster.address, mode="ranges", startingTransactionIds='{"0": 150, "1": 150}').load()
    )
    assert counted.direct == 3
    (row,) = [row for row in content(tmp_path) if row["n"] is not None]
    assert (row["partition"], row["transaction_id"], row["k"], row["n"]) == (0, 150, "new", 1)


def test_a_read_of_nothing_has_no_ranges(spark: Any, stub: Stub, tmp_path: Path) -> None:
    cluster = stub(partitions=1)
    cluster.append(0, [b"{}"])
    reader = spark.read.format("waltz_stub").options(cluster=cluster.address, endingTransactionIds='{"0": 0}')
    assert [reader.option("mode", mode).load().count() for mode in ("data", "ranges")] == [0, 0]


@pytest.mark.parametrize("text", TEXTS)
def test_a_simple_condition_is_what_spark_makes_of_it(spark: Any, text: str) -> None:
    values = [("N1", 1, 2**40), ("", 2, 0), (None, 3, None), ("N2", None, 7), ("é", -5, -1), ("n1", 2**31 - 1, -(2**63))]
    rows = spark.createDataFrame([(at, *row) for at, row in enumerate(values)], "at INT, tail STRING, leg INT, total BIGINT")
    conditions = parse_where(text, rows.schema)
    assert conditions is not None
    found = rows.toArrow().combine_chunks().to_batches()[0]
    for condition in conditions:
        found = found.filter(condition.passes(found))
    assert sorted(found.column("at").to_pylist()) == sorted(row.at for row in rows.where(text).collect())


def test_ranges_say_which_transactions_they_hold(spark: Any, stub: Stub) -> None:
    cluster = log(stub)
    reader = spark.read.format("waltz_stub").option("cluster", cluster.address)
    ranges = reader.option("mode", "ranges").load()
    assert is_of_ranges(ranges.schema)
    assert not is_of_ranges(SCHEMA)
    assert transactions_schema(ranges.schema) == transactions_schema(SCHEMA) == SCHEMA
    rows = ranges.select("partition", "first_transaction_id", "last_transaction_id").orderBy("partition").collect()
    assert [tuple(row) for row in rows] == [(0, 0, 149), (1, 0, 149)]
    for name, value in (("columns", "k STRING"), ("filterPushdown", "true")):
        with pytest.raises(InvalidSetting, match=f"{name}.*does nothing with mode=ranges"):
            SourceOptions.parse({"cluster": "h:1", "mode": "ranges", name: value})


def test_a_pipeline_does_not_let_its_source_give_anything_else() -> None:
    from waltz_delta.pipelines.pipeline import PipelineSettings

    with pytest.raises(InvalidSetting, match="mode cannot be an option"):
        PipelineSettings.model_validate({"source": {"cluster": "h:1", "Mode": "data"}, "checkpoint": "c", "outputs": [{"target": {"table": "t"}}]})
