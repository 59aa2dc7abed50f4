"""When an ended worker process is restarted, and when no longer. Pure: times come in as seconds of any monotonic clock.

The first restart is immediate, because the partitions of a worker that was killed after a long run must be served again. A worker that ends soon
after its start is restarted after a pause that doubles, and after several such ends in a row not at all: the cause is permanent, and the operator
must learn of it.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RestartPolicy", "Restarts"]


@dataclass(frozen=True)
class RestartPolicy:
    """`settled_s`: a worker that lived this long is not in a crash loop. `short_lives_max`: short lives of one worker in a row; the next one is the
    last."""

    pause_base_s: float = 0.1
    pause_max_s: float = 5.0
    settled_s: float = 20.0
    short_lives_max: int = 6


class Restarts:
    """The record of one worker."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self.count = 0
        self.short_lives = 0

    def ended(self, lived_s: float) -> float | None:
        """How long to wait before the next start, or None: do not restart."""
        self.count += 1
        if lived_s >= self._policy.settled_s:
            self.short_lives = 0
            return 0.0
        self.short_lives += 1
        if self.short_lives > self._policy.short_lives_max:
            return None
        if self.short_lives == 1:
            return 0.0
        return min(self._policy.pause_max_s, self._policy.pause_base_s * 2.0 ** (self.short_lives - 2))
