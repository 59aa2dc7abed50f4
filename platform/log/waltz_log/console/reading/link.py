"""The console's connection to a cluster: one coordinator session, opened again when it ends, and a channel for each node.

A cluster that does not answer is expected here. Only the call that needs it waits, and raises the error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from waltz_log.core.node_address import announced_name
from waltz_log.core.ports import Channel, Coordinator, Network
from waltz_log.errors import WaltzError

__all__ = ["ClusterLink", "Connect"]

Connect = Callable[[], Awaitable[Coordinator]]

CHANNELS_MAX = 256
"""Connections to nodes that are kept. Above that all are closed: the addresses have changed many times."""


class ClusterLink:
    """`connect` opens a coordinator session; `address`: connection string, for messages; `principal`: the name to state in reads."""

    def __init__(self, connect: Connect, network: Network, address: str, principal: str | None = None) -> None:
        self.address = address
        self.network = network
        self.principal = principal or ""
        self._connect = connect
        self._coordinator: Coordinator | None = None
        self._connecting = asyncio.Lock()
        self._watching: asyncio.Task[None] | None = None
        self._channels: dict[tuple[str, str | None], Channel] = {}

    async def coordinator(self) -> Coordinator:
        """The current session, or a new one. Raises `ClusterUnavailable`."""
        async with self._connecting:
            if self._coordinator is None:
                self._coordinator = await self._connect()
                self._watching = asyncio.create_task(self._watch(self._coordinator))
            return self._coordinator

    async def _watch(self, coordinator: Coordinator) -> None:
        await coordinator.wait_session_lost()
        if self._coordinator is coordinator:
            self._coordinator = None
        with suppress(WaltzError):
            await coordinator.close()

    def channel(self, address: str) -> Channel:
        key = (address, announced_name(address))
        if key not in self._channels:
            if len(self._channels) >= CHANNELS_MAX:
                old, self._channels = list(self._channels.values()), {}
                for channel in old:
                    asyncio.ensure_future(channel.close())  # noqa: RUF006  # ends by itself
            self._channels[key] = self.network.connect(address)
        return self._channels[key]

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()
        if self._coordinator is not None:
            await self._coordinator.close()
            self._coordinator = None
