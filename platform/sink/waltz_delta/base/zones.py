"""Times without an offset, in a zone that Spark names as `spark.sql.session.timeZone`."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

__all__ = ["ZONE_ID", "instant_ms", "zone_named"]

ZONE_ID: Final = "waltz.timeZone:"
"""Prefix of the identifier that names the zone which a table was filled with."""

_OFFSET: Final = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::(\d{2}))?(?::(\d{2}))?")


def zone_named(name: str) -> tzinfo:
    """The zone of a region (`Europe/Berlin`) or an offset (`+02:00`, `UTC-5`). Raises `ValueError` for any other name."""
    if name.upper() in ("Z", "UTC", "GMT"):
        return UTC
    if match := _OFFSET.fullmatch(name):
        hours, minutes, seconds = (int(each or 0) for each in match.groups()[1:])
        offset = timedelta(hours=hours, minutes=minutes, seconds=seconds)
        return timezone(-offset if match[1] == "-" else offset)
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"no such time zone: {name}") from None


def instant_ms(text: str, zone: str) -> int:
    """Milliseconds since 1970 of a time in ISO 8601. `zone`: of a time without an offset; of a time that occurs twice, it is the first."""
    at = datetime.fromisoformat(text)
    return round((at if at.tzinfo is not None else at.replace(tzinfo=zone_named(zone))).timestamp() * 1000)
