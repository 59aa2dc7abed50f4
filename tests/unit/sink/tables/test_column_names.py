"""Names that a table's columns cannot have, with both names where two are one to Delta."""

from __future__ import annotations

import pytest
from pyspark.sql.types import ArrayType, DataType, IntegerType, MapType, NullType, StringType, StructField, StructType

from waltz_delta.tables.column_names import check_columns
from waltz_log.errors import InvalidSetting

MAPPED = {"delta.columnMapping.mode": "name"}
FED = {"delta.enableChangeDataFeed": "true"}


def _schema(*names: str, kind: DataType | None = None) -> StructType:
    return StructType([StructField(name, kind or IntegerType()) for name in names])


@pytest.mark.parametrize("names", [("tail", "legs"), ("a.b", "e`f", "ü", "a-b", "a/b"), ("filePath2", "_metadata_")])
def test_other_names_are_allowed(names: tuple[str, ...]) -> None:
    for merged in (False, True):
        check_columns(_schema(*names), {}, merged=merged)


@pytest.mark.parametrize(
    "schema",
    [
        _schema("tail", "Tail"),
        _schema("x", kind=_schema("tail", "Tail")),
        _schema("x", kind=ArrayType(_schema("tail", "Tail"))),
        _schema("x", kind=MapType(StringType(), _schema("tail", "Tail"))),
    ],
    ids=["columns", "fields", "in an array", "in a map"],
)
def test_two_names_that_differ_by_case_are_refused_with_both(schema: StructType) -> None:
    with pytest.raises(InvalidSetting, match=r"tail and (x\.)?Tail are one name to Delta"):
        check_columns(schema, MAPPED, merged=False)


@pytest.mark.parametrize(("name", "shown"), [("a b", "a space"), ("a,b", "the letter ,"), ("a\tb", "a tab"), ("a\nb", "a line break"), ("x=y", "=")])
def test_letters_of_a_name_that_need_column_mapping_are_refused_without_it(name: str, shown: str) -> None:
    for schema in (_schema(name), _schema("x", kind=ArrayType(_schema(name)))):
        with pytest.raises(InvalidSetting, match=f"has {shown}.*columnMapping" if len(shown) > 1 else "has the letter ="):
            check_columns(schema, {}, merged=False)
        check_columns(schema, MAPPED, merged=False)


@pytest.mark.parametrize("name", ["filePath", "FILEPATH", "rowIndexCol", "deletionVectorId", "_metadata", "_file_name_", "_row_id_"])
def test_names_that_a_merge_adds_are_refused_for_merged_tables(name: str) -> None:
    check_columns(_schema(name), {}, merged=False)
    with pytest.raises(InvalidSetting, match="Delta needs this name itself"):
        check_columns(_schema(name), {}, merged=True)


@pytest.mark.parametrize("name", ["_change_type", "_commit_version", "_commit_timestamp"])
def test_names_of_the_change_feed_are_refused_where_it_is_on(name: str) -> None:
    check_columns(_schema(name), {}, merged=True)
    with pytest.raises(InvalidSetting, match="Delta needs this name itself"):
        check_columns(_schema(name), FED, merged=False)


@pytest.mark.parametrize("kind", [NullType(), ArrayType(NullType()), _schema("b", kind=NullType()), MapType(StringType(), NullType())])
def test_a_column_without_a_type_is_refused_with_what_to_write(kind: DataType) -> None:
    """`SELECT NULL AS note` makes one. A table with it would refuse every value that comes later."""
    with pytest.raises(InvalidSetting, match=r"CAST\(NULL AS STRING\) AS note"):
        check_columns(_schema("note", kind=kind), {}, merged=False)
