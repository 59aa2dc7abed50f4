"""The content of an offset, and the rows of the batch between two offsets. Pure; replaying a batch gives the same rows.

An offset is the next transaction id of each partition (end-exclusive), as JSON `{"0": 42, "1": 17}`. More keys make a replay independent of what has
changed since:

- `initial: true` marks the result of `initialOffset`. Spark does not store it: after a crash in the first batch it asks again, and `latest` may be
  another id by then.
- `began` in an *end* offset gives the start of that batch for partitions whose start offset is not durable: all of them in the first batch, and
  partitions found while the query was running. It overrides the start offset, so the offset log alone determines the batch.
- `origin` gives, from the first batch on, where the stream began in each partition that it did not begin at transaction 0. With it a sink can
  distinguish the first batch of a partition from a later one, however many batches ago that was. An offset without it comes from a stream that
  began before this key existed: nothing is known then.
- `cluster` names the cluster that the ids belong to, so that a checkpoint is never used with another one.
- `topics`, if topics are read, has the topic of each partition and whether it is keyed, so that rows stay the same if a topic is deleted meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final  # Any: JSON values

from pyspark_waltz.errors import DataLost
from pyspark_waltz.naming import TopicOf
from waltz_log.errors import InvalidSetting

__all__ = ["BEHIND", "Extent", "Offset", "batch_starts", "by_name", "checked_starts"]

BEHIND: Final = "transactionsBehindLatest"
"""In the latest offset of a query's progress: how many transactions of each partition come after the batch."""

_OWN: Final = ("began", "initial", "origin", "cluster", "topics", BEHIND)


@dataclass(frozen=True, slots=True)
class Extent:
    """What the log holds of a partition: ids from `first` up to and without `next`."""

    first: int
    next: int


@dataclass(frozen=True, slots=True)
class Offset:
    next: Mapping[int, int]
    began: Mapping[int, int] = field(default_factory=dict)
    initial: bool = False
    cluster: str | None = None
    topics: Mapping[int, TopicOf] = field(default_factory=dict)
    origin: Mapping[int, int] | None = None

    def to_json(self) -> dict[str, object]:
        """Always in the same order, since Spark compares offsets as text."""
        found: dict[str, object] = by_name(self.next)
        if self.began:
            found["began"] = by_name(self.began)
        if self.initial:
            found["initial"] = True
        if self.origin is not None:
            found["origin"] = by_name({partition: at for partition, at in self.origin.items() if at > 0})
        if self.cluster is not None:
            found["cluster"] = self.cluster
        if self.topics:
            found["topics"] = {str(partition): list(topic) for partition, topic in sorted(self.topics.items())}
        return found

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Offset:
        try:
            return cls(
                {int(key): int(value) for key, value in found.items() if key not in _OWN},
                {int(key): int(value) for key, value in found.get("began", {}).items()},
                bool(found.get("initial", False)),
                None if found.get("cluster") is None else str(found["cluster"]),
                {int(key): TopicOf(str(name), bool(keyed)) for key, (name, keyed) in found.get("topics", {}).items()},
                None if found.get("origin") is None else {int(key): int(value) for key, value in found["origin"].items()},
            )
        except (ValueError, TypeError, AttributeError):
            raise InvalidSetting(name="checkpoint", reason=f"holds no offset of this source: {dict(found)}", nearest=None) from None

    def expect_cluster(self, key: str) -> None:
        """Refuses an offset of another cluster: its ids name other transactions."""
        if self.cluster not in (None, key):
            raise InvalidSetting(name="checkpoint", reason=f"is of another cluster: checkpoint={self.cluster} cluster={key}", nearest=None)


def by_name(values: Mapping[int, int]) -> dict[str, object]:
    """Partitions as JSON keys, always in the same order."""
    return {str(partition): values[partition] for partition in sorted(values)}


def batch_starts(start: Offset, end: Offset) -> dict[int, int]:
    """Where each partition of a batch starts, from the two offsets alone. Between an offset and itself there is nothing, even if it states how the
    batch before it began."""
    if start == end:
        return dict(end.next)
    starts = {partition: end.began.get(partition, start.next.get(partition)) for partition in end.next}
    found = {}
    for partition, at in starts.items():
        if at is None or at > end.next[partition]:
            raise InvalidSetting(
                name="checkpoint", reason=f"holds a batch of partition {partition} from {at} to {end.next[partition]}, which cannot be", nearest=None
            )
        found[partition] = at
    return found


def checked_starts(starts: Mapping[int, int], ends: Mapping[int, int], extents: Mapping[int, Extent], *, fail_on_data_loss: bool) -> dict[int, int]:
    """The starts, moved past trimmed transactions. Raises `DataLost` with the exact range, unless the query may continue without it."""
    found = {}
    for partition, at in starts.items():
        end, extent = ends[partition], extents.get(partition)
        if extent is not None and at < min(end, extent.first):
            if fail_on_data_loss:
                raise DataLost(partition=partition, first=at, last=min(end, extent.first) - 1, reason="trimmed")
            at = min(end, extent.first)
        found[partition] = at
    return found
