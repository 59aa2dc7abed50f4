"""What `waltz pipeline check` says of the engine of a table, from the file alone. `tests/e2e/test_declared_engines.py` compares it with the job."""

from __future__ import annotations

from typing import Any

import pytest

from waltz_delta.pipelines.declared_types import declared_schema
from waltz_delta.pipelines.pipeline_check import declared_engine, table_schema
from waltz_delta.settings import OutputSettings


def engine(columns: str = "k STRING, n INT", *, dead_letters: bool = False, **given: Any) -> str:
    """Of a table of JSON with these columns."""
    target = {"table": "/lake/legs", "engine": "auto", **given}
    output = OutputSettings.model_validate({"target": target, "decode": {"format": "json", "columns": columns}})
    return declared_engine(output, table_schema(output), dead_letters=dead_letters)


UPSERT: dict[str, Any] = {"mode": "upsert", "keys": ["k"]}
HARD = {"headers": [9]}


def test_the_engine_and_its_reason_follow_from_the_declaration() -> None:
    assert engine() == "arrow"
    assert engine(engine="arrow", table="s3://lake/legs") == "arrow"
    assert engine(engine="spark") == "spark"
    assert engine(**UPSERT) == "arrow"
    assert engine(**UPSERT, deletes=HARD) == "arrow"
    assert engine(mode="history", keys=["k"], engine="arrow") == "arrow"
    assert engine(**UPSERT, layout={"partition_by": ["k"]}) == "arrow"
    assert engine(**UPSERT, table="s3://lake/legs") == "arrow"
    assert engine(**UPSERT, sequence="n") == "arrow"
    assert engine(**UPSERT, deletes={**HARD, "kind": "soft"}) == "arrow"
    assert "does not order rows by n, which has the type double" in engine("k STRING, n DOUBLE", **UPSERT, sequence="n")
    assert engine(layout={"cluster_by": ["k"]}) == "spark: the Arrow engine does not create clustered tables"
    assert engine(table="hdfs:/lake/legs") == "spark: the Arrow engine does not write to hdfs: paths"
    assert "delta.enableDeletionVectors=true" in engine(properties={"delta.enableDeletionVectors": "true"})


def test_what_a_merge_needs_of_its_table_is_named() -> None:
    assert engine(**UPSERT, deletes=HARD, dead_letters=True) == "arrow"
    assert engine(**UPSERT, dead_letters=True) == "arrow"
    for kind in (
        "FLOAT",
        "real",
        "DOUBLE",
        "numeric( 16 )",
        "STRUCT<x: INT, y: STRUCT<z: DOUBLE>>",
        "DECIMAL(38,2)",
        "MAP<STRING, STRUCT<x: DOUBLE>>",
    ):
        assert engine(f"k STRING, d {kind} NOT NULL COMMENT 'c'", **UPSERT) == "arrow", kind
    assert engine(**UPSERT, properties={"delta.enableChangeDataFeed": "true"}) == "spark: the Arrow engine writes no change data feed"
    assert "merge by k, a key of another type" in engine("k DOUBLE", **UPSERT)


def test_spark_creates_a_local_table_of_a_merge_that_deltalake_cannot_create() -> None:
    own = {"owner": "somebody", "delta.feature.timestampntz": "supported"}
    assert engine(**UPSERT, properties=own) == "arrow"
    assert engine(**UPSERT, properties=own, table="file:/lake/legs") == "arrow"
    for name, value in own.items():
        assert engine(properties={name: value}).startswith("spark: "), name
        assert engine(**UPSERT, properties={name: value}, table="s3a://lake/legs").startswith("spark: "), name
    assert "deletionVectors" in engine(**UPSERT, properties={"delta.feature.deletionVectors": "supported"})
    assert "clustering" in engine(**UPSERT, layout={"cluster_by": ["k"]})


@pytest.mark.parametrize("mode", [{}, UPSERT])
def test_columns_that_only_spark_derives_are_left_open(mode: dict[str, Any]) -> None:
    target = {"table": "/lake/legs", "engine": "auto", "layout": {"partition_by": ["n"]}, **mode}
    output = OutputSettings.model_validate({"target": target, "projection": {"select": "header AS k, 1D AS n"}})
    said = declared_engine(output, table_schema(output), dead_letters=False)
    assert said == "arrow: if its columns allow it, needs Spark: --spark"


def test_columns_are_read_as_spark_reads_them() -> None:
    nested = "b struct<c: bigint, `d`: array<tinyint>>, e MAP<STRING, decimal(9, 2)>"
    found = declared_schema(f"`a` INT NOT NULL, {nested}, f timestamp_ltz COMMENT 'x, y', `g, h``.: ` INT")
    assert found is not None
    kind = "struct<a:int,b:struct<c:bigint,d:array<tinyint>>,e:map<string,decimal(9,2)>,f:timestamp,g, h`.: :int>"
    assert (found.simpleString(), all(field.nullable for field in found.fields)) == (kind, True)
    assert [declared_schema(ddl) for ddl in ("a NO_SUCH_TYPE", "a INT, b", "a MAP<INT>")] == [None] * 3
