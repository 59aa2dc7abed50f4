"""The order of acknowledgments: what was acknowledged before another append began has the lower id."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from verification.simulation.history import Attempt

__all__ = ["out_of_real_time"]


def out_of_real_time(committed: Iterable[Attempt]) -> Iterator[str]:
    """Of the committed attempts of one partition, each whose id is below one that was acknowledged before it began."""
    events = sorted(
        event
        for attempt in committed
        for event in ((attempt.ended_s or 0.0, 1, attempt.number, attempt), (attempt.started_s, 0, attempt.number, attempt))
    )
    highest = -1
    before: dict[int, int] = {}
    for _, kind, number, attempt in events:
        found = -1 if attempt.transaction_id is None else attempt.transaction_id
        if kind == 0:
            before[number] = highest
        else:
            if found < before[number]:
                yield f"attempt {number} has id {found}, below {before[number]}, acknowledged before it began"
            highest = max(highest, found)
