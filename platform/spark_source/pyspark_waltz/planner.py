"""The planner decides where reading begins and ends, how much of the backlog the next micro-batch reads, and how a batch is cut into tasks. Pure:
data from the log (times, sizes) is passed in.

Invariants: an end never lies below its start; a limit on rows is never exceeded; every partition with a backlog advances (at least one transaction
per batch, or in turns if a limit on rows is below the number of partitions); without progress the start is returned unchanged, which Spark treats as
"no new data".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from pyspark_waltz.offsets import Extent, Offset
from pyspark_waltz.options import NO_LIMITS, Limits
from pyspark_waltz.positions import EARLIEST, LATEST, Positions, Times, backward, iso_time
from waltz_log.errors import InvalidSetting, OutOfRange, Unavailable

__all__ = [
    "Measure",
    "Range",
    "Size",
    "Span",
    "capped",
    "cut",
    "latest_offset",
    "refuse_backward",
    "resolve",
    "split_limit",
    "times_needed",
    "view_end",
    "within_bytes",
]


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive ids of one partition, `first` to `last`, both included."""

    partition: int
    first: int
    last: int


class Range(NamedTuple):
    """Ids `first` to `last` of a partition to be measured, and how many bytes a batch may read of them."""

    first: int
    last: int
    max_bytes: int


class Size(NamedTuple):
    """`bytes` of a range; the ids up to `last_within` fit within its `max_bytes`."""

    bytes: int
    last_within: int


Measure: TypeAlias = Callable[[Mapping[int, Range]], Mapping[int, Size]]

# ---- where -------------------------------------------------------------------------------------------------------------------------------------


def times_needed(positions: Positions, times: Times | None, partitions: Iterable[int]) -> dict[int, int]:
    """The times to look up in the log: those of partitions without an id in the options."""
    if times is None:
        return {}
    found = {partition: times.of(partition) for partition in partitions if partition not in positions.given}
    return {partition: time_ms for partition, time_ms in found.items() if time_ms is not None}


def resolve(
    positions: Positions, extents: Mapping[int, Extent], *, option: str, times: Times | None = None, at_times: Mapping[int, int] | None = None
) -> dict[int, int]:
    """The id at which each partition starts or ends. `at_times`: the log's answers for `times_needed`, the next id if nothing is that new. An id
    beyond the end of the log is refused: it belongs to another log, or to a log that was reset."""
    said = {option: set(positions.given), **({times.option: set(times.given_ms)} if times is not None else {})}
    for name, named in said.items():
        unknown = sorted(named - set(extents))
        if unknown:
            raise InvalidSetting(name=name, reason=f"names partition {unknown[0]}, the log has {_listed(extents)}", nearest=None)
    found = {}
    for partition, extent in extents.items():
        if times is not None and at_times is not None and partition in at_times:
            found[partition] = _at_time(times, partition, extent, at_times[partition])
            continue
        default = times.otherwise if times is not None else positions.default
        wanted = positions.given.get(partition, default)
        if wanted > extent.next:
            raise OutOfRange(partition=partition, asked=wanted, first=extent.first, last=extent.next - 1)
        found[partition] = extent.first if wanted == EARLIEST else extent.next if wanted == LATEST else wanted
    return found


def refuse_backward(partitions: Iterable[int], starts: Mapping[int, int], ends: Mapping[int, int]) -> None:
    """Refuses an end before its start in these partitions, if the options alone did not show it because one of the two was a time."""
    for partition in sorted(partitions):
        if ends[partition] < starts[partition]:
            raise backward("the end", partition, starts[partition], ends[partition])


def _at_time(times: Times, partition: int, extent: Extent, at: int) -> int:
    if at >= extent.next and times.strict:
        time_ms = times.of(partition)
        assert time_ms is not None
        reason = f"nothing of partition {partition} was appended at {iso_time(time_ms)} or later; "
        reason += "startingTransactionIdsByTimestampStrategy=latest begins at its end"
        raise InvalidSetting(name=times.option, reason=reason, nearest=None)
    return min(max(at, extent.first), extent.next)


def _listed(extents: Iterable[int]) -> str:
    return ",".join(str(partition) for partition in sorted(extents))


def capped(extents: Mapping[int, Extent], ends: Mapping[int, int]) -> dict[int, Extent]:
    """The extents, limited to the given ends."""
    found = {p: min(extent.next, ends.get(p, extent.next)) for p, extent in extents.items()}
    return {p: Extent(min(extent.first, found[p]), found[p]) for p, extent in extents.items()}


class ViewEnd(NamedTuple):
    """Where reading continues from the view to the log, and the replicas whose views reach that id."""

    end: int
    replicas: tuple[str, ...]


