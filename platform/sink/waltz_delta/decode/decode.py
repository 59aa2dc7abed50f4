"""From the bytes of a transaction to columns, strictly: a transaction decodes completely or not at all, with a reason. Plans only.

These do not decode, in every format: data that is null; a required (NOT NULL) column that is missing or null; a timestamp or date out of bounds. In
JSON also: bytes that are not UTF-8, and halves of surrogate pairs; text that is not one JSON object (nothing may follow it, not even text crafted to
close the wrapper that it is parsed in; no comments or NaN); a value that is not of the declared type or does not fit into it; a number for a
TIMESTAMP without a declared unit; a string for a number, unless `numeric_strings` allows it; for a DECIMAL, a number with an exponent of more than
three digits. As Spark reads JSON, a STRING accepts any value as its text (a number with a fraction as a double shows it), and a number for a DECIMAL
is rounded to its scale. In Avro and Protobuf: what Spark's own functions refuse.

Fields keep the names that they have in the data. The columns of the log (`partition`, `transaction_id`, `timestamp`, `header` and any others that
the source was asked for) are added, so a field must not have one of those names. Sources: Spark's documentation of `from_json`, `from_avro` and
`from_protobuf`, mode PERMISSIVE; tests check what it does in each of these cases.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from waltz_delta.base import internal
from waltz_delta.base.quoting import quoted
from waltz_delta.decode.decode_json import decode_json
from waltz_delta.decode.decode_nested import checked, first_problem
from waltz_delta.decode.decode_times import TypedTimes, check_units
from waltz_delta.marks.batch import DATA, PARTITION, PROBLEM, ROW, TRANSACTION_ID
from waltz_delta.settings import DecodeSettings
from waltz_log.errors import InvalidSetting
from waltz_log.untrusted_files import DESCRIPTOR, read_bytes

__all__ = ["DATA", "PROBLEM", "UNDECODABLE", "declared_columns", "decode", "project", "refuse", "required", "shape"]

VALUE = "_waltz_value"
UNDECODABLE = "waltz_delta: does not decode: "
"""Prefix of the error of a query over undecodable data, if nothing else was declared."""

_AVRO = "org.apache.spark.sql.avro.AvroDataToCatalyst"
_PROTOBUF = "org.apache.spark.sql.protobuf.ProtobufDataToCatalyst"
"""A class that only the jars contain: Spark itself contains the functions that a user calls."""


def decode(rows: DataFrame, settings: DecodeSettings) -> DataFrame:
    """The columns of the log, those of the data, `DATA` and `PROBLEM`. `required` checks required columns, since a delete lacks them."""
    if settings.format == "bytes":
        return rows.withColumns({DATA: f.col("data"), PROBLEM: f.lit(None).cast("string")})
    kept = [name for name in rows.columns if name != "data"]
    if settings.columns is not None:
        found = declared_columns(rows.sparkSession, settings)
        check_units(settings, found)
        _refuse_names(found.fieldNames(), [*kept, ROW] if settings.format == "arrow" else kept)
        if settings.format == "json":
            return decode_json(rows, kept, found, settings)
        from waltz_delta.decode.decode_arrow import decode_arrow

        return decode_arrow(rows, kept, found, settings)
    value, problem = {"avro": _avro, "protobuf": _protobuf}[settings.format](rows, settings)
    read = rows.select(*kept, f.col("data").alias(DATA), value.alias(VALUE))
    fields = read.schema[VALUE].dataType
    assert isinstance(fields, StructType)
    _refuse_names(fields.fieldNames(), kept)
    return read.select(*kept, DATA, f.col(f"{VALUE}.*"), f.coalesce(problem, *_out_of_bounds(f.col(VALUE), fields, settings)).alias(PROBLEM))


def _out_of_bounds(read: Column, fields: StructType, settings: DecodeSettings) -> list[Column]:
    """One condition for each field that may hold a timestamp."""
    wrong = first_problem(checked(read[field.name], field.dataType, field.name, TypedTimes(settings)) for field in fields.fields)
    return [] if wrong is None else [wrong]


def declared_columns(spark: SparkSession, settings: DecodeSettings) -> StructType:
    try:
        found = StructType.fromDDL(settings.columns or "")
    except PySparkException as error:
        reason = str(error).strip().split("\n")[0]
        raise InvalidSetting(name="columns", reason=f"are not SQL columns: {reason}", nearest=None) from None
    if not isinstance(found, StructType):
        raise InvalidSetting(name="columns", reason=f"want names and types, as `tail STRING, leg INT`, got {settings.columns}", nearest=None)
    return found


def required(settings: DecodeSettings, spark: SparkSession, *, only: Sequence[str] | None = None) -> Column | None:
    """Why a required column is missing or null; None if nothing is required. `only`: check only these columns."""
    if settings.columns is None or settings.format == "arrow":  # Arrow checks required columns itself
        return None
    found: list[Column] = []
    for path in _required(declared_columns(spark, settings)):
        if only is None or path[0] in only:
            column, outer = f.col(quoted(path[0])), None
            for name in path[1:]:
                outer = column.isNotNull() if outer is None else outer & column.isNotNull()
                column = column.getField(name)
            missing = column.isNull() if outer is None else outer & column.isNull()
            found.append(f.when(missing, f"{'.'.join(path)} is missing or null"))
    return f.coalesce(*found) if found else None


def _required(struct: StructType) -> Iterable[tuple[str, ...]]:
    for field in struct.fields:
        if not field.nullable:
            yield (field.name,)
        if isinstance(field.dataType, StructType):
            yield from ((field.name, *rest) for rest in _required(field.dataType))


def _avro(rows: DataFrame, settings: DecodeSettings) -> tuple[Column, Column]:
    """A record whose every field is null counts as undecodable, because Spark returns that for a record it cannot read."""
    _need_jar(rows.sparkSession, _AVRO, "avro")
    from pyspark.sql.avro.functions import from_avro

    text = settings.avro_schema or ""
    if text.strip().endswith(".avsc"):
        text = _read(text.strip(), "avro_schema").decode("utf-8", "replace")
    try:
        names = [str(field["name"]) for field in json.loads(text)["fields"]]
    except (ValueError, KeyError, TypeError):
        raise InvalidSetting(name="avro_schema", reason="is not the schema of an Avro record", nearest=None) from None
    read = f.col(VALUE)
    nothing = f.col(DATA).isNull() | read.isNull() | f.coalesce(*[read[name].cast("string") for name in names]).isNull()
    return from_avro(f.col("data"), text, {"mode": "PERMISSIVE"}), _unless_decoded(nothing, "Avro record of the declared schema")


def _protobuf(rows: DataFrame, settings: DecodeSettings) -> tuple[Column, Column]:
    _need_jar(rows.sparkSession, _PROTOBUF, "protobuf")
    from pyspark.sql.protobuf.functions import from_protobuf

    descriptor = _read(settings.descriptor or "", "descriptor")
    value = from_protobuf(f.col("data"), settings.message or "", options={"mode": "PERMISSIVE"}, binaryDescriptorSet=descriptor)
    return value, _unless_decoded(f.col(VALUE).isNull(), f"Protobuf message {settings.message}")


def _unless_decoded(wrong: Column, what: str) -> Column:
    return f.when(f.col(DATA).isNull(), "no data").when(wrong, f"is not an {what}" if what.startswith("A") else f"is not a {what}")


def _read(path: str, setting: str) -> bytes:
    try:
        return read_bytes(Path(path), DESCRIPTOR)
    except OSError as error:
        raise InvalidSetting(name=setting, reason=f"cannot be read: {path}: {error.strerror}", nearest=None) from None


def _need_jar(spark: SparkSession, name: str, kind: str) -> None:
    if not internal.has_class(spark, name):
        package = f"org.apache.spark:spark-{kind}_2.13:{spark.version}"
        reason = f"{kind} needs a jar that the session lacks: add --packages {package}, or the jar itself to spark.jars"
        raise InvalidSetting(name="format", reason=reason, nearest=None)


def _refuse_names(names: Iterable[str], reserved: Iterable[str]) -> None:
    known = {name.lower() for name in reserved}
    for name in names:
        if name.lower() in known or name.lower().startswith("_waltz_"):
            raise InvalidSetting(name="columns", reason=f"field {name} is already a column of the log; rename it in the data", nearest=None)


def raised(problem: Column) -> Column:
    """Fails the query, and names the transaction and its problem."""
    return f.raise_error(f.format_string(f"{UNDECODABLE}transaction %d of partition %d: %s", f.col(TRANSACTION_ID), f.col(PARTITION), problem))


def refuse(rows: DataFrame) -> DataFrame:
    """The same rows; a query over a row with a problem fails and names it."""
    return rows.withColumn(PROBLEM, f.when(f.col(PROBLEM).isNotNull(), raised(f.col(PROBLEM)).cast("string")))


def project(rows: DataFrame, *, where: Column | None, select: str | None, kept: Sequence[str] = ()) -> DataFrame:
    """Filter and select list. The position in the log is always kept, since the sink decides by it for every row, and so are `kept`."""
    if where is not None:
        rows = rows.where(where)
    if select is not None:
        own = [PARTITION, TRANSACTION_ID, *(name for name in (ROW,) if name in rows.columns), *kept]
        chosen = rows.select(*own, f.expr(f"struct({select})").alias(VALUE))
        given = {name.lower() for name in chosen.select(f"{VALUE}.*").columns}
        rows = chosen.select(*[name for name in own if name.lower() not in given], f"{VALUE}.*")
    return rows


def shape(
    rows: DataFrame, *, schema: str | None = None, settings: DecodeSettings | None = None, where: str | None = None, select: str | None = None
) -> DataFrame:
    """The short form for one table without dead letters. `schema` (SQL columns) decodes JSON; data that is not such JSON fails the query, naming the
    transaction. Instead, `settings` allows more, such as the unit of timestamps. `where` is a SQL condition over the columns; `select` a SQL select
    list."""
    if settings is None and schema is not None:
        settings = DecodeSettings(format="json", columns=schema)
    if settings is not None and settings.format != "bytes":
        decoded = decode(rows, settings)
        missing = required(settings, rows.sparkSession)
        if missing is not None:
            decoded = decoded.withColumn(PROBLEM, f.coalesce(f.col(PROBLEM), missing))
        # Counting also keeps the filter from being evaluated below, where it would decode everything twice.
        counted = refuse(decoded).observe("undecodable", f.count(PROBLEM))
        rows = counted.where(f.col(PROBLEM).isNull()).drop(PROBLEM, DATA)
    return project(rows, where=f.expr(where) if where is not None else None, select=select)
