"""A subscriber: a registered reader for which retention keeps what it has not read. It has a name and, for each partition, the last transaction that
it has finished.

The coordinator has one node for each, replaced by compare-and-set. A mark belongs to a log partition: the last transaction that the subscriber will
never read again. Pure: `coordination.subscribers` writes, `core.retention` applies the marks (docs/guides/topics.md, Subscribers).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Self

from waltz_log.errors import InvalidRequest

__all__ = ["SUBSCRIBERS", "Subscriber", "subscriber_path"]

SUBSCRIBERS: Final = "/subscribers"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)


def subscriber_path(name: str) -> str:
    """Raises `InvalidRequest` for an invalid name."""
    if not _NAME.fullmatch(name):
        raise InvalidRequest(reason=f"not a subscriber's name: {name!r}, wanted 1 to 128 of ASCII letters, digits, '.', '_' and '-'")
    return f"{SUBSCRIBERS}/{name}"


@dataclass(frozen=True, slots=True)
class Subscriber:
    """`marks`: by log partition. `labels`: what the subscriber states about itself, for operators: a table, a service. `seen_ms`: when it last
    reported. No decision uses it: a subscriber that is gone for long still holds what it has not read, until an operator removes it."""

    name: str
    marks: Mapping[int, int]
    labels: Mapping[str, str]
    created_ms: int
    seen_ms: int

    def __post_init__(self) -> None:
        subscriber_path(self.name)
        for partition, mark in self.marks.items():
            if partition < 0 or mark < -1:
                raise InvalidRequest(reason=f"not a mark of a partition: partition={partition} mark={mark}")

    def reported(self, marks: Mapping[int, int], now_ms: int) -> Self:
        """With newer marks; older ones change nothing. Raises `InvalidRequest` for a partition that it did not register for."""
        foreign = sorted(set(marks) - set(self.marks))
        if foreign:
            raise InvalidRequest(reason=f"subscriber {self.name} is not registered for partition {foreign[0]}")
        return replace(self, marks={each: max(mark, marks.get(each, mark)) for each, mark in self.marks.items()}, seen_ms=now_ms)

    def registered(self, marks: Mapping[int, int], labels: Mapping[str, str], now_ms: int) -> Self:
        """Registered again, perhaps for more partitions. A mark never falls."""
        kept = {each: max(mark, self.marks.get(each, mark)) for each, mark in marks.items()}
        return replace(self, marks={**self.marks, **kept}, labels=dict(labels), seen_ms=now_ms)

    def to_bytes(self) -> bytes:
        """The node's content in the coordinator, as JSON."""
        value = {
            "name": self.name,
            "marks": {str(partition): mark for partition, mark in sorted(self.marks.items())},
            "told": dict(self.labels),
            "created_ms": self.created_ms,
            "seen_ms": self.seen_ms,
        }
        return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Reads what `to_bytes` wrote."""
        found = json.loads(data)
        marks = {int(partition): mark for partition, mark in found["marks"].items()}
        return cls(found["name"], marks, found["told"], found["created_ms"], found["seen_ms"])
