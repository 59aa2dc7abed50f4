"""The types of columns whose format has types of its own (Avro, Protobuf): a value is of the declared type already, so only its range, its bounds and
its exactness are judged."""

from __future__ import annotations

import decimal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final  # Any: values, and pyarrow has no types

import pyarrow as pa

from pyspark_waltz.decode.kinds import Kind, Rows, Scalar
from pyspark_waltz.decode.nested_columns import fields_of, list_column, map_column, struct_column
from pyspark_waltz.decode.problems import Problems, Refused
from pyspark_waltz.decode.settings import EARLIEST, LATEST, DecodeSettings, bounds_text
from pyspark_waltz.decode.times import EPOCH_DAY, micros_of
from pyspark_waltz.decode.whole_columns import numbers, texts

__all__ = ["Days", "Dictionary", "Fields", "Instant", "Numbers", "Plain", "Repeated", "Symbols", "Texts", "Unscaled"]

_DECIMAL_BYTES: Final = 16
_SHOWN_BELOW: Final = 10**1000
"""Far less than the digits that Python converts."""
_MICROS_PER_SECOND: Final = 1_000_000
_FIRST_DAY, _LAST_DAY = EARLIEST.toordinal() - EPOCH_DAY, LATEST.toordinal() - EPOCH_DAY


class Plain(Scalar):
    """BOOLEAN and BINARY: no value can be wrong."""

    __slots__ = ()


class Texts(Scalar):
    """STRING; bytes are text that is not UTF-8."""

    __slots__ = ()

    def convert(self, values: Sequence[Any]) -> Any:
        return texts(values)

    def one(self, value: Any) -> Any:
        if isinstance(value, str):
            return value
        raise Refused(f"{self.path} is not UTF-8")


@dataclass(frozen=True, slots=True)
class Numbers(Scalar):
    """`letter`: of `struct`, with the bits of the column."""

    letter: str

    def convert(self, values: Sequence[Any]) -> Any:
        return numbers(values, self.letter, self.arrow)

    def one(self, value: Any) -> Any:
        try:
            pa.scalar(value, self.arrow)
        except (pa.ArrowInvalid, OverflowError):
            raise self.mismatch(str(value)) from None
        return value


@dataclass(frozen=True, slots=True)
class Symbols(Scalar):
    """The names of an enum, from its numbers."""

    enum: str
    names: Mapping[int, str]

    def convert(self, values: Sequence[Any]) -> Any:
        try:
            return texts(list(map(self.names.__getitem__, values)))
        except KeyError:  # a number without a name, or None
            return None

    def one(self, value: Any) -> Any:
        name = self.names.get(value)
        if name is None:
            raise self.unnamed(value)
        return name

    def unnamed(self, number: int) -> Refused:
        """The problem of a number that the enum does not have."""
        return Refused(f"{self.path} is the number {number}: not a value of the enum {self.enum}")


class Days(Scalar):
    """A DATE from days since 1970: of year 1 to year 9999, whatever the bounds of timestamps are."""

    __slots__ = ()

    def convert(self, values: Sequence[Any]) -> Any:
        given = [value for value in values if value is not None]
        if given and not (min(given) >= _FIRST_DAY and max(given) <= _LAST_DAY):
            return None
        return self.array(values)

    def one(self, value: Any) -> Any:
        if _FIRST_DAY <= value <= _LAST_DAY:
            return value
        raise Refused(f"{self.path} is the number {value}: as days from 1970, not a date from {EARLIEST.date()} to {LATEST.date()}")

    def array(self, kept: Sequence[Any]) -> Any:
        return numbers(kept, "i", pa.int32()).cast(self.arrow)


@dataclass(frozen=True, slots=True)
class Instant(Scalar):
    """A TIMESTAMP or TIMESTAMP_NTZ from counts since 1970. `per_second`: of the unit."""

    settings: DecodeSettings
    per_second: int

    def convert(self, values: Sequence[Any]) -> Any:
        micros = [None if value is None else self.micros(value) for value in values]
        given = [each for each in micros if each is not None]
        if given and not (self._earliest <= min(given) and max(given) <= self._latest):
            return None
        return self.array(micros)

    def micros(self, value: Any) -> int:
        """Microseconds since 1970. Raises `Refused` for a time that counts less."""
        count: int = value
        if self.per_second <= _MICROS_PER_SECOND:
            return count * (_MICROS_PER_SECOND // self.per_second)
        micros, rest = divmod(count, self.per_second // _MICROS_PER_SECOND)
        if rest and self.settings.nanoseconds == "refuse":
            raise Refused(f"{self.path} is the number {count}: it counts less than a microsecond; to cut that, set nanoseconds to truncate")
        return micros

    def one(self, value: Any) -> Any:
        micros = self.micros(value)
        if self._earliest <= micros <= self._latest:
            return micros
        reason = f"out of bounds: its producer may count in another unit than it says: {bounds_text(self.settings)}"
        raise Refused(f"{self.path} is the number {micros}: as microseconds from 1970, {reason}")

    def array(self, kept: Sequence[Any]) -> Any:
        return numbers(kept, "q", pa.int64()).cast(self.arrow)

    @property
    def _earliest(self) -> int:
        return micros_of(self.settings.earliest_timestamp)

    @property
    def _latest(self) -> int:
        return micros_of(self.settings.latest_timestamp)


@dataclass(frozen=True, slots=True)
class Unscaled(Scalar):
    """A DECIMAL from its whole number without the point."""

    precision: int
    scale: int

    def convert(self, values: Sequence[Any]) -> Any:
        limit = 10**self.precision
        if any(value is not None and not -limit < value < limit for value in values):
            return None
        return self.array(values)

    def one(self, value: Any) -> Any:
        if -(10**self.precision) < value < 10**self.precision:
            return value
        raise self.mismatch(f"{decimal.Decimal(value).scaleb(-self.scale):f}" if abs(value) < _SHOWN_BELOW else "a number of more digits")

    def array(self, kept: Sequence[Any]) -> Any:
        data = b"".join([(0 if value is None else value).to_bytes(_DECIMAL_BYTES, "little", signed=True) for value in kept])
        there = pa.array([value is not None for value in kept], pa.bool_())
        return pa.Array.from_buffers(self.arrow, len(kept), [there.buffers()[1], pa.py_buffer(data)])


@dataclass(frozen=True, slots=True)
class Repeated(Kind):
    element: Kind

    def column(self, values: Sequence[Any], rows: Rows, problems: Problems) -> Any:
        return list_column(self, self.element, values, rows, problems)


@dataclass(frozen=True, slots=True)
class Dictionary(Kind):
    """`key`: a type of which no value can be wrong."""

    key: Scalar
    item: Kind

    def column(self, values: Sequence[Any], rows: Rows, problems: Problems) -> Any:
        return map_column(self, self.key.convert, self.item, values, rows, problems)


@dataclass(frozen=True, slots=True)
class Fields(Kind):
    """A STRUCT from lists, with a value for each field."""

    fields: tuple[Kind, ...]

    def column(self, values: Sequence[Any], rows: Rows, problems: Problems) -> Any:
        return struct_column(self, self.nothing, self.columns, values, rows, problems)

    def columns(self, values: Sequence[Any], rows: Rows, problems: Problems) -> list[Any]:
        """One array for each field; `values` holds no None."""
        return fields_of(self.fields, values, rows, problems)

    @property
    def nothing(self) -> list[Any]:
        """The value with None in each field."""
        return [None] * len(self.fields)
