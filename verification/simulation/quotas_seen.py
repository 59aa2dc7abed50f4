"""What the owners of a run charged to quotas and refused over them, judged again with a plain bucket that is charged with accepted work alone.

`locks_seen.py` records it. The plain bucket shares no code with the product's. Times are those of the process that decided.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from verification.simulation.history import Evidence, QuotaEvent
from waltz_log.server.base.settings import QuotaSettings

__all__ = ["quotas_count_accepted_work_alone"]

ROUNDING: Final = 1e-6

SHOWN_MAX: Final = 3
"""The maximum number of complaints about one bucket, because later ones are often consequences of the first."""


@dataclass
class _PlainBucket:
    tokens: float
    at_s: float

    def fill(self, event: QuotaEvent, quota: QuotaSettings, burst: float) -> None:
        assert quota.transactions_per_s is not None
        self.tokens = min(burst, self.tokens + quota.transactions_per_s * max(0.0, event.at_s - self.at_s))
        self.at_s = max(self.at_s, event.at_s)


def quotas_count_accepted_work_alone(evidence: Evidence) -> Iterator[str]:
    """An append is refused only where accepted appends used up the quota, and none is accepted where they did."""
    quota = evidence.quota
    if quota is None or quota.transactions_per_s is None:
        return
    burst = max(1, int(quota.transactions_per_s * quota.burst_s))
    buckets: dict[int, _PlainBucket] = {}
    complaints: dict[int, int] = {}
    for event in evidence.history.quota_events:
        bucket = buckets.setdefault(event.meter, _PlainBucket(burst, event.at_s))
        bucket.fill(event, quota, burst)
        wrong = ""
        if event.accepted is None and bucket.tokens > ROUNDING:
            wrong = f"refused with {bucket.tokens:.3f} tokens left"
        elif event.accepted is not None and bucket.tokens < -ROUNDING:
            wrong = f"accepted {event.accepted} with {bucket.tokens:.3f} tokens"
        if wrong and complaints.setdefault(event.meter, 0) < SHOWN_MAX:
            complaints[event.meter] += 1
            yield f"quota {event.meter} at {event.at_s:.3f}: {wrong}"
        bucket.tokens -= event.accepted or 0
