"""The outbox's blocking face: the same names, over the event loop in the background thread that all blocking clients of a process share.

Handlers, and functions given to `follow`, run in that thread, one at a time; they must be short and must not call the outbox.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self, TypeVar

from waltz_log.client.base.background import Background, blocking
from waltz_log.client.base.settings import ClientSettings
from waltz_log.client.transactions.follow import Apply
from waltz_log.outbox.calls import Handler
from waltz_log.outbox.intent import Intent
from waltz_log.outbox.ledger import DeadLetter, Outcome
from waltz_log.outbox.outbox import Outbox
from waltz_log.outbox.receipt import IntentReceipt
from waltz_log.outbox.settings import OutboxSettings
from waltz_log.outbox.statistics import OutboxStatistics

__all__ = ["SyncIntentReceipt", "SyncOutbox"]

H = TypeVar("H", bound=Handler)


class SyncIntentReceipt:
    """The receipt of an intent, for code that blocks: the intent is on the local disk."""

    def __init__(self, receipt: IntentReceipt, background: Background) -> None:
        self.intent_id = receipt.intent_id
        self.partition = receipt.partition
        self._receipt = receipt
        self.background = background

    @property
    def known(self) -> Outcome | None:
        """As `IntentReceipt.known`."""
        return self._receipt.known

    def outcome(self, timeout_s: float | None = None) -> Outcome:
        """As `IntentReceipt.outcome`; raises `TimeoutError` if the outcome is not known after `timeout_s`."""

        async def wait() -> Outcome:
            async with asyncio.timeout(timeout_s):
                return await self._receipt.outcome()

        return self.background.call(wait())


class SyncOutbox:
    """An outbox for code that blocks: `with SyncOutbox(directory, "host:port") as outbox:`. The methods are those of `Outbox`. All threads of
    a process may use it. Register handlers before `start`."""

    def __init__(
        self, directory: Path | str, cluster: str, settings: OutboxSettings | None = None, client_settings: ClientSettings | None = None
    ) -> None:
        self.background = Background()
        self._closed = False

        try:
            self.asynchronous = self.background.call_soon(lambda: Outbox.over(directory, cluster, settings, client_settings))
        except BaseException:
            self.background.close()
            raise

    def handler(self, name: str) -> Callable[[H], H]:
        """As `Outbox.handler`. The function runs in the client's thread."""
        return self.asynchronous.handler(name)

    def follow(self, partition: int, apply: Apply, after: int = -1) -> None:
        """As `Outbox.follow`. `apply` runs in the client's thread, one at a time with handlers."""
        self.background.call_soon(lambda: self.asynchronous.follow(partition, apply, after))

    def start(self) -> None:
        """As `Outbox.start`."""
        try:
            self.background.call(self.asynchronous.start())
        except BaseException:
            self._closed = True
            self.background.close()
            raise

    def close(self) -> None:
        """As `Outbox.close`."""
        if self._closed:
            return
        self._closed = True
        if not self.background.forked:
            self.background.call(self.asynchronous.close())
        self.background.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, intents: Intent | Sequence[Intent], timeout_s: float | None = None) -> list[SyncIntentReceipt]:
        """As `Outbox.submit`: returns when all of them are on the local disk."""
        receipts = self.background.call(self.asynchronous.submit(intents, timeout_s))
        return [SyncIntentReceipt(receipt, self.background) for receipt in receipts]

    def flush(self, timeout_s: float | None = None) -> None:
        """As `Outbox.flush`; raises `TimeoutError` after `timeout_s`."""

        async def flush() -> None:
            async with asyncio.timeout(timeout_s):
                await self.asynchronous.flush()

        self.background.call(flush())

    def dead_letters(self) -> list[DeadLetter]:
        """As `Outbox.dead_letters`."""
        return self.background.call_soon(self.asynchronous.dead_letters)

    def resubmit(self, dead_id: int, intent: Intent | None = None) -> SyncIntentReceipt:
        """As `Outbox.resubmit`."""
        return SyncIntentReceipt(self.background.call(self.asynchronous.resubmit(dead_id, intent)), self.background)

    drop = blocking(Outbox.drop)

    def statistics(self) -> OutboxStatistics:
        """As `Outbox.statistics`."""
        return self.background.call_soon(self.asynchronous.statistics)
