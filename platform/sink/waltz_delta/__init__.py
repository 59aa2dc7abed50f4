"""Lands the log in Delta tables exactly once, by marks that the tables themselves hold.

`DeltaAppend` and `DeltaUpsert` are functions for `foreachBatch`; `starting_transaction_ids` returns where a query starts; `high_water_marks` reads
the marks without a JVM. Names are imported on first use, because reading marks needs neither pyspark nor Java."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any  # Any: names that are imported on first use

if TYPE_CHECKING:
    from waltz_delta.decode.decode import shape
    from waltz_delta.errors import (
        GapInTable,
        KeyMoved,
        ModeChanged,
        NotADeltaTable,
        PositionForgotten,
        PositionNotReached,
        SchemaMismatch,
        Undecodable,
        UnreadableTable,
        UnsafeTable,
        UnsupportedDelta,
        WriteContended,
    )
    from waltz_delta.landing.append import DeltaAppend
    from waltz_delta.landing.history import DeltaHistory
    from waltz_delta.landing.landing import Landing, resulting_schemas
    from waltz_delta.landing.start import starting_transaction_ids
    from waltz_delta.landing.upsert import DeltaUpsert
    from waltz_delta.marks.marks import high_water_marks
    from waltz_delta.marks.positions import Cut, consistent_cut, dataframe_at, dataset_at, version_at
    from waltz_delta.marks.visible import wait_reached, wait_reached_async, wait_visible, wait_visible_async

__all__ = [
    "Cut",
    "DeltaAppend",
    "DeltaHistory",
    "DeltaUpsert",
    "GapInTable",
    "KeyMoved",
    "Landing",
    "ModeChanged",
    "NotADeltaTable",
    "PositionForgotten",
    "PositionNotReached",
    "SchemaMismatch",
    "Undecodable",
    "UnreadableTable",
    "UnsafeTable",
    "UnsupportedDelta",
    "WriteContended",
    "consistent_cut",
    "dataframe_at",
    "dataset_at",
    "high_water_marks",
    "resulting_schemas",
    "shape",
    "starting_transaction_ids",
    "version_at",
    "wait_reached",
    "wait_reached_async",
    "wait_visible",
    "wait_visible_async",
]

_WHERE = {
    "Cut": "marks.positions",
    "DeltaAppend": "landing.append",
    "DeltaHistory": "landing.history",
    "DeltaUpsert": "landing.upsert",
    "GapInTable": "errors",
    "KeyMoved": "errors",
    "Landing": "landing.landing",
    "ModeChanged": "errors",
    "NotADeltaTable": "errors",
    "PositionForgotten": "errors",
    "PositionNotReached": "errors",
    "SchemaMismatch": "errors",
    "Undecodable": "errors",
    "UnreadableTable": "errors",
    "UnsafeTable": "errors",
    "UnsupportedDelta": "errors",
    "WriteContended": "errors",
    "consistent_cut": "marks.positions",
    "dataframe_at": "marks.positions",
    "dataset_at": "marks.positions",
    "high_water_marks": "marks.marks",
    "resulting_schemas": "landing.landing",
    "shape": "decode.decode",
    "starting_transaction_ids": "landing.start",
    "version_at": "marks.positions",
    "wait_reached": "marks.visible",
    "wait_reached_async": "marks.visible",
    "wait_visible": "marks.visible",
    "wait_visible_async": "marks.visible",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"waltz_delta.{_WHERE[name]}"), name)
