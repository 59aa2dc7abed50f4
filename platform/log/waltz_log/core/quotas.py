"""How much a principal may do in a topic per second: token buckets over an injected clock. Pure.

A bucket fills at its rate up to its burst. Work is admitted while there is a token, and is charged when it was accepted, with its whole amount: a
batch can overdraw the bucket, and then nothing more is admitted until the bucket has filled above zero. So in any time t at most `rate * t + burst +
one batch` is accepted, a batch larger than the burst is not stuck, and what was refused costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

__all__ = ["Limit", "Meter", "Rates", "Refusal", "TokenBucket"]

Limit: TypeAlias = Literal["transactions_per_s", "bytes_per_s", "mounts_per_s"]

RETRY_S_MIN: Final = 0.001
"""The shortest retry time: answers carry whole milliseconds, and 0 would mean none."""


class TokenBucket:
    """`rate` per second, up to `burst`. Full at first. `now_s` may be any clock that never goes back."""

    __slots__ = ("_burst", "_filled_s", "_rate", "_tokens")

    def __init__(self, rate: float, burst: float, now_s: float) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = burst
        self._filled_s = now_s

    def tokens(self, now_s: float) -> float:
        """Negative after a batch that was larger than what was there."""
        return min(self._burst, self._tokens + self._rate * max(0.0, now_s - self._filled_s))

    def wait_s(self, now_s: float) -> float:
        """0: there is a token. Otherwise the time until there is one, if nothing is charged meanwhile."""
        missing = -self.tokens(now_s)
        return 0.0 if missing < 0 else missing / self._rate + RETRY_S_MIN

    def is_full(self, now_s: float) -> bool:
        return self.tokens(now_s) >= self._burst

    def charge(self, amount: float, now_s: float) -> None:
        """Subtracts accepted work."""
        self._tokens = self.tokens(now_s) - amount
        self._filled_s = max(now_s, self._filled_s)


@dataclass(frozen=True, slots=True)
class Rates:
    """What one principal may do in one topic, at one server process. None: no limit. `burst_s`: a bucket holds the tokens
    of this many seconds."""

    transactions_per_s: float | None = None
    bytes_per_s: float | None = None
    mounts_per_s: float | None = None
    burst_s: float = 1.0

    def burst(self, rate: float | None) -> int:
        """The size of the bucket of that rate, at least 1; 0 if there is no limit."""
        return 0 if rate is None else max(1, int(rate * self.burst_s))


@dataclass(frozen=True, slots=True)
class Refusal:
    """`quota`: the limit that is exceeded. `retry_after_s`: when the same may be tried again."""

    quota: Limit
    retry_after_s: float


class Meter:
    """The buckets of one principal in one topic. `batch_transactions`, `batch_bytes`: the bursts, which a client's batch should not exceed; 0: no
    limit."""

    __slots__ = ("__weakref__", "_bytes", "_mounts", "_transactions", "batch_bytes", "batch_transactions", "principal", "topic")

    def __init__(self, principal: str, topic: str, rates: Rates, now_s: float) -> None:
        def bucket(rate: float | None) -> TokenBucket | None:
            return None if rate is None else TokenBucket(rate, rates.burst(rate), now_s)

        self.principal = principal
        self.topic = topic
        self.batch_transactions = rates.burst(rates.transactions_per_s)
        self.batch_bytes = rates.burst(rates.bytes_per_s)
        self._transactions = bucket(rates.transactions_per_s)
        self._bytes = bucket(rates.bytes_per_s)
        self._mounts = bucket(rates.mounts_per_s)

    def append_refusal(self, now_s: float) -> Refusal | None:
        """None: a batch may be ordered. Charges nothing. Of two exceeded limits the one that lasts longer."""
        waits: list[tuple[float, Limit]] = []
        if self._transactions is not None:
            waits.append((self._transactions.wait_s(now_s), "transactions_per_s"))
        if self._bytes is not None:
            waits.append((self._bytes.wait_s(now_s), "bytes_per_s"))
        longest, limit = max(waits, default=(0.0, "transactions_per_s"))
        return Refusal(limit, longest) if longest else None

    def fits(self, transactions: int, size: int, now_s: float) -> bool:
        """Whether there would still be a token of each kind if that amount were accepted before."""
        if self._transactions is not None and self._transactions.tokens(now_s) <= transactions:
            return False
        return self._bytes is None or self._bytes.tokens(now_s) > size

    def charge_append(self, transactions: int, size: int, now_s: float) -> None:
        """What became part of the log: `size` bytes of records."""
        if self._transactions is not None:
            self._transactions.charge(transactions, now_s)
        if self._bytes is not None:
            self._bytes.charge(size, now_s)

    def mount_refusal(self, now_s: float) -> Refusal | None:
        """None: a client may mount. Charges nothing."""
        wait_s = 0.0 if self._mounts is None else self._mounts.wait_s(now_s)
        return Refusal("mounts_per_s", wait_s) if wait_s else None

    def charge_mount(self, now_s: float) -> None:
        """A mount that was accepted."""
        if self._mounts is not None:
            self._mounts.charge(1, now_s)

    def is_full(self, now_s: float) -> bool:
        """Whether a new meter would behave the same."""
        return all(bucket is None or bucket.is_full(now_s) for bucket in (self._transactions, self._bytes, self._mounts))
