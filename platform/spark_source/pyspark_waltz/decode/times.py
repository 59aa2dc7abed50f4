"""Dates and times as text, in exact patterns, and counts of a unit: as days and microseconds from 1970.

A DATE is `2026-01-02`. A TIMESTAMP is a date, or a date and a time of the day from hours and minutes to microseconds, with `T` or a space between
them and an offset or none: `2026-01-02T03:04:05.25+01:00`. Without an offset it is a time in the session's time zone. More than six digits of a
second are refused unless they are zeros or the settings allow to cut them. A time without a date is refused: each replay would give another day."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from typing import Final
from zoneinfo import ZoneInfo

from waltz_log.errors import InvalidSetting

__all__ = ["DAY", "DAY_SHAPE", "EPOCH_DAY", "MICROSECONDS", "MOMENT", "MOMENT_SHAPE", "OFFSET", "days_of", "micros_of", "micros_of_text", "time_zone"]

MICROSECONDS: Final = {"s": 1_000_000, "ms": 1_000, "us": 1}
"""Microseconds in one unit."""

_YEAR: Final = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
"""Arrow also knows a year 0, of which a time with an offset may lie in the year 1."""

DAY: Final = rf"^{_YEAR}-[0-9]{{2}}-[0-9]{{2}}$"
DAY_SHAPE: Final = "0000-00-00"
"""What a `DAY` becomes if each digit is replaced by 0."""
OFFSET: Final = r"[T ].*(?:Z|[+-][0-9]{2}(?::?[0-9]{2})?)$"
"""Finds the offset of a text that is a `MOMENT`."""
_REST: Final = r"-[0-9]{2}-[0-9]{2}(?:[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?(?:Z|[+-][0-9]{2}(?::?[0-9]{2})?)?)?$"
MOMENT_SHAPE: Final = re.compile("0000" + _REST)
"""What a `MOMENT` becomes if each digit is replaced by 0."""
MOMENT: Final = f"^{_YEAR}{_REST}"
"""Every text that both Arrow and this module read as the same time."""

_DAY: Final = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
_MOMENT: Final = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})(?:[T ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,40}))?)?(Z|[+-][0-9]{2}(?::?[0-9]{2})?)?)?"
)
_FIXED: Final = re.compile(r"(?:UTC|GMT)?([+-])([0-9]{1,2})(?::?([0-9]{2}))?")
_EPOCH: Final = datetime(1970, 1, 1)
EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_MICROSECOND: Final = timedelta(microseconds=1)
_SECOND_DIGITS: Final = 6


def micros_of(moment: datetime) -> int:
    """Microseconds from 1970; a time without an offset is in UTC."""
    plain = moment.replace(tzinfo=None)
    offset = moment.utcoffset()
    return (plain - _EPOCH - (offset or timedelta(0))) // _MICROSECOND


def days_of(text: str) -> int | None:
    """Days from 1970; None if the text is no date."""
    found = _DAY.fullmatch(text)
    try:
        return date(*map(int, found.groups())).toordinal() - EPOCH_DAY if found else None
    except ValueError:
        return None


def micros_of_text(text: str, zone: tzinfo | None, *, cut: bool) -> int | None:
    """Microseconds from 1970; None if the text is no time. `zone`: of a text without an offset; None refuses an offset, and gives the time as if it
    were in UTC. `cut`: ignore digits after the sixth of a second."""
    found = _MOMENT.fullmatch(text)
    if found is None:
        return None
    year, month, day, hour, minute, second, fraction, offset = found.groups()
    digits = fraction or ""
    if digits[_SECOND_DIGITS:].strip("0") and not cut:
        return None
    try:
        plain = datetime(
            int(year),
            int(month),
            int(day),
            int(hour or 0),
            int(minute or 0),
            int(second or 0),
            int(digits[:_SECOND_DIGITS].ljust(_SECOND_DIGITS, "0")),
        )
        if zone is None:
            return None if offset else micros_of(plain)
        # The first of two equal times of a day counts; one that does not exist is as much later. Both as in Java.
        behind = _offset(offset) if offset else plain.replace(tzinfo=zone).utcoffset()
    except (ValueError, OverflowError):
        return None
    return micros_of(plain) - (behind or timedelta(0)) // _MICROSECOND


def _offset(text: str) -> timedelta:
    if text == "Z":
        return timedelta(0)
    hours, minutes = int(text[1:3]), int(text[3:].lstrip(":") or 0)
    if hours > 23 or minutes > 59:
        raise ValueError(text)
    found = timedelta(hours=hours, minutes=minutes)
    return -found if text[0] == "-" else found


def time_zone(name: str, setting: str = "spark.sql.session.timeZone") -> tzinfo:
    """A time zone by its name in Spark. Raises `InvalidSetting` of the setting for one that Python does not know."""
    if name in ("UTC", "Z", "GMT", "Etc/UTC"):
        return UTC
    fixed = _FIXED.fullmatch(name)
    if fixed:
        offset = timedelta(hours=int(fixed[2]), minutes=int(fixed[3] or 0))
        return timezone(-offset if fixed[1] == "-" else offset)
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise InvalidSetting(name=setting, reason=f"is not a time zone that Python knows: {name}", nearest=None) from None
