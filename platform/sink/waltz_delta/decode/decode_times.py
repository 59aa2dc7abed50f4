"""Which timestamps are valid: numbers in the declared unit, within the declared bounds. Plans only.

Spark reads a number as seconds and multiplies it without a check: milliseconds become the year 55840, nanoseconds any year at all. It reads a text
without a date (`12:30`) as a time of the day on which the query runs, another day at each replay. And its dates reach the year 5881580. Spark accepts
all of that; here it is an error that names the setting to check. A DATE may be from year 1 to year 9999, whatever the bounds of timestamps are.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql.types import DataType, DateType, TimestampNTZType, TimestampType

from waltz_delta.decode.decode_nested import Checked, paths_of
from waltz_delta.settings import EARLIEST, LATEST, DecodeSettings
from waltz_log.errors import InvalidSetting

__all__ = ["MICROSECONDS", "TypedTimes", "bounds_text", "check_units", "micros_of", "outside", "timestamp_of_number", "timestamp_of_text"]

MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1}
"""Microseconds in one unit."""

_FROM_NUMBER = {"s": f.timestamp_seconds, "ms": f.timestamp_millis, "us": f.timestamp_micros}
_BEGINS_WITH_A_DATE = r"^\s*[+-]?[0-9]{4,}-[0-9]"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def micros_of(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


def check_units(settings: DecodeSettings, columns: DataType) -> None:
    """Raises `InvalidSetting` if a unit is declared for a column that is no TIMESTAMP."""
    known = paths_of(columns, lambda kind: isinstance(kind, TimestampType))
    for path in settings.timestamp_units:
        if path not in known:
            near = InvalidSetting.unknown(path, known).nearest
            raise InvalidSetting(name=f"timestamp_units.{path}", reason="no such column of type TIMESTAMP", nearest=near)


def timestamp_of_number(number: Column, unit: str, settings: DecodeSettings) -> Column:
    """Null outside of the bounds."""
    earliest, latest = micros_of(settings.earliest_timestamp), micros_of(settings.latest_timestamp)
    return f.when(number.between(-(-earliest // MICROSECONDS[unit]), latest // MICROSECONDS[unit]), _FROM_NUMBER[unit](number))


def timestamp_of_text(text: Column) -> Column:
    """As Spark casts it, in the session's time zone if the text names none; null if it is no timestamp or does not begin with a date."""
    return f.when(text.rlike(_BEGINS_WITH_A_DATE), text.try_cast("timestamp"))


def outside(moment: Column, settings: DecodeSettings, kind: str = "TIMESTAMP") -> Column:
    """Whether a timestamp is outside of the bounds; one without a time zone counts as UTC."""
    zone = "" if kind == "TIMESTAMP_NTZ" else " UTC"
    earliest, latest = (
        f.expr(f"{kind} '{each.replace(tzinfo=None).isoformat(sep=' ')}{zone}'") for each in (settings.earliest_timestamp, settings.latest_timestamp)
    )
    return ~moment.between(earliest, latest)


def bounds_text(settings: DecodeSettings) -> str:
    """The bounds as `key=value` facts of a message."""
    return f"earliest_timestamp={_shown(settings.earliest_timestamp)} latest_timestamp={_shown(settings.latest_timestamp)}"


def _shown(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


class TypedTimes:
    """For values that are timestamps and dates already: checks that they are within bounds."""

    def __init__(self, settings: DecodeSettings) -> None:
        self._settings = settings

    def inspects(self, kind: DataType) -> bool:
        return isinstance(kind, TimestampType | TimestampNTZType | DateType)

    def converts(self, kind: DataType) -> bool:
        return False

    def check(self, read: Column, kind: DataType, path: str) -> Checked:
        shown = f.concat(f.lit(f"{path} is "), read.cast("string"))
        if isinstance(kind, DateType):
            wrong = ~read.between(f.expr(f"DATE '{EARLIEST.date()}'"), f.expr(f"DATE '{LATEST.date()}'"))
            return Checked(read, f.when(wrong, f.concat(shown, f.lit(f", not a date from {EARLIEST.date()} to {LATEST.date()}"))))
        wrong = outside(read, self._settings, "TIMESTAMP_NTZ" if isinstance(kind, TimestampNTZType) else "TIMESTAMP")
        reason = f", out of bounds: its producer may count in another unit than it says: {bounds_text(self._settings)}"
        return Checked(read, f.when(wrong, f.concat(shown, f.lit(reason))))
