"""Column types of SQL (`a INT, b STRUCT<c: INT>`) without Spark, whose own parser needs the JVM. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final  # Any: JSON values

from pyspark.sql.types import StructType

__all__ = ["declared_fields", "declared_schema", "split_fields"]

_FIELD: Final = re.compile(r"(?P<name>`(?:[^`]|``)+`|[^\s`:]+)\s*:?\s*(?P<kind>.+?)(?:\s+NOT\s+NULL)?(?:\s+COMMENT\s.*)?", re.IGNORECASE | re.DOTALL)
_QUOTED: Final = re.compile(r"""`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""", re.DOTALL)
_NESTED: Final = re.compile(r"(array|map|struct)\s*<(.*)>", re.IGNORECASE | re.DOTALL)
_DECIMAL: Final = re.compile(r"(?:decimal|dec|numeric)(?:\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?")
_NAMES: Final = {
    "bigint": "long",
    "bool": "boolean",
    "int": "integer",
    "real": "float",
    "smallint": "short",
    "timestamp_ltz": "timestamp",
    "tinyint": "byte",
}
"""SQL's names, where Delta's JSON has others."""


def declared_fields(ddl: str) -> Iterator[tuple[str, str]]:
    """Parses `a INT NOT NULL, b STRUCT<c: INT, d: STRING>` into pairs of name and type."""
    for part in split_fields(ddl):
        if field := _FIELD.fullmatch(part):
            name = field["name"]
            yield name[1:-1].replace("``", "`") if name.startswith("`") else name, field["kind"]


def declared_schema(ddl: str) -> StructType | None:
    """The columns as Spark reads them, each of which may be null; None for a type that only Spark knows."""
    try:
        return StructType.fromJson(_struct(ddl))
    except Exception:  # pyspark raises several kinds, for each type that its own JSON does not have
        return None


def split_fields(text: str) -> Iterator[str]:
    """The parts between commas that are not within brackets or quotes."""
    depth, start = 0, 0
    for at, letter in enumerate([*_QUOTED.sub(lambda found: "q" * len(found[0]), text), ","]):
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and depth == 0:
            yield text[start:at].strip()
            start = at + 1


def _struct(ddl: str) -> dict[str, Any]:
    fields = [{"name": name, "type": _kind(kind), "nullable": True, "metadata": {}} for name, kind in declared_fields(ddl)]
    if len(fields) != len(list(split_fields(ddl))):
        raise ValueError(f"not a name and a type: {ddl}")
    return {"type": "struct", "fields": fields}


def _kind(text: str) -> Any:
    """A type in Delta's JSON. An unknown one stays as it is."""
    if nested := _NESTED.fullmatch(text.strip()):
        outer, inner = nested[1].lower(), nested[2]
        if outer == "struct":
            return _struct(inner)
        kinds = [_kind(part) for part in split_fields(inner)]
        if outer == "array":
            return {"type": "array", "elementType": kinds[0], "containsNull": True}
        return {"type": "map", "keyType": kinds[0], "valueType": kinds[1], "valueContainsNull": True}
    name = " ".join(text.lower().split())
    if decimal := _DECIMAL.fullmatch(name):
        return f"decimal({decimal[1] or 10},{decimal[2] or 0})"
    return _NAMES.get(name, name)
