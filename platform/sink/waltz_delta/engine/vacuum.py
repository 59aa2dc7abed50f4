"""Removes data files that no version of a table needs any more, without Spark: files that were removed from the table, or never were in it, and are
older than the retention.

`deltalake` lists them, in its full mode, and nothing else: its VACUUM also deletes foreign files, and has deleted living ones whose paths have
escaped letters. So a file is deleted only if it is a Parquet file of a plain path, and no living file has that path. What remains is reported.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from waltz_delta.base.store_errors import store_errors
from waltz_delta.engine.arrow_table import ArrowTable, engine_kept
from waltz_delta.engine.stores import file_system, is_local
from waltz_delta.errors import NotADeltaTable

__all__ = ["Vacuumed", "vacuum"]

_PLAIN: Final = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9_.=+-]*/)*[A-Za-z0-9][A-Za-z0-9_.=+-]*\.parquet")
"""A path that has no letter to escape, and no part that Delta hides."""


@dataclass(frozen=True, slots=True)
class Vacuumed:
    """`removed`: files that were, or would be, removed. `others`: of no table, or of paths with letters that this does not remove."""

    removed: int
    others: int


def vacuum(table: ArrowTable, hours: float, keep_versions: Sequence[int], *, dry_run: bool) -> Vacuumed:
    """`hours`: how long removed files are kept, rounded up. It must be longer than a batch runs, because no version has the files of a running one.
    `keep_versions`: whose files are kept too, whatever their age. Raises `NotADeltaTable`, `StoreUnavailable`, `UnsafeTable`."""
    with engine_kept(table.path):
        opened = table.reopen()
    if opened is None:
        raise NotADeltaTable(path=table.path, reason="no table there")
    with store_errors(table.path):
        found: list[str] = opened.delta_table.vacuum(
            math.ceil(hours), dry_run=True, enforce_retention_duration=False, full=True, keep_versions=sorted(keep_versions) or None
        )
        living = {unquote(path) for path in opened.living_files()["path"].to_pylist()}
        unneeded = [path for path in found if _PLAIN.fullmatch(path) and path not in living]
        if not dry_run:
            _delete(table, unneeded)
    return Vacuumed(len(unneeded), len(found) - len(unneeded))


def _delete(table: ArrowTable, paths: Sequence[str]) -> None:
    if is_local(table.location):
        for path in paths:
            (Path(table.location) / path).unlink(missing_ok=True)
        return
    files, root = file_system(table.location, table.storage)
    for path in paths:
        with suppress(FileNotFoundError):
            files.delete_file(f"{root}/{path}")
