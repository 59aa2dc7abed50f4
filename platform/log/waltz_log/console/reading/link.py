"""The console's connection to a cluster: its log servers, followed as a client does, and a channel for each node.

A cluster that does not answer is expected here. Only the call that needs it waits, and raises the error.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

from waltz_log.background_tasks import BackgroundTask, start_task
from waltz_log.client import ClientSettings
from waltz_log.client.owners.owners import Owners
from waltz_log.client.owners.seeds import Seeds
from waltz_log.console.reading.cluster_values import ClusterValues
from waltz_log.coordination.access import AccessReader
from waltz_log.coordination.followed import KnownValues
from waltz_log.core.node_address import announced_name
from waltz_log.core.ports import CallMethod, Channel, Network, Request, Response
from waltz_log.errors import WaltzError
from waltz_log.loggers import get_logger
from waltz_log.security.access import AccessControl
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.methods import CLUSTER

__all__ = ["ClusterLink"]

log = get_logger(__name__)

CHANNELS_MAX: Final = 256
"""Connections to nodes that are kept. Above that all are closed: the addresses have changed many times."""

CALL_S: Final = 5.0
"""For one call to any log server, all its attempts."""

RULES_S: Final = 5.0
"""Between two reads of the rules of access, if the map of the cluster does not change before."""

AGAIN_S: Final = 0.5


class ClusterLink:
    """`principal`: the name to state in reads."""

    def __init__(self, seeds: Seeds, network: Network, principal: str | None = None) -> None:
        self.address = seeds.text
        self.network = network
        self.principal = principal or ""
        self._seeds = seeds
        self._owners: Owners | None = None
        self._connecting = asyncio.Lock()
        self._channels: dict[tuple[str, str | None], Channel] = {}

    async def owners(self) -> Owners:
        """What follows the cluster. Raises `ClusterUnavailable`, and what `Owners.open` does."""
        async with self._connecting:
            if self._owners is None:
                settings = ClientSettings(connect_timeout_s=CALL_S, request_timeout_s=CALL_S, principal=self.principal or None)
                owners = Owners(self._seeds, self.network, settings, random.Random())
                await owners.open()
                self._owners = owners
            return self._owners

    async def call(self, method: CallMethod[Request, Response], request: Request) -> Response:
        """The answer of any log server to a request that may be repeated, which gets the key of the cluster. Raises what the server raises."""
        owners = await self.owners()
        request.cluster_key = owners.parameters.key.bytes  # type: ignore[attr-defined]
        return await owners.call_any(method, request, timeout_s=CALL_S)

    async def values(self) -> ClusterValues:
        """What the coordinator has for a survey. Raises `PermissionDenied` if the console's certificate does not permit it to administer."""
        return ClusterValues(await self.call(CLUSTER, pb.ClusterRequest()))

    def channel(self, address: str) -> Channel:
        key = (address, announced_name(address))
        if key not in self._channels:
            if len(self._channels) >= CHANNELS_MAX:
                old, self._channels = list(self._channels.values()), {}
                for channel in old:
                    start_task(channel.close())  # ends by itself
            self._channels[key] = self.network.connect(address)
        return self._channels[key]

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()
        if self._owners is not None:
            await self._owners.close()
            self._owners = None

    # ---- the rules of access -------------------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def keeping_rules(self, control: AccessControl) -> AsyncIterator[None]:
        """Inside the block the control has the rules and the topics as the log servers enforce them, if it enforces any. It can confirm them: every
        log server enforces a change that was reported as successful, so that any answer has it."""
        if not control.enforced:
            yield
            return
        known, lock = KnownValues(), asyncio.Lock()

        async def read() -> None:
            async with lock:  # so that no earlier answer follows a later one
                await AccessReader(await self.values(), control, topics=True, known=known).read()

        control.confirm = read
        task = BackgroundTask("console rules", lambda: self._keep(read))
        try:
            yield
        finally:
            await task.end()

    async def _keep(self, read: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await read()
                await (await self.owners()).wait_changed(RULES_S)  # the map has the version of the rules
            except WaltzError as error:
                log.warning("rules of access are not followed, retrying", reason=str(error))
                await asyncio.sleep(AGAIN_S)
            except Exception:
                log.exception("rules of access are not followed, retrying")
                await asyncio.sleep(AGAIN_S)
