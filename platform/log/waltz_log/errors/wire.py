"""Errors in the status of an RPC: one line of JSON with the class and the fields.

Only the errors of this package cross the wire; those of the source, the sink and the commands stay in their process.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from waltz_log.errors import appends, availability, data, defects, fencing, machine, requests
from waltz_log.errors.base import WaltzError, rebuild

__all__ = ["decode", "encode"]


def _classes() -> Iterator[type[WaltzError]]:
    for module in (requests, appends, availability, fencing, data, machine, defects):
        yield from (getattr(module, name) for name in module.__all__)


_CLASSES = {cls.__name__: cls for cls in _classes()}


def encode(error: WaltzError) -> str:
    """The error as one line of JSON, for the detail field of an rpc status."""
    return json.dumps({"error": type(error).__name__, "facts": error.facts}, separators=(",", ":"))


def decode(text: str) -> WaltzError | None:
    """The error that `encode` wrote, or None if `text` is something else."""
    try:
        found = json.loads(text)
        return rebuild(_CLASSES[found["error"]], found["facts"])
    except (ValueError, KeyError, TypeError):
        return None
