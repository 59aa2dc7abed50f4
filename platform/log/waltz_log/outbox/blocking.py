"""The outbox's blocking face: the same names, over the event loop in the background thread that all blocking clients of a process share.

Handlers, and functions given to `follow`, run in that thread, one at a time; they must be short and must not call the outbox.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self, TypeVar

from waltz_log.client.base.background import Background
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
T = TypeVar("T")


class SyncIntentReceipt:
    """The intent is on the local disk. Its outcome is waited for by blocking, or not at all."""

    def __init__(self, receipt: IntentReceipt, background: Background) -> None:
        self.intent_id = receipt.intent_id
        self.partition = receipt.partition
        self._receipt = receipt
        self._background = background

    @property
    def known(self) -> Outcome | None:
        return self._receipt.known

    def outcome(self, timeout_s: float | None = None) -> Outcome:
        """Raises `TimeoutError` where it is not known after `timeout_s`."""

        async def wait() -> Outcome:
            async with asyncio.timeout(timeout_s):
                return await self._receipt.outcome()

        return self._background.call(wait())


class SyncOutbox:
    """`with SyncOutbox(directory, "host:port/root") as outbox:`. May be used by several threads. Handlers are registered before `start`."""

    def __init__(
        self, directory: Path | str, cluster: str, settings: OutboxSettings | None = None, client_settings: ClientSettings | None = None
    ) -> None:
        self._background = Background()
        self._closed = False

        async def make() -> Outbox:
            return Outbox.over(directory, cluster, settings, client_settings)

        try:
            self._outbox = self._background.call(make())
        except BaseException:
            self._background.close()
            raise

    def handler(self, name: str) -> Callable[[H], H]:
        return self._outbox.handler(name)

    def follow(self, partition: int, apply: Apply, after: int = -1) -> None:
        async def follow() -> None:
            self._outbox.follow(partition, apply, after)

        self._background.call(follow())

    def start(self) -> None:
        try:
            self._background.call(self._outbox.start())
        except BaseException:
            self._closed = True
            self._background.close()
            raise

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if not self._background.forked:
            self._background.call(self._outbox.close())
        self._background.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, intents: Intent | Sequence[Intent], timeout_s: float | None = None) -> list[SyncIntentReceipt]:
        """As `Outbox.submit`: returns when all of them are on the local disk."""
        receipts = self._background.call(self._outbox.submit(intents, timeout_s))
        return [SyncIntentReceipt(receipt, self._background) for receipt in receipts]

    def flush(self, timeout_s: float | None = None) -> None:
        """Returns when nothing is owed; raises `TimeoutError` after `timeout_s`."""

        async def flush() -> None:
            async with asyncio.timeout(timeout_s):
                await self._outbox.flush()

        self._background.call(flush())

    def dead_letters(self) -> list[DeadLetter]:
        return self._on_loop(self._outbox.dead_letters)

    def resubmit(self, dead_id: int, intent: Intent | None = None) -> SyncIntentReceipt:
        return SyncIntentReceipt(self._background.call(self._outbox.resubmit(dead_id, intent)), self._background)

    def drop(self, dead_id: int) -> None:
        self._background.call(self._outbox.drop(dead_id))

    def statistics(self) -> OutboxStatistics:
        return self._on_loop(self._outbox.statistics)

    def _on_loop(self, call: Callable[[], T]) -> T:
        async def run() -> T:
            return call()

        return self._background.call(run())
