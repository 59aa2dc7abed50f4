"""Where to start or end reading, as the user writes it, before the log is asked: by transaction id or by append time. Pure.

A transaction id in JSON may be -2 for the earliest and -1 for the latest. A time is a number of milliseconds since 1970 UTC, or ISO 8601 with its
offset (`2026-11-21T10:00:00Z`): without an offset it would mean another moment on another machine. If topics are read, JSON may name them instead of
log partitions: `{"shop/orders": {"0": 17}, "shop/returns": -1}`, one position for a whole topic or one for each of its partitions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Self, TypeAlias

from waltz_log.errors import InvalidSetting

__all__ = ["EARLIEST", "LATEST", "Positions", "Times", "backward", "iso_time", "parse_partitions", "parse_positions", "parse_time", "parse_times"]

EARLIEST = -2
LATEST = -1

PARTITIONS_MAX = 1 << 20
"""Bounds the expansion of `partitions`; far above any cluster, far below what hurts the driver."""

TIME_MS_MAX = 253_402_300_800_000
"""The year 10000, where ISO 8601 and Spark's timestamps end."""

TIME_MS_MIN = 100_000_000_000
"""March 1973. A lower number is probably in seconds; 0, the beginning of time, is accepted."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

ByTopic: TypeAlias = Mapping[str, int | Mapping[int, int]]
"""Topic to one value for all of it, or to one for each of its own partitions."""

Places: TypeAlias = Mapping[int, tuple[str, int]]
"""Log partition to its topic, and to its index within the topic."""


@dataclass(frozen=True, slots=True)
class Positions:
    """A transaction id, `EARLIEST` or `LATEST` for each partition. `topics`: the same by topic, until `in_log` maps them to log partitions."""

    default: int
    given: Mapping[int, int] = field(default_factory=dict)
    topics: ByTopic = field(default_factory=dict)

    def in_log(self, option: str, places: Places, *, strict: bool = True) -> Self:
        """The positions by log partition only. `strict`: a missing topic or partition is an `InvalidSetting`; otherwise it may be created later."""
        return replace(self, given=_in_log(option, self.given, self.topics, places, strict=strict), topics={}) if self.topics else self

    def of(self, partition: int) -> int:
        return self.given.get(partition, self.default)


@dataclass(frozen=True, slots=True)
class Times:
    """The first transaction appended at a time or later, in milliseconds, for each partition that has one; `otherwise`, `EARLIEST` or `LATEST`, for
    the others. `option` is the option that the times come from. `strict`: a partition without such a transaction is an error; otherwise it means the
    latest."""

    option: str
    everywhere_ms: int | None = None
    given_ms: Mapping[int, int] = field(default_factory=dict)
    otherwise: int = LATEST
    strict: bool = False
    topics: ByTopic = field(default_factory=dict)

    def in_log(self, places: Places, *, strict: bool = True) -> Self:
        """As in `Positions`."""
        return replace(self, given_ms=_in_log(self.option, self.given_ms, self.topics, places, strict=strict), topics={}) if self.topics else self

    def of(self, partition: int) -> int | None:
        return self.given_ms.get(partition, self.everywhere_ms)


def parse_partitions(text: str) -> tuple[int, ...]:
    """Parses `0-3,7` to (0, 1, 2, 3, 7): sorted, without repetitions."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.isdecimal() and (not dash or last.isdecimal())):
            raise InvalidSetting(name="partitions", reason=f"must be numbers and ranges as in 0-3,7, got {text!r}", nearest=None)
        low, high = int(first), int(last or first)
        if high < low or high >= PARTITIONS_MAX:
            raise InvalidSetting(name="partitions", reason=f"range {part.strip()} is empty or too far", nearest=None)
        found.update(range(low, high + 1))
    return tuple(sorted(found))


