"""From JSON text to columns. Spark's `from_json` parses it; this module refuses what Spark accepts but no application means. Plans only.

First the text itself is checked (`decode_text`), since some text must not reach Spark's parser. Then it is parsed. A TIMESTAMP is read as a VARIANT,
which preserves whether it was a number or a string; so are numbers that a string may spell (`numeric_strings: lossless`). Last, each such value
becomes what was declared, or a problem that names its path.

Spark itself reads a DECIMAL. It keeps every digit of a number, but accepts strings as well. Only a text that may hold such a string is parsed again
to find them, with a VARIANT for each DECIMAL.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
)

from waltz_delta.decode.decode_nested import Checked, checked, first_problem, kept_only, replaced
from waltz_delta.decode.decode_text import endless_number, half_of_a_pair, may_hold_exponent_string, may_hold_numeric_string
from waltz_delta.decode.decode_times import TypedTimes, bounds_text, outside, timestamp_of_number, timestamp_of_text
from waltz_delta.marks.batch import DATA, PROBLEM
from waltz_delta.settings import DecodeSettings

__all__ = ["decode_json"]

TEXT_PROBLEM = "_waltz_text_problem"
VALUE = "_waltz_value"

SEAL = f"_waltz_{secrets.token_hex(12)}"
"""Names the wrapper in which JSON text is parsed. It is random and unknown to every application that writes to the log, so no text can close the
wrapper and open it again."""

_OPTIONS = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": PROBLEM,
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
    "enableDateTimeParsingFallback": "false",  # otherwise "20260102" is a number of days, the year 57440
}
_WHOLE: Final = r"^-?(?:0|[1-9][0-9]*)$"
_NUMBER: Final = r"^-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?$"
_SHOWN_MAX: Final = 40
"""Most characters of a value that a reason shows."""
_LOSSLESS: Final = "send a number, or set numeric_strings to lossless"


def decode_json(rows: DataFrame, kept: list[str], columns: StructType, settings: DecodeSettings) -> DataFrame:
    """The kept columns, the unchanged data, the declared columns, and why a transaction does not decode.

    The data is parsed as the first element of an array, so that text after it is an error, which Spark would otherwise ignore. The second element
    proves that the data did not close the array: Spark ignores fields that are not declared, and everything after the outermost object."""
    values = _Values(settings)
    raw = rows.select(*kept, f.col("data").alias(DATA))
    judged = raw.withColumn(TEXT_PROBLEM, _text_problem(columns, settings))
    text = f.col(DATA).cast("string")
    value = _read(text, _with_variants(columns, values.read_as_variant))
    read = judged.withColumn(VALUE, f.when(f.col(TEXT_PROBLEM).isNull(), value))
    one = f.col(VALUE)[SEAL]
    first = f.get(one, f.lit(0))
    parts = [(field, checked(first[field.name], field.dataType, field.name, values)) for field in columns.fields]
    single = f.coalesce((f.size(one) == 2) & f.get(one, f.lit(1))[SEAL], f.lit(False)) & first.isNotNull()
    reason = f.when(f.col(TEXT_PROBLEM).isNotNull(), f.col(TEXT_PROBLEM)).when(~single, "is not one JSON object")
    unread = f.col(VALUE)[PROBLEM].isNotNull()
    for field in columns.fields:  # evaluated only if there is a problem
        given = f.get_json_object(text, "$['" + field.name.replace("'", "\\'") + "']")
        reason = reason.when(unread & given.isNotNull() & first[field.name].isNull(), _refused(given, field))
    reason = reason.when(unread, "a value is not of its declared type")
    wrong = first_problem(part for _, part in parts)
    problem = reason if wrong is None else reason.otherwise(wrong)
    made = [part.value.alias(field.name, metadata=field.metadata) for field, part in parts]
    return read.select(*kept, DATA, *made, problem.alias(PROBLEM))


def _read(text: Column, columns: StructType) -> Column:
    sealed = f.concat(f.lit(f'{{"{SEAL}":['), text, f.lit(f',{{"{SEAL}":true}}]}}'))
    element = StructType([*columns.fields, StructField(SEAL, BooleanType())])
    outer = StructType([StructField(SEAL, ArrayType(element)), StructField(PROBLEM, StringType())])
    return f.from_json(sealed, outer, _OPTIONS)


def _with_variants(columns: StructType, test: Callable[[DataType], bool]) -> StructType:
    found = replaced(columns, test, VariantType())
    assert isinstance(found, StructType)
    return found


def _refused(given: Column, field: StructField) -> Column:
    """Why a value was refused. `given`: the value as text, of any type. If it spells a value of the column's type, it was a string."""
    kind, other = field.dataType, f.lit(f"{field.name} is not {_shown_type(field.dataType)}")
    if not isinstance(kind, IntegralType | FloatType | DoubleType):
        return other
    spelled = given.rlike(_WHOLE if isinstance(kind, IntegralType) else _NUMBER) & given.try_cast(kind).isNotNull()
    return f.when(spelled, _reason(field.name, given, "string", _LOSSLESS)).otherwise(other)


def _text_problem(columns: StructType, settings: DecodeSettings) -> Column:
    """Null if Spark's parser may read the text."""
    data, text = f.col(DATA), f.col(DATA).cast("string")
    found = f.when(data.isNull(), "no data").when(~f.is_valid_utf8(text), "is not UTF-8")
    found = found.when(half_of_a_pair(text), "holds half of a surrogate pair (such as \\ud800 alone), which is no character")
    decimals = kept_only(columns, _is_decimal)
    if decimals is None:
        return found
    assert isinstance(decimals, StructType)
    found = found.when(endless_number(text), "a number has an exponent of more than three digits")
    read = _read(text, _with_variants(decimals, _is_decimal))
    first = f.get(read[SEAL], f.lit(0))
    strings = _DecimalStrings(settings)
    wrong = first_problem(checked(first[field.name], field.dataType, field.name, strings) for field in decimals.fields)
    assert wrong is not None
    unsafe = read[PROBLEM].isNotNull() & may_hold_exponent_string(text)
    return found.when(may_hold_numeric_string(text), f.coalesce(wrong, f.when(unsafe, "is not one JSON object")))


