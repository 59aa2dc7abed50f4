"""Checks a log position that a caller gives, before anything is read or waited for, so that a mistake is reported at once. Pure.

A position names the last transaction id of each log partition. Keys may be strings, because JSON has no others: `{"0": 41}` is `{0: 41}`. Spark's
offsets of a query have the same keys but name the next id, so they are refused if they can be recognized.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from waltz_log.errors import InvalidRequest

__all__ = ["Position", "checked_position", "expect_partitions"]

Position: TypeAlias = Mapping[int, int] | Mapping[str, int]

_FORM = 'a position is a mapping from log partition to its last transaction id, {0: 41} or {"0": 41} (-1: at its beginning)'
_OF_SPARK = frozenset({"began", "initial", "origin", "cluster", "topics"})


def checked_position(position: Position) -> dict[int, int]:
    """By partition number. Raises `InvalidRequest`."""
    if not isinstance(position, Mapping):
        raise InvalidRequest(reason=f"{_FORM}: given={position!r}")
    found: dict[int, int] = {}
    for key, last in position.items():
        if key in _OF_SPARK:
            raise InvalidRequest(reason=f"this is an offset of a Spark query, which names the next id; {_FORM}: given={dict(position)!r}")
        if (
            isinstance(key, bool)
            or not isinstance(key, int | str)
            or (isinstance(key, str) and not (key.isascii() and key.isdecimal()))
            or int(key) < 0
        ):
            raise InvalidRequest(reason=f"{_FORM}: partition={key!r}")
        if isinstance(last, bool) or not isinstance(last, int) or last < -1:
            raise InvalidRequest(reason=f"{_FORM}: partition={key} transaction_id={last!r}")
        if found.setdefault(int(key), last) != last:
            raise InvalidRequest(reason=f"the position names a partition twice: partition={key}")
    return found


def expect_partitions(path: str, position: Mapping[int, int], marks: Mapping[int, int]) -> None:
    """Raises `InvalidRequest` if the table is filled from the log but holds nothing of a partition that the position names."""
    unknown = [partition for partition, last in sorted(position.items()) if last >= 0 and partition not in marks]
    if marks and unknown:
        held = ",".join(str(partition) for partition in sorted(marks))
        raise InvalidRequest(reason=f"the table holds nothing of this log partition: path={path} partition={unknown[0]} held={held}")
