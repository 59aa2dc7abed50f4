"""Data frames as sources of a bulk append, whatever library they are of: they export Arrow's C stream (the PyCapsule interface)."""

from __future__ import annotations

from typing import Any  # Arrow is imported only for a data frame

from waltz_log.client.base import arrow
from waltz_log.errors import InvalidRequest
from waltz_log.extras import explain_missing

__all__ = ["without_frames"]

VIEWS = {"string_view": "large_string", "binary_view": "large_binary"}
"""Types that a library may export, and those that appends read."""

INDEX = "__index_level_"
"""How the names of the columns begin that pandas makes of an index."""

HEADER = "header"


def without_frames(source: Any) -> Any:
    """The source; in the place of a data frame, an Arrow table with the same columns. Its columns are checked as those of any table. Raises
    `InvalidRequest` for a single column, such as a series, and for what iterates over something else than entries, `ModuleNotFoundError` without
    pyarrow."""
    if hasattr(source, "to_frame") or isinstance(source, dict):
        kind = type(source).__name__
        raise InvalidRequest(reason=f"cannot append a {kind} in bulk: pass a list of bytes, or a data frame with a column data")
    if not hasattr(source, "__arrow_c_stream__") or hasattr(source, "to_batches") or arrow.is_batch(source):
        return source
    with explain_missing("a bulk append of a data frame", "spark"):
        import pyarrow
    try:
        table = pyarrow.table(source)
        table = table.select([name for name in table.column_names if not name.startswith(INDEX)])
        return table.cast(pyarrow.schema([(field.name, _type(pyarrow, field)) for field in table.schema]))
    except (pyarrow.ArrowException, TypeError, ValueError) as error:
        raise InvalidRequest(reason=f"cannot append this {type(source).__name__}: {error}") from None


def _type(arrow: Any, field: Any) -> Any:
    """A header is 32 bits, whatever whole numbers a library has; one that does not fit is an error."""
    if field.name == HEADER and arrow.types.is_integer(field.type):
        return arrow.int32()
    view = VIEWS.get(str(field.type))
    return field.type if view is None else getattr(arrow, view)()
