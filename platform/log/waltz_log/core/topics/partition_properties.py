"""Properties of ranges of a topic's partitions: what a user attaches to some of them and not to the whole topic (partitioned WAL document, Regular
Topics).

For the partitions of its range, a property replaces the topic's property of the same name. No partition gets one name from two ranges, so the order
of the ranges does not matter. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

from waltz_log.core.topics.access import check_access_properties
from waltz_log.errors import InvalidSetting

__all__ = ["PartitionProperties", "check_partition_properties", "properties_of", "split_properties"]

_RANGED: Final = re.compile(r"(?P<first>[0-9]+)(?:-(?P<last>[0-9]+))?:(?P<name>.+)", re.ASCII | re.DOTALL)


@dataclass(frozen=True, slots=True)
class PartitionProperties:
    """`first` to `last`, both included: partitions of the topic, from 0."""

    first: int
    last: int
    properties: Mapping[str, str]

    @classmethod
    def from_json(cls, value: Sequence[object]) -> Self:
        first, last, properties = value
        assert isinstance(first, int)
        assert isinstance(last, int)
        assert isinstance(properties, dict)
        return cls(first, last, properties)

    def to_json(self) -> list[object]:
        return [self.first, self.last, dict(self.properties)]


def properties_of(properties: Mapping[str, str], ranges: Iterable[PartitionProperties], partition: int) -> dict[str, str]:
    """The properties of one partition: the topic's, and over them those of the ranges that the partition lies in."""
    found = dict(properties)
    for each in ranges:
        if each.first <= partition <= each.last:
            found |= each.properties
    return found


def check_partition_properties(ranges: Sequence[PartitionProperties], partitions: int) -> None:
    """Raises `InvalidSetting` for a range that the topic does not have, for a name that one partition gets twice, and for an access property that
    nothing reads."""
    named: dict[str, list[PartitionProperties]] = {}
    for each in ranges:
        if not 0 <= each.first <= each.last < partitions:
            raise InvalidSetting(
                name="--property", reason=f"names partitions {each.first}-{each.last} of a topic that has 0 to {partitions - 1}", nearest=None
            )
        check_access_properties(each.properties)
        for name in each.properties:
            for other in named.setdefault(name, []):
                if each.first <= other.last and other.first <= each.last:
                    raise InvalidSetting(name="--property", reason=f"sets {name} twice for partition {max(each.first, other.first)}", nearest=None)
            named[name].append(each)


def split_properties(properties: Mapping[str, str]) -> tuple[dict[str, str], tuple[PartitionProperties, ...]]:
    """Properties as people name them, `name` for the whole topic and `3:name` or `0-3:name` for some of its partitions: those of the topic, and those
    of ranges in order."""
    whole: dict[str, str] = {}
    ranges: dict[tuple[int, int], dict[str, str]] = {}
    for key, value in properties.items():
        found = _RANGED.fullmatch(key)
        if found is None:
            whole[key] = value
        else:
            first = int(found["first"])
            ranges.setdefault((first, int(found["last"] or first)), {})[found["name"]] = value
    return whole, tuple(PartitionProperties(first, last, named) for (first, last), named in sorted(ranges.items()))
