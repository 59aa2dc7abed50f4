"""The Spark session of a job, refused at its start where it could only fail later, or would damage what it is given."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final  # py4j's objects have no types

from pyspark.sql import SparkSession

from waltz_delta.base.internal import check_versions, require_jvm
from waltz_log.errors import InvalidRequest

__all__ = ["TIME_ZONE", "damaged_argument", "open_session", "session_properties", "session_settings", "session_zone"]

TIME_ZONE: Final = "spark.sql.session.timeZone"
_DEFAULTS: Final = "spark.databricks.delta.properties.defaults."


def session_zone(spark: Any) -> str:
    """The time zone of times without an offset. `spark`: a `SparkSession`; a test may replace its settings."""
    return str(spark.conf.get(TIME_ZONE))


def session_settings(spark: Any) -> dict[str, str]:
    """What the session and Spark's configuration set, by names."""
    return {name: str(value) for name, value in spark.conf.getAll.items()}


def session_properties(spark: Any) -> dict[str, str]:
    """The properties that Delta gives to every table that the session creates, unless the table's own say otherwise."""
    return {f"delta.{name[len(_DEFAULTS) :]}": value for name, value in session_settings(spark).items() if name.startswith(_DEFAULTS)}


def open_session(name: str, *, delta: bool = True) -> SparkSession:
    """`delta`: whether the job cannot do without Delta in Spark. If it can, a sink that chooses Spark's engine checks the version then. Raises
    `UnsupportedDelta` for another Delta than the tested one, and `InvalidRequest` if the JVM has lost letters of the job's arguments."""
    spark = SparkSession.builder.appName(name).getOrCreate()
    try:
        if delta:
            check_versions(spark)
        jvm = require_jvm(spark)
        encoding = str(jvm.java.lang.System.getProperty("sun.jnu.encoding"))
        damaged = damaged_argument(sys.argv[1:], encoding)
        if damaged is not None:
            raise InvalidRequest(reason=f"spark-submit runs without a locale with UTF-8 and lost letters of {damaged!r}; set LC_ALL=C.UTF-8")
    except Exception:
        spark.stop()
        raise
    return spark


def damaged_argument(arguments: Sequence[str], encoding: str) -> str | None:
    """An argument that a JVM with this encoding of file names may have changed: it puts "?" or U+FFFD for what it does not know."""
    if encoding.upper().replace("-", "") == "UTF8":
        return None
    return next((argument for argument in arguments if not argument.isascii() or "?" in argument), None)
