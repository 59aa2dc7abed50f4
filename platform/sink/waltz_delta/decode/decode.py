"""From the bytes of a transaction to columns, strictly: a transaction decodes completely or not at all, with a reason.

Every format is decoded in Python workers (`decode_worker`); the rules are in `pyspark_waltz.decode`.

Fields keep the names that they have in the data, unless `fields` names others. The columns of the log (`partition`, `transaction_id`, `timestamp`,
`header` and any others that the source was asked for) are added, so a column must not have one of those names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructType

from pyspark_waltz.decode.declarations import check_names
from pyspark_waltz.decode.formats import own_columns, read_schema
from waltz_delta.decode.decode_worker import decode_in_workers, decoding_plan
from waltz_delta.decode.decoding_plan import DecodingPlan
from waltz_delta.decode.row_checks import Checks
from waltz_delta.decode.transactions import Transactions
from waltz_delta.marks.batch import DATA, PARTITION, PROBLEM, ROW, TRANSACTION_ID, UNDECODABLE
from waltz_delta.settings import DecodeSettings
from waltz_log.errors import InvalidSetting

__all__ = ["DATA", "PROBLEM", "declared_columns", "decode", "plan_of", "project", "raised", "refuse", "shape"]

NO_CHECKS = Checks()
VALUE = "_waltz_value"


def decode(rows: DataFrame | Transactions, settings: DecodeSettings, checks: Checks = NO_CHECKS, schema: bytes | None = None) -> DataFrame:
    """The columns of the log, those of the data, `DATA` (of what does not decode) and `PROBLEM`. With the keys of `checks`, JSON has
    `MISSING` and `MISSING_KEY` too. `rows`: transactions, as the source gives them, or as an output selects them.
    `schema`: of the data (`read_schema`), if it was read before."""
    given = rows if isinstance(rows, Transactions) else Transactions.of(rows)
    if settings.format == "bytes":
        return given.rows().withColumns({DATA: f.col("data"), PROBLEM: f.lit(None).cast("string")})
    return decode_in_workers(given, plan_of(given, settings, checks, read_schema(settings) if schema is None else schema))


def plan_of(rows: Transactions, settings: DecodeSettings, checks: Checks, schema: bytes | None) -> DecodingPlan:
    """How workers decode, in a format other than `bytes`. `schema`: of the data, if the format has one."""
    kept = [name for name in rows.schema.names if name != "data"]
    found = declared_columns(rows.frame.sparkSession, settings) if schema is None else own_columns(settings, schema)
    check_names(settings, found)
    _refuse_names(found.fieldNames(), [*kept, ROW] if settings.format == "arrow" else kept)
    wanted = {name.lower() for name in checks.unstorable}
    texts = [field.name for field in found.fields if field.name.lower() in wanted and isinstance(field.dataType, StringType)]
    keys = checks.keys if settings.format == "json" else None  # the others know themselves what is required
    return decoding_plan(rows, kept, found, settings, Checks(keys, tuple(texts)), schema)


def declared_columns(spark: SparkSession, settings: DecodeSettings) -> StructType:
    try:
        found = StructType.fromDDL(settings.columns or "")
    except PySparkException as error:
        reason = str(error).strip().split("\n")[0]
        raise InvalidSetting(name="columns", reason=f"are not SQL columns: {reason}", nearest=None) from None
    if not isinstance(found, StructType):
        raise InvalidSetting(name="columns", reason=f"want names and types, as `tail STRING, leg INT`, got {settings.columns}", nearest=None)
    return found


def _refuse_names(names: Iterable[str], reserved: Iterable[str]) -> None:
    known = {name.lower() for name in reserved}
    for name in names:
        if name.lower() in known or name.lower().startswith("_waltz_"):
            advice = f"declare another column, such as {name}_in_data, and fields: {{{name}_in_data: {name}}}"
            raise InvalidSetting(name="columns", reason=f"{name} is already a column of the log; {advice}", nearest=None)


def raised(problem: Column) -> Column:
    """Fails the query, and names the transaction and its problem."""
    return f.raise_error(f.format_string(UNDECODABLE, f.col(TRANSACTION_ID), f.col(PARTITION), problem))


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
        # Counting also keeps the filter from being evaluated below, where data would be decoded twice.
        counted = refuse(decode(rows, settings)).observe("undecodable", f.count(PROBLEM))
        rows = counted.where(f.col(PROBLEM).isNull()).drop(PROBLEM, DATA)
    return project(rows, where=f.expr(where) if where is not None else None, select=select)
