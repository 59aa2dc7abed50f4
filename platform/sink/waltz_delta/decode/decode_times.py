"""Whether timestamps and dates of Avro and Protobuf are within bounds. Plans only.

Spark's dates reach the year 5881580. A DATE may be from year 1 to year 9999, whatever the bounds of timestamps are."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql.types import DataType, DateType, TimestampNTZType, TimestampType

from pyspark_waltz.decode.settings import EARLIEST, LATEST, DecodeSettings, bounds_text
from waltz_delta.decode.decode_nested import Checked

__all__ = ["TypedTimes", "outside"]


def outside(moment: Column, settings: DecodeSettings, kind: str = "TIMESTAMP") -> Column:
    """Whether a timestamp is outside of the bounds; one without a time zone counts as UTC."""
    zone = "" if kind == "TIMESTAMP_NTZ" else " UTC"
    earliest, latest = (
        f.expr(f"{kind} '{each.replace(tzinfo=None).isoformat(sep=' ')}{zone}'") for each in (settings.earliest_timestamp, settings.latest_timestamp)
    )
    return ~moment.between(earliest, latest)


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
