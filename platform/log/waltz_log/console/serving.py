"""Runs the console until a signal: `waltz console`."""

from __future__ import annotations

import asyncio
import socket
import sys

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from waltz_log.console.application import make_application
from waltz_log.console.security import PEER
from waltz_log.console.settings import ConsoleSettings
from waltz_log.coordination.coordinator import ZooKeeperCoordinator
from waltz_log.core.ports import Coordinator
from waltz_log.processes.access import following
from waltz_log.processes.clock import WallClock
from waltz_log.security.access import AccessControl
from waltz_log.security.audit import open_audit
from waltz_log.security.certificates import Certificates
from waltz_log.transport.grpc import GrpcNetwork

__all__ = ["make_server", "run"]

CONNECTIONS_MAX = 64
"""At once. A browser opens six, and one more for each live tail."""

STOP_TIMEOUT_S = 3
"""Live tails are cut after this time."""

CONNECT_TIMEOUT_S = 5.0


def run(settings: ConsoleSettings) -> None:
    """Prints `ready console url=...` when it serves. Raises `InvalidSetting` for certificates that cannot be used, and `OSError` if it cannot
    listen."""
    asyncio.run(_serve(settings))


def make_server(application: ASGIApp, certificates: Certificates | None) -> uvicorn.Server:
    """With certificates it serves HTTPS, to browsers that present one of a trusted authority, and says to the application whose it is."""
    config = uvicorn.Config(
        application,
        http=H11Protocol if certificates is None else _identifying(certificates),
        access_log=False,
        log_config=None,
        limit_concurrency=CONNECTIONS_MAX,
        timeout_graceful_shutdown=STOP_TIMEOUT_S,
        server_header=False,
        proxy_headers=False,
    )
    config.load()
    if certificates is not None:
        config.ssl = certificates.server_context()
    return uvicorn.Server(config)


def _identifying(certificates: Certificates) -> type[asyncio.Protocol]:
    class Identifying(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.app_state = {**self.app_state, PEER: certificates.identify_connection(transport.get_extra_info("ssl_object"))}

    return Identifying


async def _serve(settings: ConsoleSettings) -> None:
    async def connect() -> Coordinator:
        return await ZooKeeperCoordinator.connect(settings.cluster, timeout_s=CONNECT_TIMEOUT_S, tls=settings.tls)

    certificates = None if settings.tls is None else Certificates(settings.tls)
    open_audit(settings.audit)
    control = AccessControl(enforced=certificates is not None)
    listening = _listen(*settings.address)
    application = make_application(settings, connect, GrpcNetwork(tls=certificates), WallClock(), control=control)
    server = make_server(application, certificates)
    with listening:
        async with following(settings.cluster, control, settings.tls):
            serving = asyncio.create_task(server.serve(sockets=[listening]))
            while not server.started and not serving.done():
                await asyncio.sleep(0.02)
            if server.started:
                print(_ready(settings, *listening.getsockname()[:2]), flush=True)
            await serving
    sys.stdout.flush()


def _ready(settings: ConsoleSettings, host: str, port: int) -> str:
    shown = f"[{host}]" if ":" in host else host
    scheme, access = ("http", "everyone on this machine") if settings.tls is None else ("https", "certificates")
    return f"ready console url={scheme}://{shown}:{port}/ actions={'allowed' if settings.allow_actions else 'refused'} access={access}"


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
