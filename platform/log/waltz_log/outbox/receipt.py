"""What `submit` gives back for each intent: it is on the local disk, and its outcome can be awaited."""

from __future__ import annotations

import asyncio

from waltz_log.outbox.ledger import Outcome, Ticket

__all__ = ["IntentReceipt"]


class IntentReceipt:
    """The intent is on the local disk. It will be in the log once, or among the dead letters."""

    __slots__ = ("_ticket", "intent_id", "partition")

    def __init__(self, intent_id: int, partition: int, ticket: Ticket) -> None:
        self.intent_id = intent_id
        self.partition = partition
        self._ticket = ticket

    def __repr__(self) -> str:
        return f"IntentReceipt(intent_id={self.intent_id}, partition={self.partition})"

    @property
    def known(self) -> Outcome | None:
        """The outcome, where it is known already."""
        return self._ticket.outcome

    async def outcome(self) -> Outcome:
        """Waits for it, as long as the log is away. It need not be called. Raises `InvalidRequest` where the outbox is closed before it is known, and
        `OutboxTaken` where another copy of the directory has taken over; the intent stays on disk."""
        ticket = self._ticket
        if ticket.failed is not None:
            raise ticket.failed
        if ticket.outcome is None:
            if ticket.waiter is None:
                ticket.waiter = asyncio.get_running_loop().create_future()
            return await asyncio.shield(ticket.waiter)
        return ticket.outcome
