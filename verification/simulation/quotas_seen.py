"""What the owners of a run charged to quotas and refused over them, judged again with a plain bucket that is charged with accepted work alone.

`locks_seen.py` records it. The plain bucket shares no code with the product's. Times are those of the process that decided.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from verification.simulation.history import Evidence
from waltz_log.server.base.settings import QuotaSettings

__all__ = ["quotas_count_accepted_work_alone"]

ROUNDING: Final = 1e-6

SHOWN_MAX: Final = 3
"""The maximum number of complaints about one bucket, because later ones are often consequences of the first."""


@dataclass
class _PlainBucket:
    rate: float
    burst: float
    at_s: float
    tokens: float = 0.0

    def __post_init__(self) -> None:
        self.tokens = self.burst

    def fill(self, at_s: float) -> None:
        self.tokens = min(self.burst, self.tokens + self.rate * max(0.0, at_s - self.at_s))
        self.at_s = max(self.at_s, at_s)


def _buckets(quota: QuotaSettings, at_s: float) -> dict[str, _PlainBucket]:
    """By what they count, for the limits that the quota has."""
    rates = {"transactions": quota.transactions_per_s, "bytes": quota.bytes_per_s}
    return {what: _PlainBucket(rate, max(1, int(rate * quota.burst_s)), at_s) for what, rate in rates.items() if rate is not None}


def quotas_count_accepted_work_alone(evidence: Evidence) -> Iterator[str]:
    """An append is refused only where accepted appends used up a limit of the quota, and none is accepted where they did."""
    quota = evidence.quota
    if quota is None:
        return
    meters: dict[int, dict[str, _PlainBucket]] = {}
    complaints: dict[int, int] = {}
    for event in evidence.history.quota_events:
        if event.meter not in meters:
            meters[event.meter] = _buckets(quota, event.at_s)
        buckets = meters[event.meter]
        for bucket in buckets.values():
            bucket.fill(event.at_s)
        left = {what: round(bucket.tokens, 3) for what, bucket in buckets.items()}
        wrong = ""
        if event.accepted is None and all(bucket.tokens > ROUNDING for bucket in buckets.values()):
            wrong = f"refused with tokens left: {left}"
        elif event.accepted is not None and any(bucket.tokens < -ROUNDING for bucket in buckets.values()):
            wrong = f"accepted {event.accepted} with tokens: {left}"
        if wrong and complaints.setdefault(event.meter, 0) < SHOWN_MAX:
            complaints[event.meter] += 1
            yield f"quota {event.meter} at {event.at_s:.3f}: {wrong}"
        for what, amount in (("transactions", event.accepted or 0), ("bytes", event.accepted_bytes)):
            if what in buckets:
                buckets[what].tokens -= amount
