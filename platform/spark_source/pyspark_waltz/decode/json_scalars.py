"""The scalar types of columns that JSON is decoded to. Each kind says what the fast decoder gives (`annotation`), gives the same from a document that
was parsed exactly (`admit`), and turns the values of a batch into an Arrow array (`column`).

Pyright does not know the functions of `pyarrow.compute`: pyarrow generates them when it is imported."""

from __future__ import annotations

import decimal
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Annotated, Any, Final  # Any: JSON values, and pyarrow has no types

import msgspec
import pyarrow as pa
import pyarrow.compute as _pc

from pyspark_waltz.decode import times
from pyspark_waltz.decode.json_exact import Number, compact, java_double, parse_value, text_of
from pyspark_waltz.decode.kinds import Kind, Scalar
from pyspark_waltz.decode.problems import LOSSLESS_ADVICE, Refused, shown
from pyspark_waltz.decode.settings import EARLIEST, DecodeSettings, bounds_text
from pyspark_waltz.decode.whole_columns import common_shape, extremes, numbers, texts

__all__ = ["Binary", "Boolean", "Day", "DecimalNumber", "Floating", "JsonKind", "Moment", "Text", "Variant", "Whole"]

pc: Any = _pc

_WHOLE_LETTERS: Final = {8: "b", 16: "h", 32: "i", 64: "q"}
_WHOLE: Final = re.compile(r"-?(?:0|[1-9][0-9]*)")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_ARROW_FROM, _ARROW_BEFORE = (times.micros_of(datetime(year, 1, 1)) for year in (1902, 2037))
"""Where Arrow knows the rules of time zones: it applies none after the last change that its database lists."""
_VARIANT_NUMBER_MAX, _VARIANT_NAME_MAX = 1000, 50_000
"""Limits of the parser that makes a VARIANT (Jackson's `StreamReadConstraints`)."""
_MINUS_ZERO: Final = Number("-0", whole=True)
"""A whole number has no sign of zero, and the fast decoder reads it as one."""
_DIGITS_MAX: Final = 20
"""More digits than a 64-bit number has."""
_SHOWN_DIGITS_MAX: Final = 1000
"""Far less than the digits that Python converts."""


class JsonKind(Kind, ABC):
    """A declared type of JSON."""

    __slots__ = ()

    @property
    @abstractmethod
    def annotation(self) -> Any:
        """What the fast decoder must find, besides null."""

    @abstractmethod
    def admit(self, value: Any) -> Any:
        """The value as the fast decoder gives it, from one that `json_exact.parse` gave and that is not null. Raises `Refused`."""

    def is_not(self, value: Any) -> Refused:
        """The problem of a value as `json_exact.parse` gives it."""
        return self.mismatch(value.text if isinstance(value, Number) else text_of(value))


class JsonScalar(Scalar, JsonKind, ABC):
    __slots__ = ()


class Boolean(JsonScalar):
    __slots__ = ()

    @property
    def annotation(self) -> Any:
        return bool

    def admit(self, value: Any) -> Any:
        if isinstance(value, bool):
            return value
        raise self.is_not(value)


class Text(JsonScalar):
    """Any value, as text."""

    __slots__ = ()

    def convert(self, values: Sequence[Any]) -> Any:
        return texts(values)

    @property
    def annotation(self) -> Any:
        return str | int | float | bool

    def admit(self, value: Any) -> Any:
        return "0" if value == _MINUS_ZERO else text_of(value)

    def one(self, value: Any) -> Any:
        if isinstance(value, str):
            return value
        if isinstance(value, bool):
            return "true" if value else "false"
        return str(value) if isinstance(value, int) else java_double(value)


class Binary(JsonScalar):
    """Base64."""

    __slots__ = ()

    @property
    def annotation(self) -> Any:
        return bytes

    def admit(self, value: Any) -> Any:
        try:
            if isinstance(value, str):
                return msgspec.convert(value, bytes)  # Python's own accepts more
        except msgspec.ValidationError:
            pass
        raise self.is_not(value)