def _is_decimal(kind: DataType) -> bool:
    return isinstance(kind, DecimalType)


class _Values:
    """The checks of a value after it was read."""

    def __init__(self, settings: DecodeSettings) -> None:
        self._settings = settings
        self._times = TypedTimes(settings)
        self._lossless = settings.numeric_strings == "lossless"

    def read_as_variant(self, kind: DataType) -> bool:
        return isinstance(kind, TimestampType) or (self._lossless and isinstance(kind, IntegralType | FloatType | DoubleType))

    def inspects(self, kind: DataType) -> bool:
        return self.read_as_variant(kind) or self._times.inspects(kind) or isinstance(kind, FloatType | DoubleType)

    def converts(self, kind: DataType) -> bool:
        return self.read_as_variant(kind)

    def check(self, read: Column, kind: DataType, path: str) -> Checked:
        if isinstance(kind, TimestampType):
            return self._timestamp(read, path)
        if self._times.inspects(kind):
            return self._times.check(read, kind, path)
        if self._lossless:
            return self._number(read, kind, path)
        return Checked(read, f.when(f.abs(read) == float("inf"), f"{path} is not {_shown_type(kind)}"))  # too large for the type

    def _number(self, read: Column, kind: DataType, path: str) -> Checked:
        """A number, or a string that JSON would accept as a number."""
        given, text = _kind(read), _text(read)
        whole = isinstance(kind, IntegralType)
        number = (given == "BIGINT") if whole else given.isin("BIGINT", "DOUBLE") | given.startswith("DECIMAL")
        spelled = (given == "STRING") & text.rlike(_WHOLE if whole else _NUMBER)
        value = f.when(number | spelled, f.try_variant_get(read, "$", kind.simpleString()))
        if not whole:
            value = f.when(f.abs(value) != float("inf"), value)
        problem = f.concat(f.lit(f"{path} is not {_shown_type(kind)}: "), f.coalesce(f.substring(text, 1, _SHOWN_MAX), f.lit("?")))
        return Checked(value, f.when(_is_there(read) & value.isNull(), problem))

    def _timestamp(self, read: Column, path: str) -> Checked:
        settings, unit = self._settings, self._settings.unit_of(path)
        given, text = _kind(read), _text(read)
        whole = given == "BIGINT"
        spelled = (given == "STRING") & text.rlike(_WHOLE)
        counted = whole | spelled if self._lossless else whole
        moment = timestamp_of_text(f.when(given == "STRING", text))
        value = f.when(~outside(moment, settings), moment)
        if unit is not None:
            value = f.when(counted, timestamp_of_number(f.try_variant_get(read, "$", "bigint"), unit, settings)).otherwise(value)
            number = f"out of bounds for timestamp_unit={unit}; check the unit: {bounds_text(settings)}"
        else:
            number = "and no unit is declared; set timestamp_unit to s, ms or us, or send text such as 2026-01-02T03:04:05Z"
        problem = f.when(counted, _reason(path, text, "number", number))
        if not self._lossless:
            problem = problem.when(spelled, _reason(path, text, "string", f"{_LOSSLESS} and timestamp_unit to its unit"))
        problem = problem.when(moment.isNotNull(), _reason(path, text, "time", f"out of bounds: {bounds_text(settings)}"))
        return Checked(value, f.when(_is_there(read) & value.isNull(), problem.otherwise(f"{path} is not TIMESTAMP")))


class _DecimalStrings:
    """Finds strings in place of a DECIMAL that are not allowed. Read as VARIANT."""

    def __init__(self, settings: DecodeSettings) -> None:
        self._lossless = settings.numeric_strings == "lossless"

    def inspects(self, kind: DataType) -> bool:
        return _is_decimal(kind)

    def converts(self, kind: DataType) -> bool:
        return False

    def check(self, read: Column, kind: DataType, path: str) -> Checked:
        """Lossless: in plain notation, with no more significant digits after the point than the scale. Spark refuses a number that is too large."""
        assert isinstance(kind, DecimalType)
        wrong, text = _kind(read) == "STRING", _text(read)
        advice = _LOSSLESS
        if self._lossless:
            wrong = wrong & ~text.rlike(rf"^-?(?:0|[1-9][0-9]*)(?:\.[0-9]{{0,{kind.scale}}}0*)?$")
            advice = f"not a plain number with {kind.scale} digits after the point at most"
        return Checked(read, f.when(wrong, _reason(path, text, "string", advice)))


def _text(read: Column) -> Column:
    return f.try_variant_get(read, "$", "string")


def _kind(read: Column) -> Column:
    """The type of a VARIANT; null for an array or object, and for a string that begins like one. Spark finds the type of an array by merging the
    types of its elements, which takes hours for some megabytes of objects with different keys."""
    return f.when(~_text(read).rlike(r"^[\[{]"), f.schema_of_variant(read))


def _is_there(read: Column) -> Column:
    """Neither missing nor JSON null."""
    return read.isNotNull() & ~f.is_variant_null(read)


def _reason(path: str, given: Column, what: str, advice: str) -> Column:
    return f.concat(f.lit(f"{path} is the {what} "), f.substring(given, 1, _SHOWN_MAX), f.lit(f": {advice}"))


def _shown_type(kind: DataType) -> str:
    return str(kind.simpleString()).upper()[:60]
