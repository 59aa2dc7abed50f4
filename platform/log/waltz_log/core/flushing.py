"""When what was acknowledged from memory is synced, as a topic's policy has it (docs/guides/topics.md, Durability and memory)."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Flushing"]


class Flushing(NamedTuple):
    """So long after the first transaction that is not synced, or when there are so many bytes of them."""

    period_s: float
    bytes: int
