"""Finds what is wrong with the newest checkpoint of a table that `deltalake` does not open: its errors name no file."""

from __future__ import annotations

import json
from typing import Any, Final  # Any: pyarrow has no types

import pyarrow as pa
import pyarrow.fs as fs
import pyarrow.parquet as parquet

from waltz_delta.base.commit_info import VERSION_END, parsed
from waltz_delta.base.damaged_checkpoint import CHECKPOINT, COMMIT, remedy

__all__ = ["HINT", "damage", "hinted_version"]

HINT: Final = "_last_checkpoint"
"""A file in the log that names the newest checkpoint."""


def damage(files: Any, log: str) -> str | None:
    """A sentence with what to do. None if the newest checkpoint can be read, if there is none, or if the store does not answer. `log`: its directory
    in the file system `files`."""
    try:
        names = sorted(found.base_name for found in files.get_file_info(fs.FileSelector(log, allow_not_found=True)))
        commits = {int(found[1]) for name in names if (found := COMMIT.fullmatch(name))}
        checkpoints = {name: int(found[1]) for name in names if (found := CHECKPOINT.fullmatch(name))}
        newest = max(checkpoints.values(), default=-1)
        for name in (name for name, version in checkpoints.items() if version == newest):
            if not _is_readable(name, _content(files, f"{log}/{name}")):
                return remedy(name, commits, checkpoints.values())
        if HINT in names and (named := hinted_version(_content(files, f"{log}/{HINT}"))) > newest:
            return f"its {HINT} names the checkpoint of version {named}, which is not there; restore that checkpoint, or delete {HINT}"
    except OSError:
        return None
    return None


def _content(files: Any, path: str) -> bytes:
    with files.open_input_file(path) as file:
        return bytes(file.read())


def _is_readable(name: str, content: bytes) -> bool:
    try:
        if name.endswith(".json"):
            return all(isinstance(json.loads(line), dict) for line in content.splitlines()) and bool(content)
        parquet.read_table(pa.BufferReader(content))
    except (pa.ArrowException, OSError, ValueError):
        return False
    return True


def hinted_version(hint: bytes) -> int:
    """The version that the content of a hint names. -1: it is none, which readers ignore."""
    try:
        found = parsed(hint)["version"]
    except (ValueError, KeyError):
        return -1
    return found if type(found) is int and 0 <= found < VERSION_END else -1
