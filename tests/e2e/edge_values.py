"""Values at the edges of each type of a table, and how a test compares what a reader finds with them."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

__all__ = ["EDGES", "MOMENT", "same", "written"]

MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)

EDGES: dict[str, tuple[str, list[Any]]] = {
    "b": ("TINYINT", [-128, 127, None]),
    "i": ("INT", [-(2**31), 2**31 - 1, 0]),
    "l": ("BIGINT", [-(2**63), 2**63 - 1, 0]),
    "f": ("FLOAT", [math.nan, -math.inf, 1.5]),
    "d": ("DOUBLE", [math.nan, math.inf, -0.0]),
    "m": ("DECIMAL(15,2)", [Decimal("-9999999999999.99"), Decimal("9999999999999.99"), Decimal("0.01")]),
    "n": ("DECIMAL(18,4)", [Decimal("12345678901234.5678"), Decimal("-12345678901234.5678"), None]),
    "h": ("DECIMAL(38,0)", [Decimal(10**37 + 1), Decimal(-(10**37) - 1), None]),
    "s": ("STRING", ["", "x" * 40 + "\u00e9", "it's \U0001f600"]),
    "y": ("BINARY", [b"", b"\x00\xff", None]),
    "o": ("BOOLEAN", [True, False, None]),
    "a": ("DATE", [date(1, 1, 1), date(9999, 12, 31), date(1582, 10, 4)]),
    "t": ("TIMESTAMP", [datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, 23, 59, 59, 999999, UTC), MOMENT]),
    "u": ("STRUCT<x: INT, z: ARRAY<STRING>>", [{"x": 1, "z": ["a", None]}, None, {"x": None, "z": None}]),
    "k": ("MAP<STRING, DOUBLE>", [{"k": 1.0, "n": None}, {}, None]),
    "p": ("STRING", ["", "50% /=\u00e9", "__HIVE_DEFAULT_PARTITION__"]),
}
"""Columns with their types, and the values of three rows."""


def written(value: Any) -> str:
    """The value as a text that Spark casts."""
    return value.isoformat() if isinstance(value, date) else str(value)


def same(found: Any, expected: Any) -> bool:
    if isinstance(expected, float) and math.isnan(expected):
        return bool(math.isnan(found))
    if isinstance(expected, datetime):
        return bool(found.replace(tzinfo=UTC) == expected or found.astimezone(UTC) == expected)
    if isinstance(expected, dict) and not isinstance(found, dict):
        return bool(found.asDict(recursive=True) == expected)
    return bool(found == expected)
