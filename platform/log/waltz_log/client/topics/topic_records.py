"""What is appended to a topic and read from it, with key and value as separate fields. Values only, without I/O."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from waltz_log.client.transactions.transaction import Lock, Transaction
from waltz_log.core.formats.envelope import split_keyed
from waltz_log.core.topics.catalogue import Topic
from waltz_log.errors import EnvelopeBroken

__all__ = ["KeyedDraft", "TopicFeed", "TopicRecord", "records_of"]


class KeyedDraft(NamedTuple):
    """A transaction to append to a keyed topic. `value` None is a tombstone. The other fields are those of `Draft`."""

    key: bytes
    value: bytes | None
    header: int = 0
    write_locks: Sequence[Lock] = ()
    read_locks: Sequence[Lock] = ()
    append_locks: Sequence[Lock] = ()
    high_water_mark: int | None = None


class TopicRecord(NamedTuple):
    """One committed transaction of a topic. `partition` counts within the topic; `key` is None in a topic without keys."""

    partition: int
    transaction_id: int
    timestamp_ms: int
    header: int
    key: bytes | None
    value: bytes

    @property
    def is_tombstone(self) -> bool:
        """Whether the record removes its key."""
        return self.key is not None and not self.value


TopicFeed: TypeAlias = AsyncGenerator[list[TopicRecord], None]
"""Non-empty lists, each of one partition and in its order."""


def records_of(topic: Topic, partition: int, transactions: Iterable[Transaction]) -> Iterator[TopicRecord]:
    """In order. Raises `EnvelopeBroken` at a transaction of a keyed topic that does not begin with a key; those before it were given."""
    new = tuple.__new__
    if not topic.keyed:
        for each in transactions:
            yield new(TopicRecord, (partition, each.transaction_id, each.timestamp_ms, each.header, None, each.data))
        return
    for each in transactions:
        found = split_keyed(each.data)
        if found is None:
            raise EnvelopeBroken(topic=str(topic.name), partition=topic.partitions[partition], transaction_id=each.transaction_id)
        yield new(TopicRecord, (partition, each.transaction_id, each.timestamp_ms, each.header, found[0], found[1]))
