"""Bugs to plant where transactions are acknowledged before they are on disk (as in `planted.py`)."""

from __future__ import annotations

from typing import Any

from verification.mutants.planting import bug, change
from waltz_log.server.replication.store_session import StoreSession
from waltz_log.storage.replica.write_rounds import WriteRounds

__all__: list[str] = []


@bug
def received_at_one_replica() -> None:
    """What the first replica has received counts as received by a majority."""

    def receive(self: StoreSession, name: str, transaction_id: int) -> None:
        original(self, name, transaction_id)
        if transaction_id > self.received:
            self.received = min(transaction_id, self.window.last_transaction_id)
            self.advanced.notify()

    original: Any = change(StoreSession, "receive", receive)


@bug
def unsynced_claimed_to_be_on_disk() -> None:
    """A replica counts what is only written: in acknowledgments, in the vote and in the mark that it is clean at."""

    async def claim(self: WriteRounds) -> None:
        self._unsynced_bytes = 0
        self._log.tail = self._log.tail._replace(last_id=self._log.written_id)
        for appender in self.appenders:
            appender.synced(self._log.written_id)

    change(WriteRounds, "sync", claim)


@bug
def not_synced_at_the_period() -> None:
    """What was received is synced only when a caller waits for it."""
    change(WriteRounds, "_flush_after", lambda self, period_s: None)
