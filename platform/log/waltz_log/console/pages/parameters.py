"""Reads the parameters of a request, and names what is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from starlette.requests import Request

from waltz_log.console.reading.sampling import Sample
from waltz_log.core.topics.catalogue import Topic
from waltz_log.core.topics.topic_names import TopicName
from waltz_log.errors import InvalidRequest

__all__ = ["cursor_text", "find_topic", "number_of", "parse_cursor", "parse_time", "path_number", "scope_of", "text_of"]

TEXT_MAX = 4096
"""Characters of a search."""

CURSOR_PARTITIONS_MAX = 256
"""Partitions that one list goes through. Each has its own parameter in the address of the next page."""


def text_of(values: Mapping[str, str], name: str) -> str | None:
    """None if it is empty or missing. Raises `InvalidRequest`."""
    found = values.get(name, "").strip()
    if len(found) > TEXT_MAX:
        raise InvalidRequest(reason=f"{name} has more than {TEXT_MAX} characters")
    return found or None


def number_of(values: Mapping[str, str], name: str) -> int | None:
    """None if it is empty or missing. Thousands may be separated. Raises `InvalidRequest`."""
    found = text_of(values, name)
    if found is None:
        return None
    try:
        value = int(found.replace(",", "").replace("_", ""))
    except ValueError:
        raise InvalidRequest(reason=f"{name} must be a whole number, not {found[:80]!r}") from None
    if abs(value) > 2**63 - 1:
        raise InvalidRequest(reason=f"{name} is too large")
    return value


def path_number(request: Request, name: str) -> int:
    """The number in the path. Raises `InvalidRequest`."""
    value = number_of({name: str(request.path_params[name])}, name)
    if value is None or value < 0:
        raise InvalidRequest(reason=f"{name} must be a whole number")
    return value


def parse_time(text: str | None) -> int | None:
    """Milliseconds since 1970 of an ISO 8601 time, in UTC where it names no zone. Raises `InvalidRequest`."""
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(reason=f"time must be written as 2026-11-25T12:30:00, not as {text[:80]!r}") from None
    aware = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    try:
        return int(aware.timestamp() * 1000)
    except (OverflowError, ValueError, OSError):
        raise InvalidRequest(reason=f"there is no such time: {text[:80]!r}") from None


def find_topic(sample: Sample, name: str | None) -> Topic | None:
    """Raises `InvalidRequest`, `NoSuchTopic`."""
    return None if name is None else sample.catalogue.find(TopicName.parse(name))


def scope_of(sample: Sample, topic: Topic | None, partition: int | None) -> list[int]:
    """The log partitions that a list goes through. Raises `InvalidRequest`."""
    count = len(sample.survey.partitions)
    if partition is not None:
        if not 0 <= partition < count:
            raise InvalidRequest(reason=f"no such partition: partition={partition} partitions={count}")
        return [partition]
    return list(range(count) if topic is None else (each for each in topic.partitions if each < count))[:CURSOR_PARTITIONS_MAX]


def parse_cursor(text: str | None) -> dict[int, int]:
    """Parses a cursor such as `3:120,4:99`. Raises `InvalidRequest`."""
    found: dict[int, int] = {}
    for part in (text or "").split(","):
        if not part:
            continue
        partition, colon, below = part.partition(":")
        if not colon or not _is_number(partition) or not _is_number(below) or len(found) >= CURSOR_PARTITIONS_MAX:
            raise InvalidRequest(reason="the address of this page is damaged: begin again")
        found[int(partition)] = int(below)
    return found


def _is_number(text: str) -> bool:
    """Whether it is a number of 64 bits: Python refuses to read a number of thousands of digits."""
    return text.isascii() and text.isdecimal() and len(text) <= 19


def cursor_text(cursor: Mapping[int, int]) -> str:
    """The inverse of `parse_cursor`."""
    return ",".join(f"{partition}:{below}" for partition, below in sorted(cursor.items()))
