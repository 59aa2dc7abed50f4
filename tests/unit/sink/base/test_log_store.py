"""Which stores and tables the sink writes: fake configurations of Spark, the schemes and classes that Delta knows, and features of tables."""

from __future__ import annotations

import errno
import fcntl
import pickle
from pathlib import Path
from typing import Any

import pytest
import structlog

from tests.unit.sink.base.asked_session import Session
from tests.unit.sink.base.lock_holders import is_free
from waltz_delta.base.job_outcome import Failure
from waltz_delta.base.log_store import (
    SINGLE_DRIVER,
    catalog_features,
    one_committer,
    refuse_catalog,
    require_one_winner,
    require_own_commits,
    scheme_of,
    unsafe_store,
)
from waltz_delta.errors import UnsafeTable


def configured(**values: str) -> Any:
    return {name.replace("__", "."): value for name, value in values.items()}.get


def test_the_scheme_is_the_paths_own_or_that_of_the_default_file_system() -> None:
    assert [scheme_of(path) for path in ("/tables/legs", "tables/legs", "file:/x", "S3A://bucket/legs", "hdfs://name:8020/x")] == [
        "file",
        "file",
        "file",
        "s3a",
        "hdfs",
    ]
    assert scheme_of("/tables/legs", "s3a") == "s3a"


@pytest.mark.parametrize("scheme", ["file", "hdfs", "viewfs", "abfs", "abfss", "wasbs", "adl", "gs"])
def test_stores_of_which_delta_creates_a_commit_only_if_it_is_not_there_are_written(scheme: str) -> None:
    assert unsafe_store(scheme, configured()) is None


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n"])
def test_s3_is_refused_but_with_the_store_that_has_a_lock(scheme: str) -> None:
    reason = unsafe_store(scheme, configured())
    assert reason is not None
    assert "S3SingleDriverLogStore" in reason
    assert f"spark.delta.logStore.{scheme}.impl=io.delta.storage.S3DynamoDBLogStore" in reason
    assert f"{SINGLE_DRIVER}=true" in reason
    for key in (f"spark.delta.logStore.{scheme}.impl", "spark.delta.logStore.class", f"delta.logStore.{scheme}.impl"):
        assert unsafe_store(scheme, {key: "io.delta.storage.S3DynamoDBLogStore"}.get) is None
        assert unsafe_store(scheme, {key: "io.delta.storage.S3SingleDriverLogStore"}.get) is not None
    other = "s3" if scheme == "s3a" else "s3a"
    assert unsafe_store(scheme, {f"spark.delta.logStore.{other}.impl": "io.delta.storage.S3DynamoDBLogStore"}.get) is not None


@pytest.mark.parametrize(
    ("scheme", "store"),
    [
        ("s3a", "io.delta.storage.HDFSLogStore"),  # renames: S3 has none
        ("gs", "io.delta.storage.S3SingleDriverLogStore"),
        ("file", "com.example.FastLogStore"),
        ("s3a", "com.example.S3DynamoDBLogStore"),
        ("s3a", "S3DynamoDBLogStore"),
        ("hdfs", "org.apache.spark.sql.delta.storage.LocalLogStore"),
    ],
)
def test_a_class_is_trusted_for_the_schemes_that_it_is_made_for_only(scheme: str, store: str) -> None:
    assert unsafe_store(scheme, {f"spark.delta.logStore.{scheme}.impl": store}.get) is not None
    assert unsafe_store(scheme, {"spark.delta.logStore.class": store}.get) is not None


@pytest.mark.parametrize("scheme", ["dbfs", "cos", "oci", "swift", "x"])
def test_an_unknown_scheme_is_refused(scheme: str) -> None:
    reason = unsafe_store(scheme, configured())
    assert reason is not None
    assert f"{SINGLE_DRIVER}=true" in reason
    assert "S3DynamoDB" not in reason


def test_stores_that_have_to_be_configured_are_written_when_they_are() -> None:
    assert unsafe_store("cos", {"spark.delta.logStore.cos.impl": "io.delta.storage.IBMCOSLogStore"}.get) is None
    assert unsafe_store("oci", {"spark.delta.logStore.oci.impl": "io.delta.storage.OracleCloudLogStore"}.get) is None
    assert unsafe_store("hdfs", {"spark.delta.logStore.class": "org.apache.spark.sql.delta.storage.HDFSLogStore"}.get) is None


