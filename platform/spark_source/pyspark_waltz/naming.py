"""Which log partitions the options `topic` and `topicPattern` select, by the catalog. Pure.

Options and rows name topics; offsets and tasks address the log by partition. A deleted topic keeps its log partitions until their content is removed:
a stream over a pattern reads them to their end until then. A later topic in the same partitions begins above the old content.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from waltz_log.core.topics.catalogue import Catalogue
from waltz_log.core.topics.topic_names import TopicName
from waltz_log.errors import InvalidRequest, InvalidSetting, NotAllowed, PermissionDenied

__all__ = ["TopicOf", "TopicPartition", "Wanted", "naming_topic", "parse_topic_pattern", "parse_topics"]


class TopicOf(NamedTuple):
    """The topic in the rows of a log partition: its name, and whether its data begins with a key."""

    name: str
    keyed: bool


def naming_topic(error: NotAllowed, topic: TopicOf | None) -> NotAllowed:
    """The error with the topic that the query names, where a node that was asked for a log partition could not say it."""
    if topic is None or not isinstance(error, PermissionDenied) or not error.resource.startswith("log:"):
        return error
    return PermissionDenied(principal=error.principal, operation="read", resource=topic.name)


class TopicPartition(NamedTuple):
    """`number`: the index within the topic; -1 if the topic was deleted and the index is no longer known. `begins_at`: its first id."""

    topic: TopicOf
    compaction: bool
    number: int
    begins_at: int = 0


@dataclass(frozen=True, slots=True)
class Wanted:
    """Selects topics by name or by pattern; one of the two is None."""

    topics: tuple[str, ...] | None
    pattern: str | None

    def partitions(self, catalogue: Catalogue, known: Mapping[int, TopicOf]) -> dict[int, TopicPartition]:
        """For each selected log partition, the topic that it belongs to. `known`: partitions that were read before. Raises `NoSuchTopic` for a named
        topic that does not exist."""
        matches = re.compile(self.pattern or "").fullmatch
        if self.topics is not None:
            found = [catalogue.find(TopicName.parse(name)) for name in self.topics]
        else:
            found = [topic for name, topic in sorted(catalogue.topics.items()) if matches(str(name))]
        wanted = {
            each: TopicPartition(TopicOf(str(topic.name), topic.keyed), topic.type == "compaction", number, topic.begin_of(number))
            for topic in found
            for number, each in enumerate(topic.partitions)
        }
        if self.topics is None:
            wanted |= {
                each: TopicPartition(topic, False, -1)
                for each, topic in known.items()
                if each not in wanted and each in catalogue.retired and matches(topic.name)
            }
        return dict(sorted(wanted.items()))


def parse_topics(text: str) -> tuple[str, ...]:
    """Parses `shop/orders, shop/returns`; keeps the order and removes repetitions."""
    try:
        found = [str(TopicName.parse(part.strip())) for part in text.split(",")]
    except InvalidRequest as error:
        raise InvalidSetting(name="topic", reason=f"cannot be used: {error.reason}", nearest=None) from None
    return tuple(dict.fromkeys(found))


def parse_topic_pattern(text: str) -> str:
    """A regular expression in Python's syntax."""
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise InvalidSetting(name="topicPattern", reason=f"is not a regular expression: {error}, got {text!r}", nearest=None) from None
    return text
