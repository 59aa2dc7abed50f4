"""The memory that the partitions of one server share: one budget for transactions, one for feed frames, and one of each
principal for what its clients do not read (Waltz Server, Partition Object)."""

from __future__ import annotations

from waltz_log.core.status.server_statistics import BudgetStatistics, CacheStatistics
from waltz_log.server.base.budget import Budget
from waltz_log.server.base.settings import ServerSettings
from waltz_log.transport.unread import Unread

__all__ = ["Caches"]


class Caches:
    """One for each server process."""

    def __init__(self, settings: ServerSettings) -> None:
        self.transactions = Budget(settings.transaction_cache_bytes)
        self.frames = Budget(settings.feed_cache_bytes)
        self.unread = Unread(settings.unread_bytes_per_principal)
        """What clients do not read."""

    def statistics(self) -> CacheStatistics:
        return CacheStatistics(transactions=_budget(self.transactions), frames=_budget(self.frames))


def _budget(budget: Budget) -> BudgetStatistics:
    return BudgetStatistics(bytes=budget.held_bytes, bytes_max=budget.bytes_max, evicted=budget.evicted)
