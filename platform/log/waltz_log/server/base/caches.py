"""The memory that the partitions of one server share: one budget for transactions, one for feed frames (seeds/waltz_server.md, Partition Object)."""

from __future__ import annotations

from typing import Any

from waltz_log.server.base.budget import Budget
from waltz_log.server.base.settings import ServerSettings

__all__ = ["Caches"]


class Caches:
    """One for each server process."""

    def __init__(self, settings: ServerSettings) -> None:
        self.transactions = Budget(settings.transaction_cache_bytes)
        self.frames = Budget(settings.feed_cache_bytes)

    def statistics(self) -> dict[str, Any]:
        return {
            name: {"bytes": budget.held_bytes, "bytes_max": budget.bytes_max, "evicted": budget.evicted}
            for name, budget in (("transactions", self.transactions), ("frames", self.frames))
        }
