"""A Delta table as a pyarrow dataset, without a JVM; refused where that would show other rows than the table has.

pyarrow reads Parquet files by the names of their columns. Files of a table with column mapping have other names, so it would find no column, and show
NULL or no rows, without an error. It knows nothing of deletion vectors, which mark rows of a file as deleted, nor of a column whose type was widened
after a file was written.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final  # pyarrow has no types

from waltz_delta.errors import UnreadableTable

__all__ = ["READ", "open_dataset", "unread_features"]

READ: Final = frozenset({"timestampNtz", "variantType", "variantType-preview", "v2Checkpoint", "vacuumProtocolCheck"})
"""Reader features that change nothing about the rows of a file as pyarrow reads it, or that `deltalake` itself handles."""


def unread_features(reader_version: int, features: Iterable[str] | None, properties: dict[str, str]) -> list[str]:
    """What the table needs of a reader that pyarrow does not do. `features`: None before the third version of the reader's protocol, when the second
    one stood for column mapping."""
    found = set(features or ()) - READ
    if reader_version == 2 and properties.get("delta.columnMapping.mode", "none") != "none":
        found.add("columnMapping")
    return sorted(found)


def open_dataset(path: str, *, version: int | None = None, storage_options: dict[str, str] | None = None) -> Any:
    """No data is read yet. Raises `UnreadableTable`."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, DeltaProtocolError
    from pyarrow import table as arrow_table
    from pyarrow.dataset import ParquetReadOptions

    from waltz_delta.base.file_guarantees import with_true_guarantees

    try:
        table = DeltaTable(path, version=version, storage_options=storage_options)
    except DeltaError as error:
        if "Unsupported" not in str(error):
            raise
        raise UnreadableTable(path=path, reason=str(error)) from None  # a feature that `deltalake` has never heard of
    protocol = table.protocol()
    unread = unread_features(protocol.min_reader_version, protocol.reader_features, table.metadata().configuration)
    if unread:
        raise UnreadableTable(path=path, reason=f"it has {', '.join(unread)}")
    # Tables written before the sink set the timestamp type hold INT96; read as nanoseconds, a date after 2262 would fail.
    options = ParquetReadOptions(coerce_int96_timestamp_unit="us")
    try:
        dataset = table.to_pyarrow_dataset(parquet_read_options=options)
    except DeltaProtocolError as error:
        raise UnreadableTable(path=path, reason=str(error)) from None
    files = arrow_table(table.get_add_actions(flatten=True)).to_pylist()
    return with_true_guarantees(dataset, files, table.metadata().partition_columns)