# ---- a session -------------------------------------------------------------------------------------------------------------------------------------


def test_a_session_is_refused_each_time_until_it_is_configured() -> None:
    session: Any = Session("refused")
    for _ in range(2):
        with pytest.raises(UnsafeTable) as raised:
            require_one_winner(session, "s3a://lake/legs")
    assert raised.value.path == "s3a://lake/legs"
    assert "set " in str(raised.value)
    require_one_winner(session, "/tables/legs")
    on_s3: Any = Session("default file system", "s3a")
    with pytest.raises(UnsafeTable):
        require_one_winner(on_s3, "/tables/legs")
    good: Any = Session("good", spark__delta__logStore__s3a__impl="io.delta.storage.S3DynamoDBLogStore")
    require_one_winner(good, "s3a://lake/legs")


def test_an_operator_who_guarantees_a_single_driver_is_warned_once_for_each_table() -> None:
    session: Any = Session("single", spark__waltz__singleDriver="true")
    with structlog.testing.capture_logs() as logs:
        for path in ("s3a://lake/legs", "s3a://lake/legs", "s3a://lake/other", "/local", "hdfs://n/x"):
            require_one_winner(session, path)
    assert [entry["path"] for entry in logs if entry["log_level"] == "warning"] == ["s3a://lake/legs", "s3a://lake/other", "/local"]
    said: Any = Session("said otherwise", spark__waltz__singleDriver="false")
    with pytest.raises(UnsafeTable):
        require_one_winner(said, "s3a://lake/legs")


def test_only_a_local_table_is_locked_and_only_without_a_single_driver(tmp_path: Path) -> None:
    table = tmp_path / "legs"
    table.mkdir()

    def is_locked(session: Any, path: str) -> bool:
        with one_committer(session, path):
            return not is_free(table)

    session: Any = Session("locks")
    assert is_locked(session, str(table))
    assert is_locked(session, f"file:{table}")
    assert not is_locked(session, f"hdfs://name{table}")
    on_hdfs: Any = Session("locks on hdfs", "hdfs")
    assert not is_locked(on_hdfs, str(table))
    single: Any = Session("locks not", spark__waltz__singleDriver="true")
    assert not is_locked(single, str(table))


def test_a_local_table_that_cannot_be_locked_is_refused_before_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.EBADF, "Bad file descriptor")

    monkeypatch.setattr(fcntl, "flock", refuse)
    table = tmp_path / "not" / "there"
    session: Any = Session("no locks")
    with pytest.raises(UnsafeTable, match=SINGLE_DRIVER) as raised:
        require_one_winner(session, str(table))
    assert raised.value.path == str(table)
    assert not table.parent.exists()
    single: Any = Session("no locks, single", spark__waltz__singleDriver="true")
    require_one_winner(single, str(table))


# ---- catalog-managed tables ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("feature", ["catalogManaged", "catalogOwned", "catalogOwned-preview", "coordinatedCommits-preview", "managedCommit-dev"])
def test_a_table_whose_commits_are_a_catalogs_is_refused(feature: str) -> None:
    with pytest.raises(UnsafeTable, match=feature):
        require_own_commits("/t", ["deletionVectors", feature], {})
    with pytest.raises(UnsafeTable, match=feature):
        require_own_commits("/t", [], {f"delta.feature.{feature}": "supported"})
    with pytest.raises(UnsafeTable, match=feature):
        refuse_catalog("/t", ValueError(f"requires reader table feature(s) that are unsupported: {feature}, other.\n\tat x"))


def test_other_features_and_errors_are_not_a_catalogs() -> None:
    features = ["appendOnly", "deletionVectors", "clustering", "inCommitTimestamp", "vacuumProtocolCheck", "catalogue", "v2Checkpoint"]
    require_own_commits("/t", features, {"delta.enableChangeDataFeed": "true", "delta.feature.clustering": "supported"})
    refuse_catalog("/t", ValueError("no such file: /catalog/t"))
    assert catalog_features([], {"delta.coordinatedCommits.commitCoordinator-preview": "x"}) == ["delta.coordinatedCommits.commitCoordinator-preview"]


def test_the_refusal_survives_pickling_and_a_job_does_not_start_again_for_it() -> None:
    error = UnsafeTable(path="/t", reason="r")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert Failure.of(error).final
