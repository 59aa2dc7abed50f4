"""`waltz server`: one log server, until it is asked to stop.

A server whose coordinator session ended (it stood still for too long, or was cut off) starts over as a new one at the same address: its
partitions are others' by then.
"""

from __future__ import annotations

import asyncio

import structlog

from waltz_log.cli.clock import WallClock
from waltz_log.cli.serving import either, say_ready, serve
from waltz_log.errors import ClusterUnavailable
from waltz_log.rpc.network import GrpcNetwork
from waltz_log.server import LogServer, ServerSettings
from waltz_log.zookeeper.coordinator import ZooKeeperCoordinator

__all__ = ["run"]

log = structlog.get_logger(__name__)

CONNECT_TIMEOUT_S = 10.0
AGAIN_PAUSE_S = 0.5
"""Before a server that lost its session looks for the coordinator again."""


def run(settings: ServerSettings) -> None:
    async def main(stop: asyncio.Event) -> None:
        listen = await _life(settings, stop)
        while not stop.is_set():
            log.warning("coordinator session ended, starting over", address=listen)
            try:
                listen = await _life(settings.model_copy(update={"listen": listen}), stop)
            except ClusterUnavailable as error:
                log.warning("no coordinator, trying again", reason=str(error))
                await either(stop.wait(), asyncio.sleep(AGAIN_PAUSE_S))

    serve(main)


async def _life(settings: ServerSettings, stop: asyncio.Event) -> str:
    """One server from its session's start to its end; gives the address it served at. Asked to stop, it hands its partitions over first."""
    coordinator = await ZooKeeperCoordinator.connect(settings.cluster, session_timeout_s=settings.session_timeout_s, timeout_s=CONNECT_TIMEOUT_S)
    try:
        server = LogServer(settings, coordinator, GrpcNetwork(), WallClock())
        await server.start()
        address = server.address
        say_ready("server", address=address, cluster=settings.cluster)
        await either(stop.wait(), server.wait_lost())
        if stop.is_set():
            await server.stop()
        else:
            await server.abort()
        return address
    finally:
        await coordinator.close()
