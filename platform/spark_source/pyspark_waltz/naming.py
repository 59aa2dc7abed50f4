"""Which log partitions the options `topic` and `topicPattern` mean, as the catalogue says. Pure.

Topics are named in options and in the rows; in between, in offsets and tasks, the log is addressed by partition. A topic that is deleted keeps its
log partitions until what is in them is removed: a stream over a pattern reads them to their end while they are retired. Another topic's begin above
what was there before.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from waltz_log.core.topics.catalogue import Catalogue
from waltz_log.core.topics.topic_names import TopicName
from waltz_log.errors import InvalidRequest, InvalidSetting

__all__ = ["TopicOf", "TopicPartition", "Wanted", "parse_topic_pattern", "parse_topics"]


class TopicOf(NamedTuple):
    """What the rows of a log partition say: the topic's name, and whether its data begin with a key."""

    name: str
    keyed: bool


class TopicPartition(NamedTuple):
    """`number`: as which of the topic's partitions; -1 where the topic was deleted and nobody knows any more. `begins_at`: its first id."""

    topic: TopicOf
    compaction: bool
    number: int
    begins_at: int = 0


@dataclass(frozen=True, slots=True)
class Wanted:
    """By name or by pattern; one of the two is None."""

    topics: tuple[str, ...] | None
    pattern: str | None

    def partitions(self, catalogue: Catalogue, known: Mapping[int, TopicOf]) -> dict[int, TopicPartition]:
        """Of each log partition that is wanted, what it belongs to. `known`: partitions that were read before. Raises `NoSuchTopic` for a topic that
        is named and not there."""
        if self.topics is not None:
            found = [catalogue.find(TopicName.parse(name)) for name in self.topics]
        else:
            matches = re.compile(self.pattern or "").fullmatch
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
    """`shop/orders, shop/returns` in order, each once."""
    try:
        found = [str(TopicName.parse(part.strip())) for part in text.split(",")]
    except InvalidRequest as error:
        raise InvalidSetting(name="topic", reason=f"cannot be used: {error.reason}", nearest=None) from None
    return tuple(dict.fromkeys(found))


def parse_topic_pattern(text: str) -> str:
    """A regular expression, as Python has them."""
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise InvalidSetting(name="topicPattern", reason=f"is no regular expression: {error}, got {text!r}", nearest=None) from None
    return text
