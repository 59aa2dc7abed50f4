"""Statistics of a segment, counted over one pass through its headers and times. Reads and reports; changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from waltz_log.core.ports import Disk
from waltz_log.statistics import Highest, Lowest, Newest, Summed, snapshot
from waltz_log.storage.integrity.verify import SegmentCheck
from waltz_log.storage.offline.dump import dump_records, dump_times, read_segment_header

__all__ = ["SegmentStatistics", "segment_statistics"]

CLIENTS_MAX: Final = 10_000
"""Most clients that are distinguished; above it the count stops, which bounds the memory."""


@snapshot
@dataclass(frozen=True, slots=True)
class SegmentStatistics:
    """Sizes are of the transactions' data, without the 40 bytes around each. `data_bytes_p50` and `p99` are upper bounds, exact to a power of two.
    Times are None if the segment has none; `clients` counts up to a bound."""

    partition: Newest[int]
    segment: Highest[int]
    transactions: Summed[int]
    last_transaction_id: Highest[int]
    file_bytes: Summed[int]
    data_bytes: Summed[int]
    data_bytes_min: Lowest[int]
    data_bytes_p50: Highest[int]
    data_bytes_p99: Highest[int]
    data_bytes_max: Highest[int]
    generation_first: Lowest[int]
    generation_last: Highest[int]
    clients: Highest[int]
    blocks: Summed[int]
    first_append_time_ms: Lowest[int | None]
    last_append_time_ms: Highest[int | None]
    damaged: Summed[int]


def segment_statistics(disk: Disk, directory: str, first: int) -> SegmentStatistics:
    """Reads the segment twice: once to verify, so that only intact records are counted, once through their headers."""
    header = read_segment_header(disk, directory, first)
    check = SegmentCheck(disk, directory, header.cluster_key, header.partition, first)
    for _ in check.run():
        pass
    bad = check.bad_ranges()
    classes = [0] * 32
    count = total = largest = 0
    smallest: int | None = None
    generations: list[int] = []
    clients: set[int] = set()
    if check.last_id >= first:
        position = first - 1
        for record in dump_records(disk, directory, first, to_id=check.last_id, data=False):
            position += 1
            if record.damage is not None or any(low <= position <= high for low, high in bad):
                continue
            count += 1
            total += record.data_length
            largest = max(largest, record.data_length)
            smallest = record.data_length if smallest is None else min(smallest, record.data_length)
            classes[record.data_length.bit_length()] += 1
            generations = [generations[0] if generations else record.generation, record.generation]
            if len(clients) < CLIENTS_MAX:
                clients.add(record.client_id)
    times = _ends(disk, directory, first)
    return SegmentStatistics(
        partition=header.partition,
        segment=first,
        transactions=count,
        last_transaction_id=check.last_id,
        file_bytes=128 + check.data_bytes,
        data_bytes=total,
        data_bytes_min=smallest or 0,
        data_bytes_p50=min(_quantile(classes, count, 0.5), largest),
        data_bytes_p99=min(_quantile(classes, count, 0.99), largest),
        data_bytes_max=largest,
        generation_first=generations[0] if generations else -1,
        generation_last=generations[1] if generations else -1,
        clients=len(clients),
        blocks=check.times or 0,
        first_append_time_ms=times[0] if times else None,
        last_append_time_ms=times[1] if times else None,
        damaged=sum(high - low + 1 for low, high in bad),
    )


def _ends(disk: Disk, directory: str, first: int) -> tuple[int, int] | tuple[()]:
    """The first and the last append time."""
    found: tuple[int, int] | tuple[()] = ()
    for entry in dump_times(disk, directory, first):
        if entry.damage is None:
            found = (found[0] if found else entry.append_time_ms, entry.append_time_ms)
    return found


def _quantile(classes: list[int], count: int, share: float) -> int:
    """The largest size of the class that the quantile falls into."""
    seen = 0
    for power, members in enumerate(classes):
        seen += members
        if seen >= share * count and members:
            return int((1 << power) - 1)
    return 0
