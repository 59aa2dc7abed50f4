"""Runs the console until a signal: `waltz console`."""

from __future__ import annotations

import asyncio
import socket
import sys

import uvicorn

from waltz_log.console.application import make_application
from waltz_log.console.settings import ConsoleSettings
from waltz_log.coordination.coordinator import ZooKeeperCoordinator
from waltz_log.core.ports import Coordinator
from waltz_log.processes.clock import WallClock
from waltz_log.transport.grpc import GrpcNetwork

__all__ = ["run"]

CONNECTIONS_MAX = 64
"""At once. A browser opens six, and one more for each live tail."""

STOP_TIMEOUT_S = 3
"""Live tails are cut after this time."""

CONNECT_TIMEOUT_S = 5.0


def run(settings: ConsoleSettings) -> None:
    """Prints `ready console url=...` when it serves. Raises `OSError` if it cannot listen."""
    asyncio.run(_serve(settings))


async def _serve(settings: ConsoleSettings) -> None:
    async def connect() -> Coordinator:
        return await ZooKeeperCoordinator.connect(settings.cluster, timeout_s=CONNECT_TIMEOUT_S)

    listening = _listen(*settings.address)
    application = make_application(settings, connect, GrpcNetwork(), WallClock())
    config = uvicorn.Config(
        application,
        access_log=False,
        log_config=None,
        limit_concurrency=CONNECTIONS_MAX,
        timeout_graceful_shutdown=STOP_TIMEOUT_S,
        server_header=False,
        proxy_headers=False,
    )
    server = uvicorn.Server(config)
    with listening:
        host, port = listening.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        while not server.started and not serving.done():
            await asyncio.sleep(0.02)
        if server.started:
            print(f"ready console url=http://{shown}:{port}/ actions={'allowed' if settings.allow_actions else 'refused'}", flush=True)
        await serving
    sys.stdout.flush()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise OSError(f"cannot listen on {host}:{port}: {error.strerror} (choose another --listen; port 0 is a free one)") from None
    return listening
