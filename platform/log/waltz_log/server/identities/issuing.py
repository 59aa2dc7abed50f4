"""Gives client ids from blocks that this server has reserved, without the coordinator as long as they last.

A block is reserved in three steps: ask the storage nodes for the end of the newest block that they know, reserve the next block in the coordinator
above it by compare-and-set, and keep its end on the storage nodes. Steps one and three need a majority of the nodes that hold replicas. So a block
that was used is known to a majority, and a counter that was set back, with a restored coordinator or by hand, is noticed before an id is given
twice: nothing is issued then until an operator repairs it (`waltz cluster repair`).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final

from waltz_log.coordination.client_ids import Refused, keep_client_ids, reserve_client_ids
from waltz_log.core.client_ids import IdBlocks
from waltz_log.core.ports import Coordinator, Network
from waltz_log.core.quotas import TokenBucket
from waltz_log.core.status.server_statistics import ClientIdStatistics
from waltz_log.errors import QuotaExceeded, Unavailable, WaltzError
from waltz_log.loggers import get_logger
from waltz_log.server.base.pulse import Pulse

__all__ = ["ClientIdIssuer"]

log = get_logger(__name__)

RETRY_S: Final = 0.5
REFUSED_RETRY_S: Final = 2.0
"""Between two tries to reserve."""

WAIT_S: Final = 2.0
"""How long a client waits for an id when none is left. It asks another server then."""

PER_S: Final = 10.0
BURST: Final = 1_000
"""What one principal gets at one process. With 31 bits of ids, a principal that asks without pause needs years to use them up."""

PRINCIPALS_MAX: Final = 10_000
"""Principals whose rate is remembered. The one that asked longest ago is forgotten first."""


class ClientIdIssuer:
    """The client id issuer of one server process. Call `run`, and `issue` for each client."""

    def __init__(self, coordinator: Coordinator, network: Network, cluster_key: bytes) -> None:
        self._coordinator = coordinator
        self._network = network
        self._cluster_key = cluster_key
        self._blocks = IdBlocks(_now_s())
        self._changed = Pulse()
        self._rates: OrderedDict[str, TokenBucket] = OrderedDict()
        self._refused: str | None = None
        self._issued = 0

    def statistics(self) -> ClientIdStatistics:
        return ClientIdStatistics(left=self._blocks.left, issued=self._issued, refused=self._refused)

    async def issue(self, principal: str | None) -> int:
        """An id that no client had before. `principal`: whose rate counts; None: no one's. Raises `QuotaExceeded`, `Unavailable`."""
        if principal is not None:
            self._charge(principal)
        if not self._blocks.left:
            try:
                async with asyncio.timeout(WAIT_S):
                    await self._changed.wait_for(lambda: self._blocks.left > 0)
            except TimeoutError:
                raise Unavailable(reason=f"the server has no client ids to issue yet: {self._refused or 'none are reserved yet'}") from None
        found = self._blocks.give()
        if found is None:
            raise Unavailable(reason="the server has no client ids left and reserves more: try again")
        self._issued += 1
        self._changed.notify()
        return found

    def _charge(self, principal: str) -> None:
        bucket = self._rates.setdefault(principal, TokenBucket(PER_S, BURST, _now_s()))
        self._rates.move_to_end(principal)
        while len(self._rates) > PRINCIPALS_MAX:
            self._rates.popitem(last=False)
        wait_s = bucket.wait_s(_now_s())
        if wait_s:
            raise QuotaExceeded(partition=-1, quota="client_ids_per_s", principal=principal, topic="", retry_after_s=round(wait_s, 3))
        bucket.charge(1, _now_s())

    # ---- reserving -----------------------------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Reserves ahead, until cancelled."""
        while True:
            await self._changed.wait_for(lambda: self._blocks.wanted(_now_s()) > 0)
            try:
                await self._reserve(self._blocks.wanted(_now_s()))
            except Refused as error:
                self._refuse(error.reason)
                await asyncio.sleep(REFUSED_RETRY_S)
            except WaltzError as error:
                self._refused = str(error)
                await asyncio.sleep(RETRY_S)
            else:
                self._refused = None

    async def _reserve(self, count: int) -> None:
        kept = await self._keep(0)
        first, last = await reserve_client_ids(self._coordinator, count, kept)
        await self._keep(last)
        if not self._blocks.add(first, last, _now_s()):
            raise Refused(f"the counter of client ids was set back: first={first} reserved={self._blocks.last}")
        self._changed.notify()

    def _refuse(self, reason: str) -> None:
        """Gives nothing more: also what is left may have been given by others since the counter was set back."""
        self._blocks.discard()
        if reason != self._refused:
            log.error("no more client ids", reason=reason, advice="run `waltz cluster repair`")
        self._refused = reason

    async def _keep(self, last: int) -> int:
        """Keeps the end of a block on a majority of the storage nodes; returns the highest that they had. Raises `Unavailable`."""
        return await keep_client_ids(self._coordinator, self._network, self._cluster_key, last)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
