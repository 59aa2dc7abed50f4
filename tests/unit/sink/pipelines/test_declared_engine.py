"""What `waltz pipeline check` says of the engine of a table, from the file alone."""

from __future__ import annotations

from typing import Any

import pytest

from waltz_delta.pipelines.pipeline_check import declared_engine
from waltz_delta.settings import TargetSettings
from waltz_log.errors import InvalidSetting


def target(**given: Any) -> TargetSettings:
    return TargetSettings.model_validate({"table": "/lake/legs", "engine": "auto", **given})


def test_the_engine_and_its_reason_follow_from_the_declaration() -> None:
    assert declared_engine(target()) == "arrow"
    assert declared_engine(target(engine="arrow", table="s3://lake/legs")) == "arrow"
    assert declared_engine(target(engine="spark")) == "spark"
    assert declared_engine(target(mode="upsert", keys=["k"])) == "arrow"
    assert declared_engine(target(mode="history", keys=["k"])) == "spark: mode history"
    partitioned = declared_engine(target(mode="upsert", keys=["k"], layout={"partition_by": ["k"]}))
    assert partitioned == "spark: the Arrow engine does not merge into partitioned tables"
    assert "directories of this machine" in declared_engine(target(mode="upsert", keys=["k"], table="s3://lake/legs"))
    assert "another sequence is declared" in declared_engine(target(mode="upsert", keys=["k"], sequence="version"))
    soft = {"headers": [9], "kind": "soft"}
    assert "does not keep deleted rows" in declared_engine(target(mode="upsert", keys=["k"], deletes=soft))
    assert declared_engine(target(layout={"cluster_by": ["k"]})) == "spark: the Arrow engine does not create clustered tables"
    assert declared_engine(target(table="hdfs:/lake/legs")) == "spark: the Arrow engine does not write to hdfs: paths"
    assert "delta.enableDeletionVectors=true" in declared_engine(target(properties={"delta.enableDeletionVectors": "true"}))


def test_an_engine_that_cannot_merge_is_refused_for_a_merge() -> None:
    assert TargetSettings(table="/lake/legs").engine == "spark"
    with pytest.raises(InvalidSetting, match="engine arrow is for the modes append and upsert; mode is history"):
        target(engine="arrow", mode="history", keys=["k"])
