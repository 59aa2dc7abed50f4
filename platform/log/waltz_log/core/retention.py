"""Decides which of the oldest transactions of a partition may be trimmed (docs/guides/topics.md, Retention).

Whole segments are trimmed from the oldest end, by age or by size. However old or large they are, no transaction is trimmed
- above the session's low-water mark, to which recovery can go back, or above what a majority of the assigned replicas has,
- that a registered subscriber has not read, unless the topic's policy says so,
- that the compacted view of a majority does not hold yet, in a compaction topic.

Ages count from the append times in the log to a date that the clocks of owner and replicas agree on. Pure: `server.upkeep` asks the replicas, decides
with this module and sends them the decision. The first retained id never falls.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from waltz_log.core.recovery import committed_mark, majority
from waltz_log.core.topics.catalogue import Policies

__all__ = ["A_SUBSCRIBER", "RETAINED", "Decision", "Holding", "Retained", "SegmentFacts", "agreed_now_ms", "decide", "retained_path"]


NOTHING_KEPT: Final = 1 << 62

RETAINED: Final = "/store/retained"

A_SUBSCRIBER: Final = "subscriber"
"""What a subscriber that keeps transactions is called, before its name."""


def retained_path(partition: int) -> str:
    return f"{RETAINED}/{partition}"


@dataclass(frozen=True, slots=True)
class Retained:
    """What the coordinator holds for a partition. `first`: the first retained transaction; it never falls. `proposed`: up to where an owner is about
    to trim; no subscriber may register below it while it is set."""

    first: int = 0
    proposed: int = 0

    def to_bytes(self) -> bytes:
        return json.dumps({"first": self.first, "proposed": self.proposed}, separators=(",", ":"), sort_keys=True).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        found = json.loads(data)
        return cls(found["first"], found["proposed"])


class SegmentFacts(NamedTuple):
    """`newest_ms`: the append time of its last transaction. An empty one has a `last` below its `first`."""

    first: int
    last: int
    bytes: int
    newest_ms: int


@dataclass(frozen=True, slots=True)
class Holding:
    """What a replica that is clean in the session holds. `segments`: the oldest of them, in order; `whole`: they are all there are. `view_bound`: up
    to where its compacted view goes, 0 if it has none."""

    last: int
    low_water_mark: int
    bytes: int
    segments: tuple[SegmentFacts, ...]
    whole: bool
    view_bound: int = 0


class Decision(NamedTuple):
    """`first`: the first transaction to keep. `held_by`: what keeps more than the policies ask for, None if nothing does. `wants_checkpoint`: the
    low-water mark alone keeps it: a new session raises that."""

    first: int
    held_by: str | None
    wants_checkpoint: bool


def decide(
    policies: Policies,
    holdings: Mapping[str, Holding],
    *,
    assigned: int,
    retained: int,
    committed: int,
    subscribers: Mapping[str, int],
    compacted: bool,
    deleted: bool,
    now_ms: int,
    begins_at: int = 0,
    keeps_existing: bool = False,
) -> Decision:
    """`holdings`: the replicas that reported; `subscribers`: the last transaction that each has finished; `deleted`: the topic is deleted, and all of
    it may be trimmed. `retained`: the first id kept until now. `begins_at`: the topic's first id. Transactions below it are trimmed before any of the
    topic, whatever their age. With `keeps_existing` they stay, and everything above them too."""
    if len(holdings) < majority(assigned):
        return Decision(retained, "replicas that do not answer", wants_checkpoint=False)
    allowed = min(committed + 1, *(_expired_to(each, policies, now_ms, 1 << 62 if deleted else begins_at) for each in holdings.values()))
    on_majority = committed_mark({name: each.last for name, each in holdings.items()}, assigned)
    assert on_majority is not None, "a majority reported"
    bounds = [(on_majority + 1, "a majority")]
    if keeps_existing and retained < begins_at:
        bounds.append((retained, "data from before the topic, which it keeps"))
    if policies.keep_for_subscribers:
        bounds += [(mark + 1, f"{A_SUBSCRIBER} {name}") for name, mark in sorted(subscribers.items())]
    if compacted and not deleted:
        views = sorted((each.view_bound for each in holdings.values()), reverse=True)
        bounds.append((views[majority(assigned) - 1], "the compacted view"))
    low_water_mark = min(each.low_water_mark for each in holdings.values()) + 1
    without_mark, held_by = min([(allowed, None), *bounds], key=lambda bound: bound[0])
    wants_checkpoint = without_mark > low_water_mark and _aligned(holdings.values(), without_mark) > max(retained, low_water_mark)
    if low_water_mark < without_mark:
        without_mark, held_by = low_water_mark, "the low-water mark"
    return Decision(max(retained, _aligned(holdings.values(), without_mark)), held_by, wants_checkpoint)


def _expired_to(holding: Holding, policies: Policies, now_ms: int, begins_at: int) -> int:
    """The first id that the policies keep in this replica; `NOTHING_KEPT` if they keep none of it. `begins_at`: no policy keeps what is below."""
    left = holding.bytes
    first = holding.segments[0].first if holding.segments else holding.last + 1
    for place, segment in enumerate(holding.segments):
        active = holding.whole and place == len(holding.segments) - 1
        too_old = segment.last >= segment.first and 0 <= policies.retention_ms < now_ms - segment.newest_ms
        too_large = 0 <= policies.retention_bytes < left and not active
        foreign = segment.first < begins_at > segment.last  # an empty segment at 0 is below no topic
        if not (foreign or too_old or too_large):
            return first
        first = segment.last + 1
        left -= segment.bytes
    return NOTHING_KEPT if holding.whole else first


def _aligned(holdings: Iterable[Holding], bound: int) -> int:
    """Rounded down to an id where a segment of some replica begins, so that this replica really removes what is no longer served; 0 if none does."""
    starts = (start for each in holdings for segment in each.segments for start in (segment.first, segment.last + 1))
    return max((start for start in starts if start <= bound), default=0)


def agreed_now_ms(clocks: Collection[int]) -> int:
    """The date from which ages are counted: at least half of the clocks show it or a later one. So a minority of fast clocks cannot expire anything
    early, and a single slow clock cannot keep anything."""
    return sorted(clocks)[(len(clocks) - 1) // 2]