def view_end(ends: Mapping[str, int], extent: Extent, partition: int) -> ViewEnd:
    """For a partition whose replicas' views end at `ends`: as far as most of them reach, so that others remain if one fails; further if the log no
    longer reaches back that far. No replicas if there is no view and the log is complete. Raises `Unavailable`."""
    reaching = sorted((end for end in ends.values() if end >= extent.first and end > 0), reverse=True)
    if not reaching:
        if extent.first == 0:
            return ViewEnd(0, ())
        view_ends = ", ".join(f"{address} ends at {end}" for address, end in sorted(ends.items())) or "none has one"
        raise Unavailable(reason=f"no replica's compacted view reaches the log: partition={partition} log_begins={extent.first} {view_ends}")
    end = reaching[len(reaching) // 2]
    return ViewEnd(end, tuple(sorted(address for address, reach in ends.items() if reach >= end)))


# ---- how much ----------------------------------------------------------------------------------------------------------------------------------


def latest_offset(
    start: Offset, extents: Mapping[int, Extent], limits: Limits = NO_LIMITS, *, measure: Measure | None = None, waited_ms: float | None = None
) -> Offset:
    """The end of the next batch. A partition without an entry in `extents` (not selected now, or without an owner at the moment) does not advance.
    `waited_ms`: time since the last batch, None if the batch must not wait."""
    new = {partition: extent.first for partition, extent in extents.items() if partition not in start.next}
    starts = {**start.next, **new}
    # Counted from the first retained id: trimmed transactions use up no limit.
    froms = {p: max(starts[p], extents[p].first) for p in sorted(extents)}
    backlog = {p: extents[p].next - at for p, at in froms.items() if extents[p].next > starts[p]}
    if limits.min_rows is not None and waited_ms is not None and sum(backlog.values()) < limits.min_rows and waited_ms < limits.delay_ms:
        if not start.initial:
            return start
        backlog, new = {}, {}
        starts = dict(start.next)
    if limits.max_rows is not None and sum(backlog.values()) > limits.max_rows:
        backlog = split_limit(backlog, limits.max_rows, turn=sum(starts.values()))
    if limits.max_bytes is not None and measure is not None:
        backlog = within_bytes({p: count for p, count in backlog.items() if count > 0}, froms, limits.max_bytes, measure)
    if not backlog and not new and not start.initial:
        return start
    ends = {p: froms[p] + backlog[p] if p in backlog else at for p, at in starts.items()}
    began = starts if start.initial else new
    origin = None if start.origin is None and not start.initial else {**(start.origin or {}), **began}
    return Offset(ends, began=began, cluster=start.cluster, origin=origin)


def split_limit(backlog: Mapping[int, int], limit: int, *, turn: int) -> dict[int, int]:
    """Divides `limit` (below the sum of the backlogs): one to each, the rest in proportion to the remaining backlog, the largest remainders rounded
    up.

    If there is less than one for each, partitions rotate: `turn` moves with what was read, so over several batches each is served."""
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


def within_bytes(backlog: Mapping[int, int], starts: Mapping[int, int], limit: int, measure: Measure) -> dict[int, int]:
    """The part of the backlogs (each above 0) that fits: each partition has a share in proportion to its bytes, and reads as many of its first
    transactions as fit into the share. A first transaction that is larger than its share is read nevertheless, or its partition would never
    advance."""
    sizes = measure({p: Range(starts[p], starts[p] + count - 1, 0) for p, count in backlog.items()})
    total = sum(size.bytes for size in sizes.values())
    if total <= limit:
        return dict(backlog)
    fits = measure({p: Range(starts[p], starts[p] + count - 1, limit * sizes[p].bytes // total) for p, count in backlog.items()})
    return {p: min(count, max(1, fits[p].last_within - starts[p] + 1)) for p, count in backlog.items()}


# ---- tasks -------------------------------------------------------------------------------------------------------------------------------------


def cut(spans: Iterable[Span], *, min_partitions: int | None, max_records: int) -> list[Span]:
    """The tasks of a batch: every id once, in order; no task above `max_records`; at least `min_partitions` tasks if there are as many rows."""
    spans = [span for span in spans if span.last >= span.first]
    total = sum(span.last - span.first + 1 for span in spans)
    piece = max_records
    if min_partitions is not None and total:
        piece = max(1, min(piece, total // min_partitions))
    found = []
    for span in spans:
        size = span.last - span.first + 1
        pieces = -(-size // piece)
        bounds = [span.first + size * n // pieces for n in range(pieces + 1)]
        found += [Span(span.partition, low, high - 1) for low, high in pairwise(bounds)]
    return found
