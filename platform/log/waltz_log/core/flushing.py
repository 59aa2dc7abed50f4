"""When what was acknowledged from memory is synced, as a topic's policy has it (docs/guides/topics.md, Durability and memory)."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Flushing"]


class Flushing(NamedTuple):
    """A sync is due this long after the first transaction that is not synced, or when this many bytes are not synced."""

    period_s: float
    bytes: int
