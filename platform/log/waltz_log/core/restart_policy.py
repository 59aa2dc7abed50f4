"""When a worker process that ended is started again, and when not any more. Pure: times come in as seconds of any clock that only goes forward.

The first restart is at once: a worker that served for long and was killed must not leave its partitions alone. One that ends soon after its start is
started again after a pause that doubles, and after so many in a row not at all: what it meets at each start is there at the next one too, and whoever
looks after the node must hear of it.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RestartPolicy", "Restarts"]


@dataclass(frozen=True)
class RestartPolicy:
    """`settled_s`: who lived that long is not in a crash loop. `short_lives_max`: of one worker in a row; the next one is the last."""

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
        """How long to wait before the next start, or None: never again."""
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
