"""The values of partition columns as the texts that a table's log holds. Pure.

Files lie flat in the table's directory. Nothing of a value is in a path, so no letter of it has to be escaped: a path that is escaped once more by a
reader would name no file, and VACUUM would delete the file that it means.

Source: Delta's PROTOCOL.md, "Partition Value Serialization".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date
from typing import Any, Final  # Any: pyarrow has no types

import numpy as np
import pyarrow as pa

__all__ = ["partition_text", "runs", "scalar_text"]

_NULL: Final = frozenset({"", "__HIVE_DEFAULT_PARTITION__"})
"""Texts that readers of Delta show as NULL in a partition column. They are stored as NULL, so that every reader agrees."""


def partition_text(value: object) -> str | None:
    """The text of a value of one of the types in `allowed.PARTITION_TYPES`."""
    if value is None or value in _NULL:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.isoformat() if isinstance(value, date) else str(value)


def runs(rows: pa.Table, names: Sequence[str]) -> Iterator[tuple[tuple[str | None, ...], pa.Table]]:
    """Splits rows where the value of a partition column changes. Each part comes with the texts of its values."""
    if not rows.num_rows:
        return
    changes = np.zeros(rows.num_rows - 1, dtype=bool)
    for name in names:
        codes = rows.column(name).combine_chunks().dictionary_encode(null_encoding="encode").indices.to_numpy(zero_copy_only=False)
        changes |= codes[1:] != codes[:-1]
    starts = [0, *(np.flatnonzero(changes) + 1).tolist()]
    for start, end in zip(starts, [*starts[1:], rows.num_rows], strict=True):
        yield tuple(scalar_text(rows.column(name)[start]) for name in names), rows.slice(start, end - start)


def scalar_text(value: Any) -> str | None:
    """`partition_text` of an Arrow scalar."""
    try:
        return partition_text(value.as_py())
    except (OverflowError, ValueError):  # a date that Python does not have: Spark's years reach further
        year, month, day = str(np.datetime64(value.value, "D")).rsplit("-", 2)
        return f"{'+' if value.value > 0 else ''}{int(year):0{5 if year.startswith('-') else 4}d}-{month}-{day}"
