"""What `submit` returns for each intent: it is on the local disk, and its outcome can be awaited."""

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
        """The outcome, or None while it is not known."""
        return self._ticket.outcome

    async def outcome(self) -> Outcome:
        """Waits for the outcome, also while the log is unavailable. Calling it is optional. Raises `InvalidRequest` if the outbox is closed first,
        and `OutboxFenced` if another copy of the directory forwards now; the intent stays on disk."""
        ticket = self._ticket
        if ticket.failed is not None:
            raise ticket.failed
        if ticket.outcome is None:
            if ticket.waiter is None:
                ticket.waiter = asyncio.get_running_loop().create_future()
            return await asyncio.shield(ticket.waiter)
        return ticket.outcome
