"""An application that appends at a steady rate and remembers each receipt. Run as `python -m verification.hostile.honest`, by `run`.

It reads one line of JSON from stdin (`Honest`), ends when it has appended its share, and writes what it got to the file of its plan.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter

from verification.hostile.target import SUBSCRIBER
from waltz_log.client import ClientSettings, NotAppended, OutcomeUnknown, Receipt, WaltzClient
from waltz_log.client.feed.subscribers import Subscribers
from waltz_log.security.settings import TlsSettings

__all__ = ["FOREIGN", "PARTITIONS", "Honest", "Outcomes", "body"]

PARTITIONS: Final = (0, 1)
"""Of the log; the hostile client may append to them too."""

FOREIGN: Final = (3,)
"""Log partitions that no rule permits to the hostile client. They have records: an empty one could become a topic of any manager."""

REGISTERED: Final = 2
"""The log partition of its subscriber."""

PER_TICK_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class Honest:
    cluster: str
    tls: dict[str, str]
    appends: int
    per_s: float
    outcomes: str


@dataclass(frozen=True, slots=True)
class Outcomes:
    """`ids`: the transaction id of each append, by its number; -1: not committed. `began_s`: when each was appended, by the monotonic clock of the
    machine, which its processes share."""

    ids: list[int]
    began_s: list[float]
    latencies_s: list[float]
    failed: list[str]
    client_id: int


def body(number: int) -> bytes:
    """What the append of this number contains."""
    return b"honest %d " % number + b"." * 100


class _Appending:
    def __init__(self, plan: Honest, client: WaltzClient) -> None:
        self._plan = plan
        self._client = client
        self._ids = array("q", [-1]) * plan.appends
        self._began_s = array("d", [0.0]) * plan.appends
        self._latencies_s = array("d", [0.0]) * plan.appends
        self._failed: list[str] = []
        self._open = 0
        self._settled = asyncio.Event()

    async def run(self) -> Outcomes:
        began, plan = time.monotonic(), self._plan
        number = 0
        while number < plan.appends:
            due = min(plan.appends, int((time.monotonic() - began) * plan.per_s) + 1)
            while number < due:
                await self._append(number)
                number += 1
            await asyncio.sleep(PER_TICK_S)
        while self._open:
            self._settled.clear()
            await self._settled.wait()
        return Outcomes(list(self._ids), list(self._began_s), list(self._latencies_s), self._failed, self._client.client_id)

    async def _append(self, number: int) -> None:
        began = self._began_s[number] = time.monotonic()
        try:
            future = await self._client.append_nowait(PARTITIONS[number % len(PARTITIONS)], body(number))
        except NotAppended as error:  # the client was fenced, for example
            self._failed.append(f"{number}: {error}")
            return
        self._open += 1

        def settled(found: asyncio.Future[Receipt]) -> None:
            self._latencies_s[number] = time.monotonic() - began
            error = found.exception()
            if error is None:
                self._ids[number] = found.result().transaction_id
            elif isinstance(error, NotAppended | OutcomeUnknown):
                self._failed.append(f"{number}: {error}")
            else:
                self._failed.append(f"{number}: unexpected: {error!r}")
            self._open -= 1
            self._settled.set()

        future.add_done_callback(settled)


async def _main() -> None:
    plan = TypeAdapter(Honest).validate_json(sys.stdin.readline())
    settings = ClientSettings(tls=TlsSettings.model_validate(plan.tls), append_timeout_s=60.0)
    async with WaltzClient.open(plan.cluster, settings) as client:
        for partition in (REGISTERED, *FOREIGN):  # a client gets its id with its first append
            await client.append(partition, b"first")
        async with await Subscribers.connect(plan.cluster, tls=settings.tls) as subscribers:
            await subscribers.register(SUBSCRIBER, {REGISTERED: -1})
        print(json.dumps({"client_id": client.client_id}), flush=True)
        outcomes = await _Appending(plan, client).run()
    await asyncio.to_thread(Path(plan.outcomes).write_bytes, TypeAdapter(Outcomes).dump_json(outcomes))


if __name__ == "__main__":
    asyncio.run(_main())
