"""What a commit in a table's log says of itself: who made it, by which operation, and when.

Source: Delta's PROTOCOL.md, "Commit Provenance Information".
"""

from __future__ import annotations

import json
from typing import Any  # JSON values

__all__ = ["commit_info", "json_object"]


def commit_info(commit: bytes) -> dict[str, Any]:
    """`commitInfo` of a commit, mostly its first line; empty if there is none. Raises `ValueError` if its first line or that one cannot be parsed."""
    start, is_first = 0, True
    while start < len(commit):
        end = commit.find(b"\n", start) + 1 or len(commit)
        line, start = commit[start:end], end
        if not (is_first or b'"commitInfo"' in line) or not line.strip():
            continue
        is_first = False
        if (found := json_object(json.loads(line)).get("commitInfo")) is not None:
            return json_object(found)
    return {}


def json_object(value: Any) -> dict[str, Any]:
    """Raises `ValueError` for anything else."""
    if not isinstance(value, dict):
        raise ValueError(f"not a JSON object: {value!r:.80}")
    return value
