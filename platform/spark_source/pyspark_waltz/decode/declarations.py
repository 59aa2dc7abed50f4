"""Settings that name columns: whether those are declared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pyspark.sql.types import ArrayType, DataType, MapType, StructType, TimestampType, VariantType

from pyspark_waltz.decode.settings import DecodeSettings
from waltz_log.errors import InvalidSetting

__all__ = ["check_names", "holds_variant"]


def check_names(settings: DecodeSettings, columns: StructType) -> None:
    """Raises `InvalidSetting`, with the nearest name, for a unit of what is no TIMESTAMP and for the field of a column that is not declared."""
    _check("timestamp_units", settings.timestamp_units, list(_timestamps(columns, "")), "column of type TIMESTAMP")
    _check("fields", settings.fields, columns.names, "column")
    given = settings.names_in_data(columns.names)
    for name in given:
        if given.count(name) > 1:
            raise InvalidSetting(name="fields", reason=f"give the field {name} to two columns", nearest=None)


def holds_variant(kind: DataType) -> bool:
    """Whether a VARIANT is anywhere in the type."""
    if isinstance(kind, StructType):
        return any(holds_variant(field.dataType) for field in kind.fields)
    if isinstance(kind, ArrayType | MapType):
        return holds_variant(kind.elementType if isinstance(kind, ArrayType) else kind.valueType)
    return isinstance(kind, VariantType)


def _check(setting: str, given: Mapping[str, str], known: list[str], what: str) -> None:
    for name in given:
        if name not in known:
            near = InvalidSetting.unknown(name, known).nearest
            raise InvalidSetting(name=f"{setting}.{name}", reason=f"no such {what}", nearest=near)


def _timestamps(kind: DataType, path: str) -> Iterator[str]:
    """The path of each TIMESTAMP; elements and values have the path of what contains them."""
    if isinstance(kind, StructType):
        for field in kind.fields:
            yield from _timestamps(field.dataType, f"{path}.{field.name}" if path else field.name)
    elif isinstance(kind, ArrayType):
        yield from _timestamps(kind.elementType, path)
    elif isinstance(kind, MapType):
        yield from _timestamps(kind.valueType, path)
    elif isinstance(kind, TimestampType):
        yield path