def parse_positions(name: str, text: str, *, default: int) -> Positions:
    """A word or JSON. An end may not be `earliest`: it would read nothing."""
    ending = default == LATEST
    word = text.strip().lower()
    if word == "latest":
        return Positions(LATEST)
    if word == "earliest" and not ending:
        return Positions(EARLIEST)
    form = 'latest or JSON such as {"0": 42, "1": -1}' if ending else 'earliest, latest or JSON such as {"0": 17, "1": -2}'

    def position(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < (LATEST if ending else EARLIEST):
            raise _wrong(name, text, form)
        return value

    return Positions(default, *_said(name, text, form, position))


def parse_times(name: str, text: str, *, otherwise: int, strict: bool) -> Times:
    """JSON: a time for each partition."""
    form = 'JSON such as {"0": 1700000000000, "1": "2026-11-21T10:00:00Z"}'
    given, topics = _said(name, text, form, lambda value: parse_time(name, value))
    return Times(name, given_ms=given, otherwise=otherwise, strict=strict, topics=topics)


def parse_time(name: str, value: object) -> int:
    """Milliseconds since 1970."""
    text = str(value).strip()
    wrong = InvalidSetting(
        name=name, reason=f"must be milliseconds since 1970, or ISO 8601 with an offset as in 2026-11-21T10:00:00Z, got {text!r}", nearest=None
    )
    if not isinstance(value, bool) and text.isdecimal():
        found = int(text)
        if 0 < found < TIME_MS_MIN:
            reason = f"must be milliseconds since 1970, and {text} is {iso_time(found)[:10]} in milliseconds; were seconds meant?"
            raise InvalidSetting(name=name, reason=reason, nearest=None)
    else:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise wrong from None
        if moment.tzinfo is None:
            raise wrong
        # Rounded up: the first transaction at or after the moment is the first at or after the next whole millisecond.
        found = -((_EPOCH - moment) // timedelta(milliseconds=1))
    if not 0 <= found < TIME_MS_MAX:
        raise wrong
    return found


def backward(option: str, partition: int, start: object, end: object) -> InvalidSetting:
    """The error for an end before its start."""
    where = f"partition={partition} " if partition >= 0 else ""
    return InvalidSetting(name=option, reason=f"lies before the start: {where}start={start} end={end}", nearest=None)


def iso_time(time_ms: int) -> str:
    return (_EPOCH + timedelta(milliseconds=time_ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _said(name: str, text: str, form: str, value_of: Callable[[object], int]) -> tuple[dict[int, int], dict[str, int | Mapping[int, int]]]:
    """From JSON, by log partition and by topic."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise _wrong(name, text, form) from None
    if not isinstance(found, dict):
        raise _wrong(name, text, form)
    given: dict[int, int] = {}
    topics: dict[str, int | Mapping[int, int]] = {}
    for key, value in found.items():
        if key.isdecimal():
            given[int(key)] = value_of(value)
        elif "/" not in key or (isinstance(value, dict) and not all(number.isdecimal() for number in value)):
            raise _wrong(name, text, form)
        else:
            topics[key] = {int(number): value_of(each) for number, each in value.items()} if isinstance(value, dict) else value_of(value)
    return given, topics


def _in_log(option: str, given: Mapping[int, int], topics: ByTopic, places: Places, *, strict: bool) -> dict[int, int]:
    """The position of a log partition itself overrides that of its topic."""
    found: dict[int, int] = {}
    numbers: dict[str, list[int]] = {}
    for partition, (topic, number) in sorted(places.items()):
        numbers.setdefault(topic, []).append(number)
        said = topics.get(topic, {})
        if isinstance(said, int):
            found[partition] = said
        elif number in said:
            found[partition] = said[number]
    for topic, said in topics.items() if strict else ():
        if topic not in numbers:
            raise InvalidSetting(
                name=option, reason=f"names topic {topic}, which is not read; there are {', '.join(numbers) or 'none'}", nearest=None
            )
        for number in sorted(said) if not isinstance(said, int) else ():
            if number not in numbers[topic]:
                known = ",".join(str(each) for each in numbers[topic])
                raise InvalidSetting(name=option, reason=f"names partition {number} of topic {topic}, of which are read {known}", nearest=None)
    return found | dict(given)


def _wrong(name: str, text: str, form: str) -> InvalidSetting:
    return InvalidSetting(name=name, reason=f"must be {form}, got {text!r}", nearest=None)
