"""The data files of one version of a table, with what its log says of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final  # Any: `deltalake` and pyarrow have no types

import pyarrow as pa

from waltz_delta.engine.log_actions import RemoveFile
from waltz_delta.engine.partition_values import scalar_text

__all__ = ["OUTSIDE", "is_outside", "living_files", "removals"]

OUTSIDE: Final = "^(/|[A-Za-z][A-Za-z0-9+.-]*:/)"
"""The path of a file that is not below the table's directory, as a shallow clone has."""


def living_files(handle: Any) -> pa.Table:
    """One row for each file: `path` as in the log, escapes included; `size_bytes`; `modification_time` in milliseconds; `num_records`; and the
    structs `partition`, `min`, `max` and `null_count` with a field for each column, by the types of the table. Any of the statistics may be null,
    and a struct is missing if no file has it. Files with deletion vectors are in no table that `allowed` accepts."""
    return pa.table(handle.get_add_actions(flatten=False))


def is_outside(path: str) -> bool:
    return re.match(OUTSIDE, path) is not None


def removals(files: pa.Table) -> Iterator[RemoveFile]:
    """Rows of `living_files` as actions that remove them."""
    parts = files["partition"].combine_chunks() if "partition" in files.column_names else None
    for at, (path, size) in enumerate(zip(files["path"].to_pylist(), files["size_bytes"].to_pylist(), strict=True)):
        yield RemoveFile(path, size, {} if parts is None else partition_texts(parts[at]))


def partition_texts(values: Any) -> dict[str, str | None]:
    """A scalar of the struct `partition` as the log holds it."""
    return {name: scalar_text(values[name]) for name in values}
