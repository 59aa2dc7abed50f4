"""The options that Spark makes a source with: those of a reader, and of tables in SQL, which the schema carries from `CREATE TABLE` to queries."""

from __future__ import annotations

import pickle
from collections.abc import Mapping

import pytest
from pyspark.sql.types import IntegerType, StructField, StructType

from pyspark_waltz.schema import METADATA_SCHEMA, SCHEMA, SCHEMA_WITH_METADATA
from pyspark_waltz.source import DefaultSource
from waltz_log.errors import InvalidSetting

CLUSTER = "127.0.0.1:5101"


def created(**options: str) -> dict[str, str]:
    """What Spark 4.2 passes for `CREATE TABLE t USING waltz OPTIONS (...) COMMENT ... TBLPROPERTIES (...)`."""
    properties = {"provider": "waltz", "owner": "root", "comment": "the log", "location": "file:/t", "path": "file:/t", "team": "ops"}
    return {**properties, **options, **{f"option.{name}": value for name, value in options.items()}}


def schema_of(source: DefaultSource) -> StructType:
    found = source.schema()
    assert isinstance(found, StructType)
    return found


def queried(schema: StructType, given: Mapping[str, str] = {}) -> DefaultSource:
    """The source of a query of the table with this schema, as Spark carries it."""
    found = DefaultSource(dict(given))
    found.reader(StructType.fromJson(schema.jsonValue()))
    return found


def test_the_options_of_a_table_reach_its_queries() -> None:
    options = {"cluster": CLUSTER, "partitions": "0-2", "startingtransactionids": '{"0": 17}', "includemetadata": "true"}
    schema = schema_of(DefaultSource(created(**options)))
    assert [(field.name, field.dataType) for field in schema] == [(field.name, field.dataType) for field in SCHEMA_WITH_METADATA]
    found = queried(schema)
    assert found.parsed == DefaultSource(options).parsed
    assert pickle.loads(pickle.dumps(found)).parsed == found.parsed


def test_a_table_of_partitions_reaches_its_queries() -> None:
    found = queried(schema_of(DefaultSource(created(cluster=CLUSTER, mode="metadata"))))
    assert found.parsed.metadata_mode
    assert [field.name for field in schema_of(found)] == METADATA_SCHEMA.names


def test_the_columns_of_a_reader_carry_no_options() -> None:
    assert DefaultSource({"cluster": CLUSTER}).schema() == SCHEMA


def test_an_option_with_two_values_is_refused() -> None:
    options = created(cluster=CLUSTER, partitions="1")
    assert DefaultSource(options).parsed.partitions == (1,)
    with pytest.raises(InvalidSetting, match="partitions is given twice with different values: '1' and '2'"):
        DefaultSource({**options, "Partitions": "2"})


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        (created(), "cluster is required"),
        (created(cluster=CLUSTER, partitons="1"), "partitons: no such option of the source .did you mean partitions"),
        (created(cluster=CLUSTER, filterpushdown="True"), "filterPushdown cannot be true for a table"),
    ],
)
def test_options_that_cannot_be_those_of_a_table_are_refused_when_it_is_created(options: dict[str, str], reported: str) -> None:
    with pytest.raises(InvalidSetting, match=reported):
        DefaultSource(options)


def test_a_query_cannot_add_options_of_its_own() -> None:
    schema = schema_of(DefaultSource(created(cluster=CLUSTER)))
    with pytest.raises(InvalidSetting, match=r"partitions cannot be in WITH \(...\) of a query"):
        queried(schema, {"partitions": "0"})
    with pytest.raises(InvalidSetting, match=r"cluster cannot be in WITH"):
        queried(schema, {"cluster": "other:5101"})


def test_a_table_with_columns_of_its_own_has_no_options() -> None:
    with pytest.raises(InvalidSetting, match="only if the statement lists no columns"):
        queried(StructType([StructField("partition", IntegerType())]))


def test_without_a_cluster_there_are_no_columns() -> None:
    with pytest.raises(InvalidSetting, match="cluster is required"):
        DefaultSource({}).schema()
    with pytest.raises(InvalidSetting, match="no such option"):
        DefaultSource({"clustr": CLUSTER}).schema()


@pytest.mark.parametrize("address", ["127.0.0.1:2181/waltz", "127.0.0.1", "http://127.0.0.1:5101", ":5101", "h:1,h", "h:99999", "::1:5101"])
def test_an_address_that_is_none_of_log_servers_is_refused_before_anything_is_connected(address: str) -> None:
    with pytest.raises(InvalidSetting, match=r"cluster (has (no host and port|a scheme)|is the address of a coordinator): .*host:port"):
        DefaultSource({"cluster": address})
    with pytest.raises(InvalidSetting, match=r"cluster (has (no host and port|a scheme)|is the address of a coordinator)"):
        DefaultSource(created(cluster=address))
