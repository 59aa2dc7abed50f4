"""Dates appends, and no further ahead than at least half of the clocks of a server and the storage nodes permit.

Append times never go back, so a clock that is a year ahead for a moment would date a partition a year ahead for a year: retention by age would keep
everything, and reads from a time would find the wrong place (docs/guides/disaster_recovery.md). So a server asks all storage nodes for their dates,
and where its own clock is ahead of what they agree on, it continues from the agreed date. A clock that is behind stays as it is: what it dates is
dated right again as soon as the clock is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Final

from waltz_log.background_tasks import end_tasks, outcome_of, start_task
from waltz_log.core.ports import Clock, Network
from waltz_log.core.recovery import majority
from waltz_log.core.retention import agreed_now_ms
from waltz_log.loggers import get_logger
from waltz_log.server.base.node_probes import ping
from waltz_log.transport import waltz_pb2 as pb

__all__ = ["AHEAD_MAX_MS", "PAUSE_S", "AgreedClock"]

log = get_logger(__name__)

PAUSE_S: Final = 30.0
ANSWER_S: Final = 2.0
"""For the answer of one storage node. No partition waits for it: its opening needs several answers of the same nodes, and this needs one."""

AGAIN_S: Final = 0.1
"""While no majority has answered: a server that starts before the storage nodes dates its first appends soon after they are there."""

AHEAD_MAX_MS: Final = 60_000
"""Clocks that a time service keeps differ by milliseconds. This is far beyond them, and small enough to wait for."""


class AgreedClock:
    """The port `Clock` for one server process. `own`: the clock of the machine."""

    def __init__(self, own: Clock, network: Network) -> None:
        self._own = own
        self._network = network
        self._agreed: tuple[int, float] | None = None
        """The date, and the time of the event loop at which it was agreed on."""
        self._is_ahead = False

    def now_ms(self) -> int:
        own_ms = self._own.now_ms()
        if self._agreed is None:
            return own_ms
        expected_ms = self._agreed[0] + round(1000 * (asyncio.get_running_loop().time() - self._agreed[1]))
        return expected_ms if own_ms > expected_ms + AHEAD_MAX_MS else own_ms

    async def run(self, cluster_key: bytes, addresses: Callable[[], Collection[str]]) -> None:
        """Asks the storage nodes at the addresses again and again, until cancelled."""
        while True:
            asking = [start_task(ping(self._network, address, cluster_key, 0, ANSWER_S)) for address in addresses()]
            try:
                await self._ask(asking)
            finally:
                await end_tasks(asking)
            await asyncio.sleep(AGAIN_S if self._agreed is None else PAUSE_S)

    async def _ask(self, asking: Collection[asyncio.Task[pb.PingResponse | None]]) -> None:
        """A majority that answers is enough: partitions do not wait for a node that hangs."""
        waiting, dates = set(asking), list[int]()
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            dates += [answer.now_ms for each in done if (answer := outcome_of(each)) is not None and answer.now_ms]
            if len(dates) >= majority(len(asking)):
                self._agree([self._own.now_ms(), *dates])
                return

    def _agree(self, dates: list[int]) -> None:
        self._agreed = (agreed_now_ms(dates), asyncio.get_running_loop().time())
        ahead_ms = dates[0] - self._agreed[0]
        if (ahead_ms > AHEAD_MAX_MS) != self._is_ahead:
            self._is_ahead = not self._is_ahead
            if self._is_ahead:
                log.error("clock is ahead of the storage nodes", ahead_s=ahead_ms // 1000, advice="correct it; until then appends have their time")
            else:
                log.info("clock agrees with the storage nodes again", ahead_s=ahead_ms // 1000)
