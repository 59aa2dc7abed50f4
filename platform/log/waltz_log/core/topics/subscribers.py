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

__all__ = ["SUBSCRIBERS", "Subscriber", "UnreadableSubscriber", "expect_bounded", "subscriber_path"]

SUBSCRIBERS: Final = "/subscribers"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)


MARK_MAX: Final = 2**63 - 1
TIME_MS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999: the last that dates can show."""

PARTITION_MAX: Final = 2**31 - 1
LABELS_MAX: Final = 16
LABEL_NAME_MAX: Final = 64
LABEL_CHARACTERS_MAX: Final = 4096
"""A label lists a pipeline's tables, or names a host. All labels of a subscriber stay below 70 KB of a node's megabyte."""


def expect_bounded(labels: Mapping[str, str]) -> None:
    """Raises `InvalidRequest` for more labels than a subscriber may state, or longer ones."""
    if len(labels) > LABELS_MAX:
        raise InvalidRequest(reason=f"a subscriber has {LABELS_MAX} labels at most, got {len(labels)}")
    for name, value in labels.items():
        if not 1 <= len(name) <= LABEL_NAME_MAX or len(value) > LABEL_CHARACTERS_MAX:
            raise InvalidRequest(
                reason=f"a label has a name of 1 to {LABEL_NAME_MAX} characters, and {LABEL_CHARACTERS_MAX} at most: label={name[:64]!r}"
            )


def subscriber_path(name: str) -> str:
    """Raises `InvalidRequest` for an invalid name."""
    if not _NAME.fullmatch(name):
        raise InvalidRequest(reason=f"not a subscriber's name: {name!r}, wanted 1 to 128 of ASCII letters, digits, '.', '_' and '-'")
    return f"{SUBSCRIBERS}/{name}"


@dataclass(frozen=True, slots=True)
class Subscriber:
    """`marks`: by log partition. `labels`: what the subscriber states about itself, for operators: a table, a service. `seen_ms`: when it last
    reported. No decision uses it: a subscriber that is gone for long still holds what it has not read, until an operator removes it.
    `principal`: that registered it; empty: none is known."""

    name: str
    marks: Mapping[int, int]
    labels: Mapping[str, str]
    created_ms: int
    seen_ms: int
    principal: str = ""

    def __post_init__(self) -> None:
        subscriber_path(self.name)
        for partition, mark in self.marks.items():
            if not (0 <= partition <= PARTITION_MAX and -1 <= mark <= MARK_MAX):
                raise InvalidRequest(reason=f"not a transaction id or -1: partition={partition} mark={mark}")

    def bound(self, principal: str) -> Self:
        """As one of that principal."""
        return replace(self, principal=principal)

    def reported(self, marks: Mapping[int, int], now_ms: int) -> Self:
        """With newer marks; older ones change nothing. Raises `InvalidRequest` for a partition that it did not register for."""
        foreign = sorted(set(marks) - set(self.marks))
        if foreign:
            raise InvalidRequest(reason=f"subscriber {self.name} is not registered for partition {foreign[0]}")
        return replace(self, marks={each: max(mark, marks.get(each, mark)) for each, mark in self.marks.items()}, seen_ms=now_ms)

    def placed(self, marks: Mapping[int, int]) -> Self:
        """At these marks, also at lower ones. Raises `InvalidRequest` for a partition that it did not register for."""
        self.reported(marks, self.seen_ms)
        return replace(self, marks={**self.marks, **marks})

    def registered(self, marks: Mapping[int, int], labels: Mapping[str, str], now_ms: int) -> Self:
        """Registered again, perhaps for more partitions. A mark never falls."""
        kept = {each: max(mark, self.marks.get(each, mark)) for each, mark in marks.items()}
        return replace(self, marks={**self.marks, **kept}, labels=dict(labels), seen_ms=now_ms)

    def to_bytes(self) -> bytes:
        """The node's content in the coordinator, as JSON."""
        value: dict[str, object] = {
            "name": self.name,
            "marks": {str(partition): mark for partition, mark in sorted(self.marks.items())},
            "told": dict(self.labels),
            "created_ms": self.created_ms,
            "seen_ms": self.seen_ms,
        }
        if self.principal:
            value["principal"] = self.principal
        return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Reads what `to_bytes` wrote. Raises `InvalidRequest`, `ValueError`, `KeyError`, `TypeError`, `AttributeError` or `RecursionError` for
        anything else."""
        found = json.loads(data)
        marks = {int(partition): mark for partition, mark in found["marks"].items()}
        labels, created_ms, seen_ms, principal = found["told"], found["created_ms"], found["seen_ms"], found.get("principal", "")
        numbers = (*marks.values(), created_ms, seen_ms)
        texts = (found["name"], principal, *labels.keys(), *labels.values())
        if any(type(each) is not int for each in numbers) or any(not isinstance(each, str) for each in texts):
            raise ValueError("not the types of a subscriber")
        if not (0 <= created_ms <= TIME_MS_MAX and 0 <= seen_ms <= TIME_MS_MAX):
            raise ValueError("not times of a subscriber")
        return cls(found["name"], marks, labels, created_ms, seen_ms, principal)


@dataclass(frozen=True, slots=True)
class UnreadableSubscriber:
    """An entry that is no subscriber: nothing is retained for it, and it can be removed by its name. `reason`: without the entry's content."""

    name: str
    reason: str
