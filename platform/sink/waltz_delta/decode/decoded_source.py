"""Where the source itself can decode a query's rows, so that the data of what decodes does not cross to the JVM and back."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from pyspark_waltz.decode.declarations import holds_variant
from pyspark_waltz.decode.problems import DATA as DATA_OF_SOURCE
from pyspark_waltz.decode.problems import PROBLEM as PROBLEM_OF_SOURCE
from pyspark_waltz.decode.settings import DecodeSettings
from waltz_delta.base.session import session_zone
from waltz_delta.decode.decode import DATA, PROBLEM, declared_columns
from waltz_delta.decode.row_checks import partitioned_keys
from waltz_delta.settings import LandingSettings, OutputSettings

__all__ = ["as_decoded", "decoding_options", "is_decoded"]


def decoding_options(spark: SparkSession, settings: LandingSettings) -> dict[str, str]:
    """Options of the source with which it decodes for the only output; none if the output needs what the source does not know: another output's
    columns, a route, which transactions delete, which keys the table cannot store, a VARIANT, or a column with the name of one of the source's."""
    output = settings.outputs[0]
    if len(settings.outputs) > 1 or output.decode.format != "json" or output.route is not None or _needs_checks(output):
        return {}
    columns = declared_columns(spark, output.decode)
    if holds_variant(columns) or {DATA_OF_SOURCE, PROBLEM_OF_SOURCE} & {name.lower() for name in columns.names}:
        return {}  # only Spark makes a VARIANT, and the source has columns of these names
    others = output.decode.model_dump_json(exclude={"format", "columns", "undecodable"}, exclude_defaults=True)
    return {"columns": columns.json(), "decode": others, "timeZone": session_zone(spark)}


def _needs_checks(output: OutputSettings) -> bool:
    target = output.target
    return target.deletes is not None or bool(partitioned_keys(target.keys, target.layout.partition_by))


def is_decoded(rows: DataFrame, settings: DecodeSettings) -> bool:
    """Whether the source has decoded these rows already."""
    return settings.format == "json" and PROBLEM_OF_SOURCE in rows.columns


def as_decoded(rows: DataFrame) -> DataFrame:
    """Rows that the source decoded, as `decode` gives them."""
    return rows.withColumnsRenamed({DATA_OF_SOURCE: DATA, PROBLEM_OF_SOURCE: PROBLEM})
