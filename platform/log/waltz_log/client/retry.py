"""How long to wait before trying again: exponential, capped, with full jitter, so that many clients do not come back at the same moment.

A value with the randomness it is given; it never sleeps and never decides whether to try again.
"""

from __future__ import annotations

import random

__all__ = ["Backoff"]


class Backoff:
    def __init__(self, base_s: float, cap_s: float, rng: random.Random) -> None:
        self._base_s = base_s
        self._cap_s = cap_s
        self._rng = rng
        self._tries = 0

    def next_s(self) -> float:
        """The next pause: anything between nothing and the doubled bound."""
        bound = min(self._cap_s, self._base_s * 2.0 ** min(self._tries, 32))
        self._tries += 1
        return self._rng.random() * bound

    def reset(self) -> None:
        """Something worked: the next pause is short again."""
        self._tries = 0
