"""The statistics of a node's workers as those of one node. Pure.

Workers tell the same things of different partitions. Counts add up, collections are put together, what is the same everywhere is told once: no reader
of a node's statistics needs to know that it has workers. What does not add up is named here, and nothing else is assumed of what workers tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

__all__ = ["gathered"]

NODE_WIDE: Final = frozenset({"start", "server_id", "disk_free_bytes", "disk_total_bytes"})
"""Numbers of the whole node, which every worker tells: the greatest is the newest or the same."""

WORST_FIRST: Final = ("refusing", "low", "ample")
"""States of the whole node of which the worst holds."""


def gathered(told: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of statistics in the order of their workers; with none, nothing."""
    result: dict[str, Any] = {}
    for each in told:
        for name, value in each.items():
            result[name] = _together(name, result[name], value) if name in result else value
    return dict(sorted(result.items(), key=lambda item: int(item[0]))) if result and all(name.isdecimal() for name in result) else result


def _together(name: str, one: Any, other: Any) -> Any:
    if one is None or other is None:
        return other if one is None else one
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return gathered([one, other])
    if isinstance(one, list) and isinstance(other, list):
        both = one + other
        return sorted(both, key=_partition_of) if all(isinstance(each, Mapping) and "partition" in each for each in both) else both
    if isinstance(one, bool) and isinstance(other, bool):
        return one or other
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return max(one, other) if name in NODE_WIDE else one + other
    if one in WORST_FIRST and other in WORST_FIRST:
        return min(one, other, key=WORST_FIRST.index)
    return one


def _partition_of(told: Mapping[str, Any]) -> int:
    return int(told["partition"])
