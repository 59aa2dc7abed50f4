"""What each principal holds at one process: streams, direct connections, bytes. Pure.

Each cost is known before it is paid and counted until it is returned, so what one principal can make a process hold is the sum of its limits. A
principal at a limit is refused, or waits, and others notice nothing. A principal without a cost is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import Final

from waltz_log.errors import QuotaExceeded

__all__ = ["Cost", "Costs"]

RETRY_S: Final = 1.0
"""When a principal at a limit may try again: something of it must end first, at an unknown time."""


class Cost(StrEnum):
    """Named as the settings of their limits."""

    STREAMS = "streams_per_principal"
    DIRECT_CONNECTIONS = "direct_connections_per_principal"
    UNREAD_BYTES = "unread_bytes_per_principal"


class Costs:
    """`limits`: for each principal; a cost without one, or with 0, has no limit and is not counted."""

    def __init__(self, limits: Mapping[Cost, int]) -> None:
        self._limits = {cost: limit for cost, limit in limits.items() if limit}
        self._held: dict[tuple[str, Cost], int] = {}

    def held(self, principal: str, cost: Cost) -> int:
        return self._held.get((principal, cost), 0)

    @property
    def principals(self) -> int:
        """How many hold something."""
        return len({principal for principal, _ in self._held})

    def fits(self, principal: str | None, cost: Cost, amount: int = 1) -> bool:
        """Whether the principal may hold that much more. `principal` None: one that is not counted."""
        limit = self._limits.get(cost)
        return principal is None or limit is None or self.held(principal, cost) + amount <= limit

    def charge(self, principal: str | None, cost: Cost, amount: int = 1) -> None:
        """Counts it whether it fits or not."""
        if principal is not None and amount and cost in self._limits:
            self._held[principal, cost] = self.held(principal, cost) + amount

    def release(self, principal: str | None, cost: Cost, amount: int = 1) -> None:
        """Returns what was charged."""
        if principal is None or not amount or cost not in self._limits:
            return
        left = self.held(principal, cost) - amount
        assert left >= 0, "more was returned than was charged"
        if left:
            self._held[principal, cost] = left
        else:
            del self._held[principal, cost]

    @contextmanager
    def holding(self, principal: str | None, cost: Cost, amount: int = 1) -> Iterator[None]:
        """For the time of the block. Raises `QuotaExceeded`."""
        if not self.fits(principal, cost, amount):
            raise self.exceeded(principal, cost)
        self.charge(principal, cost, amount)
        try:
            yield
        finally:
            self.release(principal, cost, amount)

    @staticmethod
    def exceeded(principal: str | None, cost: Cost) -> QuotaExceeded:
        return QuotaExceeded(partition=-1, quota=str(cost), principal=principal or "", topic="", retry_after_s=RETRY_S)
