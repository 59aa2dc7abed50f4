"""A console over an in-memory cluster, served on a free port of the loopback in a thread of its own."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx

from waltz_log.client.owners.seeds import Seeds
from waltz_log.console.asgi import make_application
from waltz_log.console.console import Console, Extension
from waltz_log.console.reading.link import ClusterLink
from waltz_log.console.serving import make_server
from waltz_log.console.settings import ConsoleSettings
from waltz_log.security.access import AccessControl
from waltz_log.security.certificates import Certificates
from waltz_log.testing import SyncInMemoryCluster

__all__ = ["ServedConsole", "serve_console", "wait_for"]


class ServedConsole:
    def __init__(self, url: str, console: Console) -> None:
        self.url = url
        self.console = console

    def browser(self) -> httpx.Client:
        """Sends the header that each browser sends with a form."""
        return httpx.Client(base_url=self.url, timeout=20, headers={"origin": self.url})


@contextmanager
def serve_console(
    cluster: SyncInMemoryCluster,
    *,
    extensions: Sequence[Extension] = (),
    seeds: Seeds | None = None,
    control: AccessControl | None = None,
    **settings: Any,
) -> Iterator[ServedConsole]:
    """In the event loop of the cluster, because the in-memory network is a part of it. `control`: the rules of access, with the setting `tls`."""
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    chosen = ConsoleSettings(cluster="memory:1", listen=f"127.0.0.1:{port}", **{"sample_interval_s": 0.2, **settings})
    inner = cluster._cluster

    link = ClusterLink(seeds or inner.seeds, inner.network, chosen.principal)
    application = make_application(chosen, link, inner.clock, extensions=extensions, control=control)
    server = make_server(application, None if chosen.tls is None else Certificates(chosen.tls))
    server.config.timeout_graceful_shutdown = 1
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    done = threading.Event()

    async def serve() -> None:
        try:
            await server._serve([listening])
        finally:
            done.set()

    asyncio.run_coroutine_threadsafe(serve(), cluster._background.loop)
    until = time.monotonic() + 20
    while not server.started:
        assert time.monotonic() < until, "the console did not start"
        time.sleep(0.01)
    try:
        yield ServedConsole(f"{'http' if chosen.tls is None else 'https'}://127.0.0.1:{port}", application.state.console)
    finally:
        server.should_exit = True
        assert done.wait(20), "the console did not stop"


def wait_for(true: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not true():
        assert time.monotonic() < until
        time.sleep(0.05)
