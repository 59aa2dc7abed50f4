"""Rows of a table that a task makes by itself. Spark gives it ranges of the log; it reads and decodes them, and then writes the rows or packs them
for the driver. No value of a row crosses to the JVM, where each would be converted twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["DirectRows", "MakeRows", "Undecoded", "direct_columns"]


@dataclass(slots=True)
class Undecoded:
    """How many transactions of a task did not decode."""

    count: int = 0


class MakeRows(Protocol):
    """Turns the batches that a task gets into rows, and counts what does not decode. Spark pickles it."""

    def __call__(self, batches: Iterator[pa.RecordBatch], undecoded: Undecoded) -> Iterator[pa.RecordBatch]: ...


@dataclass(slots=True)
class DirectRows:
    """`frame`: what the tasks get. `schema`: of the rows that `make` returns."""

    frame: DataFrame
    schema: StructType
    make: MakeRows
    undecoded: int | None = None
    """How many transactions did not decode; None before a job has read them."""


def direct_columns(rows: StructType, held: StructType) -> Sequence[tuple[str, int]] | None:
    """The columns of the table that the rows have: each with its place in the rows, in the table's order. None if a value must be converted first, or
    the rows have a column that the table lacks."""
    there = {field.name.lower(): number for number, field in enumerate(rows.fields)}
    found = []
    for field in held.fields:
        number = there.pop(field.name.lower(), None)
        if number is not None:
            if rows.fields[number].dataType.simpleString() != field.dataType.simpleString():
                return None
            found.append((field.name, number))
    return None if there else found
