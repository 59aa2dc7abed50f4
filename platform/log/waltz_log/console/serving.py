"""Runs the console until a signal: `waltz console`."""

from __future__ import annotations

import asyncio
import socket
import sys
from functools import partial
from operator import itemgetter

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from waltz_log.background_tasks import start_task
from waltz_log.client.owners.seeds import NamedServers
from waltz_log.console.asgi import make_application
from waltz_log.console.reading.link import ClusterLink
from waltz_log.console.security import PEER
from waltz_log.console.settings import ConsoleSettings
from waltz_log.processes.clock import WallClock
from waltz_log.security.access import AccessControl
from waltz_log.security.audit_log import open_audit
from waltz_log.security.certificates import Certificates
from waltz_log.security.serving_certificate import expect_serving_certificate
from waltz_log.transport.accepting import TlsAcceptor
from waltz_log.transport.grpc import GrpcNetwork

__all__ = ["make_server", "run"]

CONNECTIONS_MAX = 64
"""At once. A browser opens six, and one more for each live tail."""

HANDSHAKE_S = 5.0
"""For the handshake of TLS."""

REQUEST_TIMEOUT_S = 10.0
"""From the beginning of a connection, or the end of an answer, until the next request is complete."""

STOP_TIMEOUT_S = 3
"""Live tails are cut after this time."""


def run(settings: ConsoleSettings) -> None:
    """Prints `ready console url=...` when it serves. Raises `InvalidSetting` for certificates that cannot be used, and `OSError` if it cannot
    listen."""
    asyncio.run(_serve(settings))


def make_server(application: ASGIApp, certificates: Certificates | None) -> uvicorn.Server:
    """With certificates it serves HTTPS, to browsers that present one of a trusted authority, and says to the application whose it is."""
    config = uvicorn.Config(
        application,
        http=_Connection if certificates is None else _identifying(certificates),
        ws="none",
        access_log=False,
        log_config=None,
        limit_concurrency=CONNECTIONS_MAX + 1,  # answers whose client has gone count too
        timeout_graceful_shutdown=STOP_TIMEOUT_S,
        server_header=False,
        proxy_headers=False,
    )
    return uvicorn.Server(config) if certificates is None else _TlsServer(config, certificates)


class _Connection(H11Protocol):
    """Has a deadline for each request. Of too many connections, the oldest that has sent no request gives up its place."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()
        if len(self.connections) > CONNECTIONS_MAX:
            waiting = [(each._deadline.when(), each) for each in self.connections if isinstance(each, _Connection) and each._deadline is not None]
            min(waiting, key=itemgetter(0))[1].give_up()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unwatch()

    def _watch(self) -> None:
        """Starts the deadline if the client has to send something, and ends it if the request is complete."""
        if self.transport.is_closing() or self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._unwatch()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(REQUEST_TIMEOUT_S, self.give_up)

    def _unwatch(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def give_up(self) -> None:
        self._unwatch()
        self.connections.discard(self)
        self.transport.abort()


def _identifying(certificates: Certificates) -> type[_Connection]:
    class Identifying(_Connection):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.app_state = {**self.app_state, PEER: certificates.identify_connection(transport.get_extra_info("ssl_object"))}

    return Identifying


class _TlsServer(uvicorn.Server):
    """Accepts connections itself: uvicorn counts and times them only after their handshakes. It serves at one bound socket."""

    def __init__(self, config: uvicorn.Config, certificates: Certificates) -> None:
        super().__init__(config)
        self._certificates = certificates
        self._acceptor: TlsAcceptor | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        assert sockets is not None
        (listening,) = sockets
        await super().startup(sockets=[])
        protocol = self.config.http_protocol_class
        assert isinstance(protocol, type)
        assert issubclass(protocol, _Connection)
        make = partial(protocol, self.config, self.server_state, self.lifespan.state)
        self._acceptor = TlsAcceptor(listening, make, self._certificates.server_context(), HANDSHAKE_S)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._acceptor is not None:
            await self._acceptor.close()
        await super().shutdown(sockets)


async def _serve(settings: ConsoleSettings) -> None:
    certificates = None if settings.tls is None else Certificates(settings.tls)
    if certificates is not None:
        expect_serving_certificate(certificates, "the console")
    open_audit(settings.audit)
    control = AccessControl(enforced=certificates is not None)
    listening = _listen(*settings.address)
    link = ClusterLink(NamedServers(settings.cluster), GrpcNetwork(tls=certificates), settings.principal)
    application = make_application(settings, link, WallClock(), control=control)
    server = make_server(application, certificates)
    with listening:
        async with link.keeping_rules(control):
            serving = start_task(server.serve(sockets=[listening]))
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
