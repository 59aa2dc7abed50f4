"""One Arrow column as the declared type: cast if nothing is lost, and refused if Arrow would guess. Values only, no Spark.

Arrow reads any whole number as the microseconds of a timestamp or the days of a date, and reads strings as numbers (even `0x1F`). The settings for
numbers without a unit, numeric strings and bounds apply here as in JSON, also within lists, structs and maps.

Pyright does not know the functions of `pyarrow.compute`: pyarrow generates them when it is imported."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any  # Any: pyarrow has no types

from pyspark_waltz.decode.problems import Refused, shown
from pyspark_waltz.decode.settings import EARLIEST, LATEST, DecodeSettings, bounds_text
from pyspark_waltz.decode.times import EPOCH_DAY, micros_of

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["declared_values"]

_WHOLE = r"^-?(0|[1-9][0-9]*)$"
_NUMBER = r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$"


def declared_values(column: pa.ChunkedArray, wanted: pa.DataType, path: str, settings: DecodeSettings) -> pa.ChunkedArray:
    """Raises `Refused` if the column is not of the type, cannot be cast to it without loss, or is out of bounds."""
    import pyarrow as pa

    made = column if column.type == wanted else _converted(column, wanted, path, settings)
    if pa.types.is_float32(wanted) and pa.types.is_float64(column.type) and _infinite(made) != _infinite(column):
        raise Refused(f"{path} has a {column.type} that does not fit into {wanted}")
    for where, values, kind in _scalars(made, wanted, path):
        _check_bounds(values, kind, where, settings)
    return made


def _converted(column: pa.ChunkedArray, wanted: pa.DataType, path: str, settings: DecodeSettings) -> pa.ChunkedArray:
    import pyarrow as pa

    try:
        plain = _cast(column, _decoded(column.type))
        counted = _with_units(plain.type, wanted, path, settings)
        for where, values, kind in _scalars(plain, wanted, path):
            _check_strings(values, kind, where)
        for step in (_counts(plain.type, counted), counted, wanted):
            plain = _cast(plain, step)
    except pa.ArrowException:
        hint = f", or out of bounds in the unit {settings.unit_of(path)}; check timestamp_unit" if settings.unit_of(path) else ""
        raise Refused(f"{path} is {column.type}, not {wanted}{hint}") from None
    return plain


def _infinite(column: Any) -> int:
    import pyarrow.compute as pc

    return int(pc.sum(pc.is_inf(column)).as_py() or 0)  # pyright: ignore[reportAttributeAccessIssue]


def _cast(column: Any, kind: Any) -> Any:
    return column if column.type == kind else column.cast(kind)


def _decoded(kind: pa.DataType) -> pa.DataType:
    """The type without its dictionary encoding."""
    import pyarrow as pa

    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _with_units(given: pa.DataType, wanted: pa.DataType, path: str, settings: DecodeSettings) -> pa.DataType:
    """The given type with a timestamp of the declared unit for each whole number whose declared type is a timestamp. Refuses what Arrow would
    guess."""
    import pyarrow as pa

    kinds = pa.types
    if kinds.is_map(wanted) and kinds.is_map(given):
        return pa.map_(given.key_type, _with_units(given.item_type, wanted.item_type, path, settings))
    if kinds.is_struct(wanted) and kinds.is_struct(given):
        asked = {field.name: field.type for field in wanted}
        parts = [field if field.name not in asked else _field(field, asked[field.name], path, settings) for field in given]
        return pa.struct(parts)
    if kinds.is_list(wanted) and _is_list(given):
        return pa.list_(_with_units(given.value_type, wanted.value_type, path, settings))
    if kinds.is_integer(given) and kinds.is_date(wanted):
        raise Refused(f"{path} is {given}, not {wanted}")
    counted = kinds.is_timestamp(given) or kinds.is_date(given) or kinds.is_time(given) or kinds.is_duration(given)
    if (kinds.is_boolean(wanted) != kinds.is_boolean(given) and not kinds.is_null(given) and not kinds.is_string(wanted)) or (
        counted and (_is_number(wanted) or (kinds.is_date(wanted) and not kinds.is_date(given)))
    ):
        raise Refused(f"{path} is {given}, not {wanted}")
    if kinds.is_integer(given) and kinds.is_timestamp(wanted) and wanted.tz is not None:
        unit = settings.unit_of(path)
        if unit is None:
            raise Refused(f"{path} is {given} and no unit is declared; set timestamp_unit to s, ms or us, or send an Arrow timestamp")
        return pa.timestamp(unit, wanted.tz)
    if kinds.is_integer(given) and kinds.is_timestamp(wanted):
        raise Refused(f"{path} is {given}, not {wanted}")
    if _is_number(wanted) and _is_text(given) and settings.numeric_strings == "strict":
        raise Refused(f"{path} is {given}, not {wanted}; send numbers, or set numeric_strings to lossless")
    if kinds.is_binary(given) or kinds.is_large_binary(given):
        return pa.string() if _is_number(wanted) else given
    return given


def _field(field: pa.Field, wanted: pa.DataType, path: str, settings: DecodeSettings) -> pa.Field:
    return field.with_type(_with_units(field.type, wanted, f"{path}.{field.name}", settings))


def _counts(given: pa.DataType, counted: pa.DataType) -> pa.DataType:
    """The counted type with 64-bit numbers where the given type has numbers: no others become timestamps in one step."""
    import pyarrow as pa

    kinds = pa.types
    if kinds.is_map(counted):
        return pa.map_(counted.key_type, _counts(given.item_type, counted.item_type))
    if kinds.is_struct(counted):
        return pa.struct([field.with_type(_counts(own.type, field.type)) for own, field in zip(given, counted, strict=True)])
    if kinds.is_list(counted):
        return pa.list_(_counts(given.value_type, counted.value_type))
    return pa.int64() if kinds.is_integer(given) and kinds.is_timestamp(counted) else counted


def _is_list(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_number(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _is_text(kind: pa.DataType) -> bool:
    import pyarrow as pa

    kinds = pa.types
    tests = (kinds.is_string, kinds.is_large_string, kinds.is_string_view, kinds.is_binary, kinds.is_large_binary, kinds.is_binary_view)
    return any(test(kind) for test in tests)


def _scalars(column: pa.ChunkedArray, wanted: pa.DataType, path: str) -> Iterator[tuple[str, pa.Array, pa.DataType]]:
    """Path, values and wanted type of each scalar."""
    for chunk in column.chunks:
        yield from _within(chunk, wanted, path)


def _within(values: pa.Array, wanted: pa.DataType, path: str) -> Iterator[tuple[str, pa.Array, pa.DataType]]:
    import pyarrow as pa

    kinds = pa.types
    if kinds.is_map(wanted):
        if kinds.is_map(values.type):
            offsets = values.offsets
            items = values.items.slice(offsets[0].as_py(), offsets[-1].as_py() - offsets[0].as_py())
            yield from _within(items, wanted.item_type, path)
    elif kinds.is_struct(wanted):
        if kinds.is_struct(values.type):
            asked = {field.name: field.type for field in wanted}
            for field, part in zip(values.type, values.flatten(), strict=True):
                if field.name in asked:
                    yield from _within(part, asked[field.name], f"{path}.{field.name}")
    elif kinds.is_list(wanted):
        if _is_list(values.type):
            yield from _within(values.flatten(), wanted.value_type, path)
    else:
        yield path, values, wanted


def _check_strings(values: pa.Array, wanted: pa.DataType, path: str) -> None:
    """Checks strings that become numbers: refuses each one that is not a number in JSON or has more digits than the scale."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not (_is_number(wanted) and _is_text(values.type)):
        return
    form = _NUMBER if pa.types.is_floating(wanted) else _WHOLE
    if pa.types.is_decimal(wanted):
        # Arrow converts longer texts to other numbers without an error.
        whole, zeros = wanted.precision - wanted.scale, max(0, 37 - wanted.precision)
        form = rf"^-?({f'0|[1-9][0-9]{{0,{whole - 1}}}' if whole else '0'})(\.[0-9]{{0,{wanted.scale}}}0{{0,{zeros}}})?$"
    texts = _cast(values, pa.string())
    wrong = texts.filter(pc.invert(pc.match_substring_regex(texts, form)))  # pyright: ignore[reportAttributeAccessIssue]
    if not len(wrong) and pa.types.is_floating(wanted):
        wrong = texts.filter(pc.is_inf(texts.cast(wanted)))  # pyright: ignore[reportAttributeAccessIssue]
    if len(wrong):
        raise Refused(f"{path} is the string {shown(wrong[0].as_py())}, not {wanted}")


def _check_bounds(values: pa.Array, kind: pa.DataType, path: str, settings: DecodeSettings) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_timestamp(kind):
        counts, least, most = values.cast(pa.int64()), micros_of(settings.earliest_timestamp), micros_of(settings.latest_timestamp)
        unit = settings.unit_of(path)
        reason = f"out of bounds; check the unit of its numbers{f', timestamp_unit={unit}' if unit else ''}: {bounds_text(settings)}"
    elif pa.types.is_date(kind):
        counts, least, most = values.cast(pa.int32()), EARLIEST.toordinal() - EPOCH_DAY, LATEST.toordinal() - EPOCH_DAY
        reason = f"not a date from {EARLIEST.date()} to {LATEST.date()}"
    else:
        return
    found = pc.min_max(counts).as_py()  # pyright: ignore[reportAttributeAccessIssue]
    for count in (found["min"], found["max"]):
        if count is not None and not least <= count <= most:
            what = "microseconds" if pa.types.is_timestamp(kind) else "days"
            raise Refused(f"{path} is {count} {what} from 1970, {reason}")
