"""A column that must be added to a table, by whichever engine writes it."""

from __future__ import annotations

from typing import NamedTuple

from pyspark.sql.types import DataType

__all__ = ["Missing"]


class Missing(NamedTuple):
    """A column, or a field within one, that the rows have and the table does not. `place`: its names from the outermost on, with `element`, `key` and
    `value` for what is within an ARRAY or a MAP."""

    place: tuple[str, ...]
    kind: DataType