@dataclass(frozen=True, slots=True)
class Whole(JsonScalar):
    bits: int
    lossless: bool

    @property
    def annotation(self) -> Any:
        number = Annotated[int, msgspec.Meta(ge=-(1 << (self.bits - 1)), le=(1 << (self.bits - 1)) - 1)]
        return number | str if self.lossless else number

    def convert(self, values: Sequence[Any]) -> Any:
        return numbers(values, _WHOLE_LETTERS[self.bits], self.arrow)

    def admit(self, value: Any) -> Any:
        if isinstance(value, Number) and value.whole and len(value.text) <= _DIGITS_MAX and self._fits(int(value.text)):
            return int(value.text)
        if isinstance(value, str):
            if self.lossless:
                return value
            if _WHOLE.fullmatch(value) and len(value) <= _DIGITS_MAX and self._fits(int(value)):
                raise Refused(f"{self.path} is the string {shown(value)}: {LOSSLESS_ADVICE}")
        raise self.is_not(value)

    def _fits(self, value: int) -> bool:
        return -(1 << (self.bits - 1)) <= value < 1 << (self.bits - 1)

    def one(self, value: Any) -> Any:
        if isinstance(value, int):
            return value
        if _WHOLE.fullmatch(value) and len(value) <= _DIGITS_MAX and self._fits(int(value)):
            return int(value)
        raise self.is_not(value)


@dataclass(frozen=True, slots=True)
class Floating(JsonScalar):
    lossless: bool

    @property
    def annotation(self) -> Any:
        return float | str if self.lossless else float

    def admit(self, value: Any) -> Any:
        if isinstance(value, Number) and not math.isinf(float(value.text)):
            return 0.0 if value == _MINUS_ZERO else float(value.text)
        if isinstance(value, str):
            if self.lossless:
                return value
            if _NUMBER.fullmatch(value) and not math.isinf(float(value)):
                raise Refused(f"{self.path} is the string {shown(value)}: {LOSSLESS_ADVICE}")
        raise self.is_not(value)

    def convert(self, values: Sequence[Any]) -> Any:
        found = numbers(values, "f" if self.arrow == pa.float32() else "d", self.arrow)
        return None if self.arrow == pa.float32() and pc.any(pc.is_inf(found)).as_py() else found

    def one(self, value: Any) -> Any:
        if isinstance(value, str) and not _NUMBER.fullmatch(value):
            raise self.is_not(value)
        number = pa.scalar(float(value), self.arrow).as_py()
        if math.isinf(number):
            raise self.is_not(value if isinstance(value, str) else java_double(value))
        return number


@dataclass(frozen=True, slots=True)
class DecimalNumber(JsonScalar):
    """Exact: the number's own text is converted, and rounded half up to the scale. The fast decoder gives the text of the value, whatever it is."""

    precision: int
    scale: int
    lossless: bool

    @property
    def annotation(self) -> Any:
        return msgspec.Raw

    def admit(self, value: Any) -> Any:
        if isinstance(value, Number):
            return value.text.encode()
        if isinstance(value, str):
            return msgspec.json.encode(value)
        raise self.is_not(value)

    def convert(self, values: Sequence[Any]) -> Any:
        found = pa.array([None if value is None else bytes(value) for value in values], pa.binary()).cast(pa.string())
        found = pc.if_else(pc.equal(found, "null"), None, found)
        if pc.any(pc.match_substring_regex(found, r"[^0-9.-]")).as_py():
            return None  # an exponent, a string, or no number
        if pc.any(pc.match_substring_regex(found, self._too_long)).as_py():
            return None
        try:
            return found.cast(self.arrow)
        except pa.ArrowInvalid:  # more digits after the point than the scale
            wide = found.cast(pa.decimal256(76, 38))
            return pc.round(wide, ndigits=self.scale, round_mode="half_towards_infinity").cast(self.arrow)

    def one(self, value: Any) -> Any:
        text = bytes(value).decode()
        if text == "null":
            return None
        if text.startswith('"'):
            text = self._spelled(msgspec.json.decode(text))
        elif not _NUMBER.fullmatch(text):
            raise self.is_not(text)
        try:
            number = decimal.Decimal(text)
        except decimal.InvalidOperation:  # an exponent beyond what a computer counts
            raise self.is_not(text) from None
        if not number.is_zero() and number.adjusted() >= self.precision - self.scale:
            raise self.is_not(text)
        with decimal.localcontext() as context:
            context.prec = self.precision + 1
            rounded = number.quantize(decimal.Decimal(1).scaleb(-self.scale), decimal.ROUND_HALF_UP)
        if len(rounded.as_tuple().digits) > self.precision:
            raise self.is_not(text)
        return rounded

    @property
    def _too_long(self) -> str:
        """Finds texts that Arrow converts to another number without an error: with the digits that the scale adds, they have more than 38."""
        return rf"^-?[0-9]{{{39 - self.scale},}}|[0-9.]{{39}}"

    def _spelled(self, text: str) -> str:
        """The number of a string, if it is allowed: in plain notation, with no more significant digits after the point than the scale."""
        if not self.lossless:
            raise Refused(f"{self.path} is the string {shown(text)}: {LOSSLESS_ADVICE}")
        if not re.fullmatch(rf"-?(?:0|[1-9][0-9]*)(?:\.[0-9]{{0,{self.scale}}}0*)?", text):
            advice = f"not a plain number with {self.scale} digits after the point at most"
            raise Refused(f"{self.path} is the string {shown(text)}: {advice}")
        return text


