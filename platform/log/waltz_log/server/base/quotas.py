"""The quotas of a log server: which rule of the settings applies to a principal in a topic, and the meter of each pair.

All partitions of the process share the meters. A meter lives as long as a mount uses it. Without a mount it is remembered until it is full again,
because a new one would behave the same.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice
from typing import Final
from weakref import WeakValueDictionary

from waltz_log.core.quotas import Meter, Rates
from waltz_log.security.identity import matches
from waltz_log.server.base.settings import QuotaSettings

__all__ = ["Quotas"]

METERS_MAX: Final = 10_000
"""Meters that are remembered without a mount. Above it, the least recently mounted is forgotten, even if it is overdrawn."""

FORGOTTEN_TOGETHER: Final = 16
"""How many old meters are checked when a new one is made."""


class Quotas:
    """`settings`: the rules, of which the first that fits applies."""

    def __init__(self, settings: Sequence[QuotaSettings]) -> None:
        self._rules = [(each, _rates(each)) for each in settings]
        self._meters: WeakValueDictionary[tuple[str, str], Meter] = WeakValueDictionary()
        self._remembered: OrderedDict[tuple[str, str], Meter] = OrderedDict()

    def meter(self, principal: str, topic: str, now_s: float) -> Meter | None:
        """None: no limit applies. `topic`: empty for a partition of no topic."""
        if not self._rules:
            return None
        key = (principal, topic)
        found = self._meters.get(key)
        if found is None:
            rates = next((rates for rule, rates in self._rules if _fits(rule.principal, principal) and _fits(rule.topic, topic)), None)
            if rates is None:
                return None
            found = self._meters[key] = Meter(principal, topic, rates, now_s)
        self._forget(now_s)
        self._remembered[key] = found
        self._remembered.move_to_end(key)
        return found

    def _forget(self, now_s: float) -> None:
        for key, meter in [*islice(self._remembered.items(), FORGOTTEN_TOGETHER)]:
            if meter.is_full(now_s):
                del self._remembered[key]
        while len(self._remembered) >= METERS_MAX:
            self._remembered.popitem(last=False)


def _fits(pattern: str | None, name: str) -> bool:
    return pattern is None or matches(name, pattern)


def _rates(settings: QuotaSettings) -> Rates:
    return Rates(settings.transactions_per_s, settings.bytes_per_s, settings.mounts_per_s, settings.burst_s)
