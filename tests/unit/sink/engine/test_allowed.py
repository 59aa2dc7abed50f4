"""The allow list: each feature, property and type of Delta is either known to be written right, or left to Spark's engine with a reason."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from waltz_delta.engine.allowed import FEATURES, NOT_OF_NEW, PROPERTIES, Protocol, TableShape, refusal, refusal_of_new, refusal_of_path

INTEGER = {"name": "n", "type": "integer", "nullable": True, "metadata": {}}

OTHER_FEATURES = (
    "allowColumnDefaults",
    "catalogManaged",
    "checkpointProtection",
    "clustering",
    "deletionVectors",
    "domainMetadata",
    "icebergCompatV1",
    "icebergCompatV2",
    "identityColumns",
    "inCommitTimestamp",
    "rowTracking",
    "typeWidening",
    "vacuumProtocolCheck",
    "variantType",
    "a feature of next year",
)


def shape(*fields: dict[str, Any], by: tuple[str, ...] = (), given: Mapping[str, str] | None = None) -> TableShape:
    """`given`: properties, without `delta.` in front."""
    return TableShape({"type": "struct", "fields": list(fields or [INTEGER])}, by, {f"delta.{name}": value for name, value in (given or {}).items()})


def column(kind: Any, **metadata: Any) -> dict[str, Any]:
    return {"name": "c", "type": kind, "nullable": True, "metadata": metadata}


def test_every_legacy_protocol_without_identity_columns_is_written() -> None:
    found = {version: refusal(Protocol(1, version, frozenset()), shape()) is None for version in range(1, 8)}
    assert found == {1: True, 2: True, 3: True, 4: True, 5: True, 6: False, 7: True}
    assert "newer" in str(refusal(Protocol(4, 7, frozenset()), shape()))
    assert "newer" in str(refusal(Protocol(3, 8, frozenset()), shape()))


@pytest.mark.parametrize("feature", OTHER_FEATURES)
def test_a_feature_that_is_not_listed_is_left_to_spark(feature: str) -> None:
    assert feature in str(refusal(Protocol(3, 7, frozenset({"appendOnly", feature})), shape()))


def test_deltalake_commits_to_tables_with_each_listed_feature(tmp_path: Path) -> None:
    from deltalake import CommitProperties, DeltaTable, Schema
    from deltalake.transaction import AddAction, RemoveAction

    of_readers = {"columnMapping", "timestampNtz", "v2Checkpoint"}
    for feature in sorted(FEATURES):
        protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": sorted(of_readers & {feature}), "writerFeatures": [feature]}
        metadata = {
            "id": feature,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps(shape().schema),
            "partitionColumns": [],
            "configuration": {},
        }
        log = tmp_path / feature / "_delta_log"
        log.mkdir(parents=True)
        (log / f"{0:020d}.json").write_text("\n".join(json.dumps(action) for action in ({"protocol": protocol}, {"metaData": metadata})))
        table = DeltaTable(str(tmp_path / feature))
        added: list[AddAction | RemoveAction] = [AddAction("f.parquet", 1, {}, 1, True, '{"numRecords":1}')]
        schema = Schema.from_json(json.dumps(shape().schema))
        table.create_write_transaction(added, "append", schema, commit_properties=CommitProperties(max_commit_retries=0))
        assert DeltaTable(str(tmp_path / feature)).version() == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("columnMapping.mode", "name"),
        ("enableDeletionVectors", "true"),
        ("enableRowTracking", "true"),
        ("autoOptimize.autoCompact", "true"),
        ("checkpointPolicy", "v2"),
        ("parquet.compression.codec", "brotli"),
        ("randomizeFilePrefixes", "true"),
        ("compatibility.symlinkFormatManifest.enabled", "true"),
        ("something.new", "1"),
    ],
)
def test_a_property_that_is_not_followed_is_left_to_spark(name: str, value: str) -> None:
    assert f"delta.{name}={value}" in str(refusal(Protocol(1, 2, frozenset()), shape(given={name: value})))


def test_properties_that_are_followed_or_off_are_accepted() -> None:
    followed = {"checkpointInterval": "7", "appendOnly": "true", "columnMapping.mode": "none", "enableDeletionVectors": "false"}
    assert refusal(Protocol(1, 2, frozenset()), shape(given=followed | {"parquet.compression.codec": "zstd", "checkpointPolicy": "classic"})) is None
    assert refusal(Protocol(1, 2, frozenset()), TableShape(shape().schema, (), {"waltz.mode": "append", "owner": "somebody"})) is None


def test_deltalake_creates_tables_with_each_listed_property(tmp_path: Path) -> None:
    from deltalake import Schema
    from deltalake.transaction import create_table_with_add_actions

    values = {
        "delta.checkpointInterval": "7",
        "delta.dataSkippingNumIndexedCols": "3",
        "delta.dataSkippingStatsColumns": "n",
        "delta.isolationLevel": "Serializable",
        "delta.minReaderVersion": "1",
        "delta.minWriterVersion": "2",
        "delta.targetFileSize": "100mb",
    }
    for name in sorted(PROPERTIES - NOT_OF_NEW):
        value = values.get(name, "interval 30 days" if name.endswith("Duration") else "true")
        schema = Schema.from_json(json.dumps(shape().schema))
        create_table_with_add_actions(str(tmp_path / name), schema, [], partition_by=[], configuration={name: value})


def test_a_check_constraint_is_named_whatever_its_text() -> None:
    for text in ("n > 0", "false"):
        assert "CHECK constraint positive" in str(refusal(Protocol(1, 3, frozenset()), shape(given={"constraints.positive": text})))


@pytest.mark.parametrize(
    "metadata",
    ["delta.generationExpression", "delta.identity.start", "CURRENT_DEFAULT", "__CHAR_VARCHAR_TYPE_STRING", "delta.invariants", "__COLLATIONS"],
)
def test_a_rule_of_a_column_is_left_to_spark(metadata: str) -> None:
    assert metadata in str(refusal(Protocol(1, 2, frozenset()), shape(column("string", **{metadata: "x"}))))
    nested = {"type": "struct", "fields": [column("string", **{metadata: "x"})]}
    assert metadata in str(refusal(Protocol(1, 2, frozenset()), shape(column(nested))))
    assert refusal(Protocol(1, 2, frozenset()), shape(column("string", comment="the tail number"))) is None


def test_types_are_listed_and_inner_values_may_be_null() -> None:
    def of(kind: Any) -> str | None:
        return refusal(Protocol(1, 2, frozenset()), shape(column(kind)))

    struct = {"type": "struct", "fields": [column("decimal(38,10)")]}
    array = {"type": "array", "elementType": struct, "containsNull": True}
    assert of({"type": "map", "keyType": "string", "valueType": array, "valueContainsNull": True}) is None
    for refused in ("variant", "interval day to second", "geometry"):
        assert refused in str(of(refused))
        assert refused in str(of({**array, "elementType": refused}))
    for required in ({**array, "containsNull": False}, {"type": "struct", "fields": [{**column("long"), "nullable": False}]}):
        assert "must not be null" in str(of(required))


def test_partitions_are_of_types_with_one_text() -> None:
    for kind, accepted in (("string", True), ("date", True), ("timestamp", False), ("double", False), ("decimal(9,2)", False), ("binary", False)):
        assert (refusal(Protocol(1, 2, frozenset()), shape(column(kind), INTEGER, by=("C",))) is None) == accepted


def test_a_new_table_is_created_unless_it_asks_for_more() -> None:
    assert refusal_of_new(shape(), ()) is None
    assert "clustered" in str(refusal_of_new(shape(), ("n",)))
    assert "property owner" in str(refusal_of_new(TableShape(shape().schema, (), {"owner": "somebody"}), ()))
    assert "property delta.parquet.compression.codec" in str(refusal_of_new(shape(given={"parquet.compression.codec": "zstd"}), ()))
    assert "delta.feature.rowTracking" in str(refusal_of_new(shape(given={"feature.rowTracking": "supported"}), ()))


@pytest.mark.parametrize("name", ["logRetentionDuration", "deletedFileRetentionDuration"])
def test_a_retention_that_deltalake_would_replace_by_its_default_is_left_to_spark(name: str) -> None:
    """Delta reads each of them; `deltalake` would delete a part of the log too early."""
    for value in ("365 days", "INTERVAL 365 DAYS", "interval '365' day", "interval 1 year", "interval 1 week 2 days"):
        assert f"delta.{name}={value}" in str(refusal(Protocol(1, 2, frozenset()), shape(given={name: value})))
        assert refusal_of_new(shape(given={name: value}), ()) is not None
    for value in ("interval 365 days", "interval 1 week", "interval 36 hours", "interval 5 milliseconds"):
        assert refusal(Protocol(1, 2, frozenset()), shape(given={name: value})) is None


@pytest.mark.parametrize("name", ["a%20b", "a#b", "a?b", "100%"])
def test_a_path_of_an_object_that_deltalake_reads_as_a_url_is_left_to_spark(name: str) -> None:
    """The log would be at one place, and the files at another."""
    assert "differently" in str(refusal_of_path("s3a", f"s3a://lake/{name}"))
    assert refusal_of_path("s3a", "s3a://lake/a b+c=\u00e4") is None
    assert "differently" in str(refusal_of_path("gs", f"gs://lake/{name}"))
    assert "differently" in str(refusal_of_path("abfss", f"abfss://lake@acme.dfs.core.windows.net/{name}"))


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("abfss://lake@acme.dfs.core.windows.net/legs", None),
        ("abfs://lake@acme.dfs.core.windows.net/legs", None),
        ("gs://lake/legs", None),
        ("abfss://space@onelake.dfs.fabric.microsoft.com/legs", "only at CONTAINER@ACCOUNT.dfs.core.windows.net"),
        ("abfss://lake@acme.dfs.core.chinacloudapi.cn/legs", "only at CONTAINER@ACCOUNT.dfs.core.windows.net"),
        ("abfss://acme.dfs.core.windows.net/legs", "only at CONTAINER@ACCOUNT.dfs.core.windows.net"),
        ("abfss:///legs", "names no bucket or container"),
        ("gs:///legs", "names no bucket or container"),
        ("wasbs://lake@acme.blob.core.windows.net/legs", "does not write to wasbs: paths"),
        ("adl://acme.azuredatalakestore.net/legs", "does not write to adl: paths"),
    ],
)
def test_azure_and_google_are_written_where_both_libraries_know_the_place(path: str, reason: str | None) -> None:
    found = refusal_of_path(path.partition(":")[0], path)
    assert found is None if reason is None else reason in str(found)


def test_a_path_without_a_bucket_is_left_to_spark_which_completes_it() -> None:
    """Spark completes such a path, and to this engine its first folder would be the bucket."""
    assert "names no bucket" in str(refusal_of_path("s3a", "/lake/legs"))


@pytest.mark.parametrize("name", ["a\\b", "a\tb", "a\nb"])
def test_a_directory_that_deltalake_does_not_open_is_left_to_spark(name: str) -> None:
    assert "backslash" in str(refusal_of_path("file", f"/lake/{name}"))
