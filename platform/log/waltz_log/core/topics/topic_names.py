"""The name of a topic, and the numbers that identify it after its creation (Partitioned WAL; docs/reference/formats.md).

The text is used to create and show a topic. Everywhere else ids are used, which are hashes of the names. The catalog keeps both texts and refuses two
names with one hash. The numbers never change: partitions of keys, cores of partitions and folders depend on them. Pure.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple, Self

from xxhash import xxh64_intdigest

from waltz_log.errors import InvalidRequest

__all__ = ["NAMES_LENGTH_MAX", "TopicName", "jump_hash", "name_id", "partition_of_key"]

NAMES_LENGTH_MAX: Final = 199
"""For namespace and topic together: they are folders of one path."""

_PART: Final = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_JUMP: Final = 2862933555777941757
_MASK: Final = (1 << 64) - 1


class TopicName(NamedTuple):
    namespace: str
    topic: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """From `namespace/topic`. Raises `InvalidRequest` for anything but ASCII letters, digits, `-` and `_` around one slash."""
        namespace, slash, topic = text.partition("/")
        if not (slash and _PART.fullmatch(namespace) and _PART.fullmatch(topic)):
            raise InvalidRequest(reason=f"not a topic's name: {text!r}, must be namespace/topic of ASCII letters, digits, - and _")
        if len(namespace) + len(topic) > NAMES_LENGTH_MAX:
            raise InvalidRequest(reason=f"a topic's name has at most {NAMES_LENGTH_MAX} letters, not {len(namespace) + len(topic)}")
        return cls(namespace, topic)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.topic}"

    @property
    def namespace_id(self) -> int:
        return name_id(self.namespace)

    @property
    def topic_id(self) -> int:
        return name_id(self.topic)


def name_id(name: str) -> int:
    """The name id of a namespace or a topic, 0 to 2^64 - 1."""
    return xxh64_intdigest(name.encode("ascii"))


def partition_of_key(key: bytes, partitions: int) -> int:
    """Where a keyed transaction of a topic goes."""
    return jump_hash(xxh64_intdigest(key), partitions)


def jump_hash(number: int, buckets: int) -> int:
    """The bucket, 0 to `buckets` - 1, of a 64-bit number; with one bucket more only 1/(n+1) of the numbers move, all of them to the new one (Lamping
    and Veach, A Fast, Minimal Memory, Consistent Hash Algorithm)."""
    if buckets < 1:
        raise InvalidRequest(reason=f"buckets must be at least 1, not {buckets}")
    bucket, jump = -1, 0
    while jump < buckets:
        bucket = jump
        number = (number * _JUMP + 1) & _MASK
        jump = int((bucket + 1) * ((1 << 31) / ((number >> 33) + 1)))
    return bucket
