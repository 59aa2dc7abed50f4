"""Lands the log in Delta tables exactly once, by marks that the tables themselves hold.

`DeltaAppend` and `DeltaUpsert` go into `foreachBatch`; `starting_transaction_ids` says where a query starts; `high_water_marks` reads the marks
without a JVM. Names are loaded when first used: reading marks needs neither pyspark nor Java."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from waltz_delta.append import DeltaAppend
    from waltz_delta.decode import shape
    from waltz_delta.errors import GapInTable, NotADeltaTable, SchemaMismatch, UnsupportedDelta, WriteContended
    from waltz_delta.marks import high_water_marks
    from waltz_delta.start import starting_transaction_ids
    from waltz_delta.upsert import DeltaUpsert

__all__ = [
    "DeltaAppend",
    "DeltaUpsert",
    "GapInTable",
    "NotADeltaTable",
    "SchemaMismatch",
    "UnsupportedDelta",
    "WriteContended",
    "high_water_marks",
    "shape",
    "starting_transaction_ids",
]

_WHERE = {
    "DeltaAppend": "append",
    "DeltaUpsert": "upsert",
    "GapInTable": "errors",
    "NotADeltaTable": "errors",
    "SchemaMismatch": "errors",
    "UnsupportedDelta": "errors",
    "WriteContended": "errors",
    "high_water_marks": "marks",
    "shape": "decode",
    "starting_transaction_ids": "start",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"waltz_delta.{_WHERE[name]}"), name)