class Day(JsonScalar):
    """A DATE from year 1 to year 9999, whatever the bounds of timestamps are."""

    __slots__ = ()

    @property
    def annotation(self) -> Any:
        return str

    def admit(self, value: Any) -> Any:
        if isinstance(value, str):
            return value
        raise self.is_not(value)

    def convert(self, values: Sequence[Any]) -> Any:
        found = texts(values)
        if common_shape(found) != times.DAY_SHAPE and pc.all(pc.match_substring_regex(found, times.DAY)).as_py() is False:
            return None
        days = found.cast(self.arrow)
        span = extremes(days.view(pa.int32()))
        return None if span is not None and span[0] < EARLIEST.toordinal() - times.EPOCH_DAY else days

    def one(self, value: Any) -> Any:
        days = times.days_of(value)
        if days is None:
            raise self.is_not(value)
        return days

    def array(self, kept: Sequence[Any]) -> Any:
        return pa.array(kept, pa.int32()).cast(self.arrow)


@dataclass(frozen=True, slots=True)
class Moment(JsonScalar):
    """A TIMESTAMP (`zone`: of a text without an offset) or a TIMESTAMP_NTZ (`zone` is None, and numbers are refused)."""

    settings: DecodeSettings
    zone: tzinfo | None

    @property
    def annotation(self) -> Any:
        return str if self.zone is None else int | str

    def admit(self, value: Any) -> Any:
        if isinstance(value, str):
            return value
        if self.zone is not None and isinstance(value, Number) and value.whole and len(value.text) <= _SHOWN_DIGITS_MAX:
            return int(value.text)
        raise self.is_not(value)

    def convert(self, values: Sequence[Any]) -> Any:
        try:
            found = texts(values)
        except (pa.ArrowInvalid, TypeError):
            return self._counted(values)
        shape = common_shape(found)
        if shape is not None:
            if times.MOMENT_SHAPE.fullmatch(shape) is None or pc.any(pc.starts_with(found, "0000")).as_py():
                return None
        elif pc.all(pc.match_substring_regex(found, times.MOMENT)).as_py() is False:
            return None
        moments = found.cast(self.arrow) if self.zone is None else self._zoned(found, shape)
        return None if moments is None else self._bounded(moments)

    def _counted(self, values: Sequence[Any]) -> Any:
        unit = self.settings.unit_of(self.path)
        if unit is None:
            return None
        counts = pc.multiply_checked(pa.array(values, pa.int64()), times.MICROSECONDS[unit])
        return self._bounded(counts.cast(self.arrow))

    def _zoned(self, strings: Any, shape: str | None) -> Any:
        if shape is not None:
            return strings.cast(self.arrow) if re.search(times.OFFSET, shape) else self._local(strings)
        with_offset = pc.match_substring_regex(strings, times.OFFSET)
        if pc.all(with_offset).as_py() in (True, None):
            return strings.cast(self.arrow)
        if pc.any(with_offset).as_py():
            local = self._local(pc.if_else(with_offset, None, strings))
            apart = strings.filter(with_offset).cast(self.arrow)
            return None if local is None else pc.replace_with_mask(local, pc.fill_null(with_offset, False), apart)
        return self._local(strings)

    def _local(self, strings: Any) -> Any:
        plain = strings.cast(pa.timestamp("us"))
        if self.zone is UTC:
            return plain.cast(self.arrow)
        span = pc.min_max(plain.cast(pa.int64())).as_py()
        if span["min"] is not None and not _ARROW_FROM <= span["min"] <= span["max"] < _ARROW_BEFORE:
            return None
        return pc.assume_timezone(plain, str(self.zone), ambiguous="earliest", nonexistent="raise").cast(self.arrow)

    def _bounded(self, moments: Any) -> Any:
        span = extremes(moments.view(pa.int64()))
        return moments if span is None or (self._earliest <= span[0] and span[1] <= self._latest) else None

    @property
    def _earliest(self) -> int:
        return times.micros_of(self.settings.earliest_timestamp)

    @property
    def _latest(self) -> int:
        return times.micros_of(self.settings.latest_timestamp)

    def one(self, value: Any) -> Any:
        text = value if isinstance(value, str) else str(value)
        number = not isinstance(value, str)
        spelled = not number and self.zone is not None and _WHOLE.fullmatch(text) is not None
        if number or (spelled and self.settings.numeric_strings == "lossless"):
            return self._count(text)
        if spelled:
            raise Refused(f"{self.path} is the string {shown(text)}: {LOSSLESS_ADVICE} and timestamp_unit to its unit")
        micros = times.micros_of_text(text, self.zone, cut=self.settings.nanoseconds == "truncate")
        if micros is None:
            if times.micros_of_text(text, self.zone, cut=True) is not None:
                raise Refused(f"{self.path} is the time {shown(text)}: it counts less than a microsecond; to cut that, set nanoseconds to truncate")
            raise self.is_not(text)
        if not self._earliest <= micros <= self._latest:
            raise Refused(f"{self.path} is the time {shown(text)}: out of bounds: {bounds_text(self.settings)}")
        return micros

    def _count(self, text: str) -> int:
        unit = self.settings.unit_of(self.path)
        if unit is None:
            advice = "and no unit is declared; set timestamp_unit to s, ms or us, or send text such as 2026-01-02T03:04:05Z"
            raise Refused(f"{self.path} is the number {shown(text)}: {advice}")
        micros = int(text) * times.MICROSECONDS[unit] if len(text) <= _DIGITS_MAX else None
        if micros is None or not self._earliest <= micros <= self._latest:
            reason = f"out of bounds for timestamp_unit={unit}; check the unit: {bounds_text(self.settings)}"
            raise Refused(f"{self.path} is the number {shown(text)}: {reason}")
        return micros

    def array(self, kept: Sequence[Any]) -> Any:
        return pa.array(kept, pa.int64()).cast(self.arrow)


