"""How long to wait before trying again, and whether there may be another try at all.

Values with the randomness they are given; they never sleep. Pauses increase up to a limit and have full jitter, so that many clients do not return
at the same moment. All calls of a client share a budget. So if nothing works, each of them is not repeated many times: retries are what turns a
brown-out into an outage.
"""

from __future__ import annotations

import random

__all__ = ["Backoff", "RetryBudget", "pause_s"]


def pause_s(tries: int, base_s: float, cap_s: float, rng: random.Random) -> float:
    """The pause after this many attempts with pauses: anything between nothing and the bound, which doubles with each."""
    return rng.random() * min(cap_s, base_s * 2.0 ** min(tries, 32))


class Backoff:
    def __init__(self, base_s: float, cap_s: float, rng: random.Random) -> None:
        self._base_s = base_s
        self._cap_s = cap_s
        self._rng = rng
        self._tries = 0

    def next_s(self) -> float:
        found = pause_s(self._tries, self._base_s, self._cap_s, self._rng)
        self._tries += 1
        return found

    def reset(self) -> None:
        """Something worked: the next pause is short again."""
        self._tries = 0


class RetryBudget:
    """Tokens: a retry takes one, a success brings a part of one, up to the size of the budget, with which it begins."""

    def __init__(self, size: int, earned: float) -> None:
        self._size = size
        self._earned = earned
        self._tokens = float(size)

    @property
    def left(self) -> float:
        return self._tokens

    def spend(self) -> bool:
        """Whether there may be another try; it is counted."""
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def earn(self) -> None:
        self._tokens = min(self._size, self._tokens + self._earned)
