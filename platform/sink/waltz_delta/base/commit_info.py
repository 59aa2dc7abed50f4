"""The JSON of a table's log, and what a commit says of itself: who made it, by which operation, and when.

Source: Delta's PROTOCOL.md, "Commit Provenance Information".
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final  # Any: JSON values

from waltz_delta.errors import StoreUnavailable

__all__ = ["VERSION_END", "commit_info", "json_object", "parsed", "parsing"]

VERSION_END: Final = 2**63
"""Versions are 64 bits."""


def commit_info(commit: bytes) -> dict[str, Any]:
    """`commitInfo` of a commit, mostly its first line; empty if there is none. Raises `ValueError` if its first line or that one cannot be parsed."""
    start, is_first = 0, True
    while start < len(commit):
        end = commit.find(b"\n", start) + 1 or len(commit)
        line, start = commit[start:end], end
        if not (is_first or b'"commitInfo"' in line) or not line.strip():
            continue
        is_first = False
        if (found := parsed(line).get("commitInfo")) is not None:
            return json_object(found)
    return {}


@contextmanager
def parsing(path: str, version: int) -> Iterator[None]:
    """Raises `StoreUnavailable` for a commit of this version that cannot be parsed."""
    try:
        yield
    except (ValueError, KeyError, TypeError) as error:
        raise StoreUnavailable(path=path, reason=f"the commit {version:020d}.json cannot be parsed: {error}") from error


def parsed(text: str | bytes) -> dict[str, Any]:
    """One JSON object. Raises `ValueError` for anything else, also for one that is nested too deeply."""
    try:
        return json_object(json.loads(text))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def json_object(value: Any) -> dict[str, Any]:
    """Raises `ValueError` for anything else."""
    if not isinstance(value, dict):
        raise ValueError(f"not a JSON object: {value!r:.80}")
    return value