class Variant(JsonScalar):
    """The value as compact JSON, in which every name of an object stands once. Spark makes a VARIANT of it."""

    __slots__ = ()

    @property
    def annotation(self) -> Any:
        return msgspec.Raw

    def admit(self, value: Any) -> Any:
        return compact(value, str).encode()

    def convert(self, values: Sequence[Any]) -> Any:
        return None

    def one(self, value: Any) -> Any:
        text = bytes(value).decode()
        if text == "null":
            return None
        found = parse_value(text)
        self._check_limits(found)
        return compact(found, str)

    def _check_limits(self, found: Any) -> None:
        """Raises `Refused` for what Spark's parser refuses by failing the query."""
        waiting = [found]
        while waiting:
            each = waiting.pop()
            if isinstance(each, Number) and len(each.text) > _VARIANT_NUMBER_MAX:
                raise Refused(f"{self.path} holds a number of more than {_VARIANT_NUMBER_MAX} characters, which a VARIANT cannot hold")
            if isinstance(each, dict):
                if any(len(name) > _VARIANT_NAME_MAX for name in each):
                    raise Refused(f"{self.path} holds a name of more than {_VARIANT_NAME_MAX} characters, which a VARIANT cannot hold")
                waiting += each.values()
            elif isinstance(each, list):
                waiting += each
