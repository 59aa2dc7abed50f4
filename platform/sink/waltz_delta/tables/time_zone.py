"""The session's time zone, by which Spark reads text without an offset and casts between times and dates. A table records the one that it is filled
with, because nothing distinguishes rows of two zones later: in a property, or, where the Arrow engine created it, in the name of an identifier of its
first commit. The property counts if there are both, so that a user can set another zone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final  # Any: a SparkSession whose settings a test replaces

from waltz_delta.base.session import TIME_ZONE, session_zone
from waltz_delta.base.table_transaction import TableTransaction
from waltz_delta.base.zones import ZONE_ID, identified_zone
from waltz_delta.settings import OutputSettings
from waltz_log.errors import InvalidSetting

__all__ = ["depends_on_zone", "other_zone", "recorded_zone", "refuse_other_zone", "with_zone", "zone_app_id"]

PROPERTY: Final = "waltz.timeZone"
_UTC: Final = frozenset({"utc", "etc/utc", "gmt", "z", "+00:00", "etc/gmt", "utc+00:00"})


def with_zone(properties: Mapping[str, str], spark: Any) -> dict[str, str]:
    """The properties of a table that is created."""
    return {**properties, PROPERTY: session_zone(spark)}


def zone_app_id(spark: Any) -> str:
    """The identifier that records the zone in the first commit of a table. `deltalake` creates no table with a property of ours."""
    return f"{ZONE_ID}{session_zone(spark)}"


def recorded_zone(table: TableTransaction) -> str | None:
    """The zone that the table was filled with; None for a table that does not say."""
    recorded = table.properties().get(PROPERTY)
    if recorded is not None:
        return recorded
    return identified_zone(table.versions())


def other_zone(table: TableTransaction, spark: Any) -> str | None:
    """Both zones, if the table was filled with another one than the session has; None otherwise, and for a table that does not say."""
    recorded, now = recorded_zone(table), session_zone(spark)
    if recorded is None or _zone(recorded) == _zone(now):
        return None
    return f"is {now}, and the table was filled with {recorded}: times in text without an offset differ"


def refuse_other_zone(spark: Any, path: str, table: TableTransaction) -> None:
    """Raises `InvalidSetting` if the table was filled with another zone than the session has."""
    other = other_zone(table, spark)
    if other is not None:
        remedy = f"set the zone of the table; or, if this one is right from now on, set the property {PROPERTY} of the table to it"
        raise InvalidSetting(name=TIME_ZONE, reason=f"{other}; {remedy}: table={path}", nearest=None)


def depends_on_zone(output: OutputSettings) -> bool:
    """Whether the zone can change what is written: a TIMESTAMP in the data, or SQL."""
    deletes = output.target.deletes
    sql = (output.projection.select, output.projection.where, None if deletes is None else deletes.where)
    return "TIMESTAMP" in (output.decode.columns or "").upper() or any(each is not None for each in sql)


def _zone(name: str) -> str:
    return "utc" if name.lower() in _UTC else name
