"""Times without an offset, in a zone that Spark names as `spark.sql.session.timeZone`."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, tzinfo
from typing import Final

__all__ = ["ZONE_ID", "identified_zone", "instant_ms"]

ZONE_ID: Final = "waltz.timeZone:"
"""Prefix of the identifier that names the zone which a table was filled with."""


def identified_zone(identifiers: Iterable[str]) -> str | None:
    """The zone that one of a table's identifiers names; None if none does."""
    return next((name.removeprefix(ZONE_ID) for name in sorted(identifiers) if name.startswith(ZONE_ID)), None)


def instant_ms(text: str, zone: str) -> int:
    """Milliseconds since 1970 of a time in ISO 8601. `zone`: of a time without an offset; of a time that occurs twice, it is the first. Raises
    `InvalidSetting` for an unknown zone."""
    at = datetime.fromisoformat(text)
    return round((at if at.tzinfo is not None else at.replace(tzinfo=_zone(zone))).timestamp() * 1000)


def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC  # readers of positions need no Spark
    from pyspark_waltz.decode.times import time_zone

    return time_zone(name)
