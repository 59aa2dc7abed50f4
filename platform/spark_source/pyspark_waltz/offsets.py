"""The planner: which transactions a micro-batch holds, and how they are cut into tasks. Pure; replaying a batch gives the same rows.

An offset is the next transaction id of each partition (end-exclusive), as JSON `{"0": 42, "1": 17}`. Two more keys make replay independent of
anything that may have moved since:

- `initial: true` marks what `initialOffset` gave. Spark does not keep that anywhere: after a crash in the first batch it asks again, and `latest`
  may lie elsewhere by then.
- `began` in an *end* offset gives the start of that batch for partitions whose start offset is not durable: all of them in the first batch, and
  partitions found while the query was running. It overrides the start offset, so the batch is always what the offset log says.

Invariants: an end never lies below its start; a limit is never exceeded; where there is a backlog every partition gets on (at least one transaction
a batch, or in turns where the limit is below the number of partitions); no progress gives the start back unchanged, which Spark takes as "no new
data"."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from pyspark_waltz.errors import DataLost
from pyspark_waltz.options import EARLIEST, LATEST, Positions
from waltz_log.errors import InvalidSetting, OutOfRange

__all__ = ["Extent", "Offset", "Span", "batch_starts", "checked_starts", "cut", "initial_offset", "latest_offset", "resolve", "split_limit"]


@dataclass(frozen=True, slots=True)
class Extent:
    """What the log holds of a partition: ids from `first` up to and without `next`."""

    first: int
    next: int


@dataclass(frozen=True, slots=True)
class Span:
    """A run of one partition, ids `first` to `last`, both read."""

    partition: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Offset:
    next: Mapping[int, int]
    began: Mapping[int, int] = field(default_factory=dict)
    initial: bool = False

    def to_json(self) -> dict[str, Any]:
        """In one order always, since Spark compares offsets as text."""
        found: dict[str, Any] = _by_name(self.next)
        if self.began:
            found["began"] = _by_name(self.began)
        if self.initial:
            found["initial"] = True
        return found

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Offset:
        try:
            return cls(
                {int(key): int(value) for key, value in found.items() if key not in ("began", "initial")},
                {int(key): int(value) for key, value in found.get("began", {}).items()},
                bool(found.get("initial", False)),
            )
        except (ValueError, TypeError, AttributeError):
            raise InvalidSetting(name="checkpoint", reason=f"holds no offset of this source: {dict(found)}", nearest=None) from None


def _by_name(values: Mapping[int, int]) -> dict[str, Any]:
    return {str(partition): values[partition] for partition in sorted(values)}


def resolve(positions: Positions, extents: Mapping[int, Extent], *, option: str) -> dict[int, int]:
    """The id each partition starts or ends at. An id beyond the end of the log is refused: it names another log, or a log that was reset."""
    unknown = sorted(set(positions.given) - set(extents))
    if unknown:
        raise InvalidSetting(name=option, reason=f"names partition {unknown[0]}, the log has {_listed(extents)}", nearest=None)
    found = {}
    for partition, extent in extents.items():
        wanted = positions.of(partition)
        if wanted > extent.next:
            raise OutOfRange(partition=partition, asked=wanted, first=extent.first, last=extent.next - 1)
        found[partition] = extent.first if wanted == EARLIEST else extent.next if wanted == LATEST else wanted
    return found


def _listed(extents: Iterable[int]) -> str:
    return ",".join(str(partition) for partition in sorted(extents))


def initial_offset(starting: Positions, extents: Mapping[int, Extent]) -> Offset:
    return Offset(resolve(starting, extents, option="startingTransactionIds"), initial=True)


def latest_offset(start: Offset, extents: Mapping[int, Extent], limit: int | None) -> Offset:
    """The end of the next batch. A partition that `extents` leaves out (not asked for now, no owner just now) stays where it is."""
    new = {partition: extent.first for partition, extent in extents.items() if partition not in start.next}
    starts = {**start.next, **new}
    backlog = {p: extents[p].next - max(starts[p], extents[p].first) for p in sorted(extents) if extents[p].next > starts[p]}
    if limit is not None and sum(backlog.values()) > limit:
        turn = sum(starts.values())
        backlog = split_limit(backlog, limit, turn=turn)
    if not backlog and not new and not start.initial:
        return start
    # Counted from what is still there: trimmed transactions use up no limit.
    ends = {p: max(at, extents[p].first if p in backlog else at) + backlog.get(p, 0) for p, at in starts.items()}
    return Offset(ends, began=starts if start.initial else new)


def split_limit(backlog: Mapping[int, int], limit: int, *, turn: int) -> dict[int, int]:
    """`limit` (below the sum of the backlogs) shared out: one to each, the rest in proportion to what each still has, the largest remainders
    rounded up.

    Below one each, partitions take turns: `turn` moves with what was read, so over the batches each is served."""
    waiting = [partition for partition in sorted(backlog) if backlog[partition] > 0]
    if limit < len(waiting):
        return {waiting[(turn + n) % len(waiting)]: 1 for n in range(limit)}
    share = dict.fromkeys(waiting, 1)
    rest = limit - len(waiting)
    behind = {partition: backlog[partition] - 1 for partition in waiting}
    total = sum(behind.values())
    if rest and total:
        for partition in waiting:
            share[partition] += rest * behind[partition] // total
        left = limit - sum(share.values())
        by_remainder = sorted(waiting, key=lambda partition: (-(rest * behind[partition] % total), partition))
        for partition in by_remainder[:left]:
            share[partition] += 1
    return share


def batch_starts(start: Offset, end: Offset) -> dict[int, int]:
    """Where each partition of a batch starts, from the two offsets alone."""
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
    """The starts, past what was trimmed. `DataLost` names the exact range, unless the query goes on without it."""
    found = {}
    for partition, at in starts.items():
        end, extent = ends[partition], extents.get(partition)
        if extent is not None and at < min(end, extent.first):
            if fail_on_data_loss:
                raise DataLost(partition=partition, first=at, last=min(end, extent.first) - 1, reason="trimmed")
            at = min(end, extent.first)
        found[partition] = at
    return found


def cut(starts: Mapping[int, int], ends: Mapping[int, int], *, min_partitions: int | None, max_records: int) -> list[Span]:
    """The tasks of a batch: every id once, in order; no task above `max_records`; at least `min_partitions` tasks where there are as many rows."""
    sizes = {partition: ends[partition] - starts[partition] for partition in sorted(ends)}
    total = sum(sizes.values())
    piece = max_records
    if min_partitions is not None and total:
        piece = max(1, min(piece, total // min_partitions))
    spans = []
    for partition, size in sizes.items():
        pieces = -(-size // piece)
        bounds = [starts[partition] + size * n // pieces for n in range(pieces + 1)] if pieces else []
        spans += [Span(partition, low, high - 1) for low, high in pairwise(bounds)]
    return spans
