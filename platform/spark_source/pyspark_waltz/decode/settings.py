"""How the data of transactions becomes columns. Values only."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, date, datetime, time
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from waltz_log.settings import Settings

__all__ = ["EARLIEST", "LATEST", "DecodeSettings", "TimestampUnit", "bounds_text"]

TimestampUnit = Literal["s", "ms", "us"]

EARLIEST = datetime(1, 1, 1, tzinfo=UTC)
LATEST = datetime.combine(date(9999, 12, 31), time.max, UTC)
"""The range of Python's `datetime`. A reader in Python could not show a later time; in many systems 9999-12-31 means "no end"."""

_NUMBER = re.compile(r"\s*[-+]?[0-9.]+\s*")
_DAY = 10
"""Length of a date without a time, in characters."""


def _moment(given: object) -> object:
    if isinstance(given, int | float) or (isinstance(given, str) and _NUMBER.fullmatch(given)):
        raise ValueError("must be a time with its offset, as 2000-01-01T00:00:00Z, or a date")
    return given


def _end_of_day(given: object) -> object:
    """For a date without a time: the end of that day, since the bound is inclusive."""
    if isinstance(given, date) and not isinstance(given, datetime):
        return datetime.combine(given, time.max, UTC)
    if isinstance(given, str) and len(given.strip()) == _DAY:
        return f"{given.strip()}T{time.max}Z"
    return given


def _in_utc(given: datetime) -> datetime:
    """A time without an offset is in UTC."""
    try:
        return given.replace(tzinfo=UTC) if given.tzinfo is None else given.astimezone(UTC)
    except OverflowError:
        raise ValueError("must be from 0001-01-01 to 9999-12-31 in UTC") from None


Earliest = Annotated[datetime, BeforeValidator(_moment), AfterValidator(_in_utc)]
Latest = Annotated[datetime, BeforeValidator(_moment), BeforeValidator(_end_of_day), AfterValidator(_in_utc)]


class DecodeSettings(Settings):
    """How the bytes of a transaction become columns. `undecodable` decides what happens to a transaction that does not decode."""

    format: Literal["json", "avro", "protobuf", "arrow", "bytes"] = Field(
        default="bytes",
        description="What the application wrote. `bytes` keeps the column `data` as it is; `arrow` is an Arrow IPC stream of any number of rows; "
        "`avro` is the binary encoding of one record, without a header; `protobuf` is one message.",
    )
    columns: str | None = Field(
        default=None,
        description="For json and arrow: the columns as SQL, `tail STRING NOT NULL, leg INT`. NOT NULL makes a field required. Name only "
        "the columns that the table should have; other fields of the JSON are ignored.",
    )
    fields: dict[str, str] = Field(
        default={},
        description="The field of a column, where it has another name in the data, `{event_time: timestamp}`, in any format but bytes. A column must "
        "not have the name of a column of the log.",
    )
    avro_schema: str | None = Field(default=None, description="For avro: the writer's schema as JSON text, or the path of an .avsc file.")
    descriptor: str | None = Field(
        default=None, description="For protobuf: path of the descriptor set, made by `protoc --include_imports --descriptor_set_out`."
    )
    message: str | None = Field(default=None, description="For protobuf: full name of the message in the descriptor set.")
    timestamp_unit: TimestampUnit | None = Field(
        default=None,
        description="For json and arrow: the unit of a whole number in a TIMESTAMP column, counted from 1970. Without it such a number "
        "cannot be decoded. Text (`2026-01-02T03:04:05Z`) needs none.",
    )
    timestamp_units: dict[str, TimestampUnit] = Field(
        default={},
        description="The unit of single columns, `{until: s}`, with precedence over `timestamp_unit`. Write a field of a STRUCT with dots, "
        "`order.placed_at`. For an ARRAY or a MAP, the unit of the column applies to its elements or values.",
    )
    earliest_timestamp: Earliest = Field(
        default=EARLIEST,
        description="An earlier value in a TIMESTAMP column cannot be decoded, in any format but bytes. Set it to the time of the oldest "
        "data, to detect a wrong unit also where it makes values too small.",
    )
    latest_timestamp: Latest = Field(
        default=LATEST,
        description="A later value in a TIMESTAMP column cannot be decoded, in any format but bytes. The default accepts 9999-12-31 for an "
        "open end, and refuses milliseconds declared as seconds. A date without a time means its last microsecond.",
    )
    numeric_strings: Literal["strict", "lossless"] = Field(
        default="strict",
        description='For json and arrow: how to read a string if a number is declared, `"5"` for an INT. `strict`: it cannot be decoded. '
        "`lossless`: it counts as the number that it spells, if the column can hold that number exactly.",
    )
    nanoseconds: Literal["refuse", "truncate"] = Field(
        default="refuse",
        description="For json, avro and protobuf: what happens to a time that counts less than a microsecond. `refuse`: it "
        "cannot be decoded, since a TIMESTAMP holds microseconds. `truncate`: the digits after the sixth are cut.",
    )
    undecodable: Literal["dead_letter", "fail", "skip"] | None = Field(
        default=None,
        description="What happens to a transaction that cannot be decoded, or that violates a constraint of its table. Default: it becomes a "
        "dead letter if dead letters are declared; otherwise the query fails and names it. `skip` drops it; choose that only if the log holds data "
        "that no table needs.",
    )

    @model_validator(mode="after")
    def _complete(self) -> DecodeSettings:
        needed = {"json": ("columns",), "arrow": ("columns",), "avro": ("avro_schema",), "protobuf": ("descriptor", "message"), "bytes": ()}
        for name in ("columns", "avro_schema", "descriptor", "message"):
            given = getattr(self, name) is not None
            if given and name not in needed[self.format]:
                raise ValueError(f"{name} does not apply to the format {self.format}")
            if not given and name in needed[self.format]:
                raise ValueError(f"the format {self.format} needs {name}")
        for name, said in (("timestamp_unit", self.timestamp_unit), ("timestamp_units", self.timestamp_units)):
            if said and self.format not in ("json", "arrow"):
                raise ValueError(f"{name} does not apply to the format {self.format}")
        if self.fields and self.format == "bytes":
            raise ValueError("fields does not apply to the format bytes")
        if self.numeric_strings != "strict" and self.format not in ("json", "arrow"):
            raise ValueError(f"numeric_strings does not apply to the format {self.format}")
        if self.nanoseconds != "refuse" and self.format in ("arrow", "bytes"):
            raise ValueError(f"nanoseconds does not apply to the format {self.format}")
        if self.format == "bytes" and (self.earliest_timestamp, self.latest_timestamp) != (EARLIEST, LATEST):
            raise ValueError("earliest_timestamp and latest_timestamp do not apply to the format bytes")
        if self.earliest_timestamp > self.latest_timestamp:
            raise ValueError("earliest_timestamp is after latest_timestamp")
        return self

    def names_in_data(self, columns: Sequence[str]) -> tuple[str, ...]:
        """What each column is called in the data."""
        return tuple(self.fields.get(name, name) for name in columns)

    def unit_of(self, path: str) -> TimestampUnit | None:
        """The unit of numbers in a TIMESTAMP column, or in a field within one."""
        unit = self.timestamp_units.get(path)
        return self.timestamp_unit if unit is None else unit


def bounds_text(settings: DecodeSettings) -> str:
    """The bounds as `key=value` facts of a message."""
    return f"earliest_timestamp={_shown(settings.earliest_timestamp)} latest_timestamp={_shown(settings.latest_timestamp)}"


def _shown(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")
