"""The checks for silent peers end with the connection, on each event loop, however it ends: they touch no closed transport."""

from __future__ import annotations

import asyncio
import gc
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
import uvloop

from waltz_log.security.authority import DevelopmentAuthority
from waltz_log.security.certificates import Certificates
from waltz_log.security.identity import Role
from waltz_log.transport.direct import codec
from waltz_log.transport.direct.codec import MESSAGE, Wire

CHECKS = 6
CHECK_S = 0.02
PATIENCE_S = 10

Contexts = tuple[ssl.SSLContext | None, ssl.SSLContext | None]
"""Of the serving and of the calling end."""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(DevelopmentAuthority(Path(tmp_path_factory.mktemp("authority"))).issue(Role.NODE, "a"))


@pytest.fixture(params=["plain", "TLS"])
def contexts(request: pytest.FixtureRequest, certificates: Certificates) -> Contexts:
    return (None, None) if request.param == "plain" else (certificates.server_context(), certificates.client_context())


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[Coroutine[Any, Any, None]], None]:
    """Runs on a loop on which no callback may fail."""
    for name in ("SILENCE_S", "LINGER_S"):
        monkeypatch.setattr(codec, name, CHECK_S)

    def on_loop(test: Coroutine[Any, Any, None]) -> None:
        failed: list[str] = []
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.get_loop().set_exception_handler(lambda _, context: failed.append(f"{context['message']}: {context.get('exception')!r}"))
            runner.run(test)
        assert failed == []

    return on_loop


class _Counting(Wire):
    """Counts the checks. `made` receives the connection when it is made."""

    def __init__(self, greeted: Callable[[Wire, str], None] | None = None, made: Callable[[_Counting], object] = lambda _: None) -> None:
        super().__init__(greeted)
        self.checks = 0
        self._made = made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._made(self)

    def _check_silence(self) -> None:
        self.checks += 1
        super()._check_silence()


@asynccontextmanager
async def _serving(context: ssl.SSLContext | None) -> AsyncIterator[tuple[list[_Counting], int]]:
    accepted: list[_Counting] = []
    accept = partial(_Counting, lambda _wire, _name: None, accepted.append)
    server = await asyncio.get_running_loop().create_server(accept, "127.0.0.1", 0, ssl=context)
    try:
        yield accepted, server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for each in accepted:
            each.abort()
    for each in accepted:
        await _lost(each)


async def _lost(wire: Wire) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while wire.lost is None:
            await asyncio.sleep(CHECK_S)


async def _no_further_checks(*wires: _Counting) -> None:
    before = [each.checks for each in wires]
    await asyncio.sleep(CHECKS * CHECK_S)
    assert [each.checks for each in wires] == before


async def _cancelled_when_connected(contexts: Contexts) -> None:
    wires: list[_Counting] = []

    def cancel(wire: _Counting) -> None:
        wires.append(wire)
        connecting.cancel()

    async with _serving(contexts[0]) as (_, port):
        opening = asyncio.get_running_loop().create_connection(partial(_Counting, made=cancel), "127.0.0.1", port, ssl=contexts[1])
        connecting = asyncio.ensure_future(opening)
        with pytest.raises(asyncio.CancelledError):
            await connecting
        await asyncio.sleep(CHECKS * CHECK_S)
        (wire,) = wires
        assert wire.checks == 0
        left = ref(wires.pop())
        del wire
        await asyncio.sleep(CHECKS * CHECK_S)
        gc.collect()
        assert left() is None, "a timer still holds the connection"


def test_a_connection_whose_opening_was_canceled_when_it_was_made_is_not_checked(
    run: Callable[[Coroutine[Any, Any, None]], None], contexts: Contexts
) -> None:
    """As a time limit of a dial does that ends in this very step of the loop."""
    run(_cancelled_when_connected(contexts))


def _abort(wire: Wire, _peer: Wire) -> None:
    wire._transport.abort()


def _close(wire: Wire, _peer: Wire) -> None:
    wire._transport.close()


def _close_with_unsent_bytes(wire: Wire, peer: Wire) -> None:
    peer._pause_reading()
    for _ in range(40):
        wire._write(MESSAGE, bytes(100_000))
    wire._transport.close()


def _close_without_reading(wire: Wire, _peer: Wire) -> None:
    wire._pause_reading()
    wire._transport.close()


def _abort_the_peer(_wire: Wire, peer: Wire) -> None:
    peer._transport.abort()


def _end_by_the_peer(_wire: Wire, peer: Wire) -> None:
    peer.end(b"")


def _end_by_the_peer_without_reading(wire: Wire, peer: Wire) -> None:
    wire._pause_reading()
    peer.end(b"")


def _pause(wire: Wire, peer: Wire) -> None:
    wire._pause_reading()
    peer._transport.pause_reading()


async def _ended(contexts: Contexts, end: Callable[[Wire, Wire], None]) -> None:
    async with _serving(contexts[0]) as (accepted, port):
        _, wire = await asyncio.get_running_loop().create_connection(_Counting, "127.0.0.1", port, ssl=contexts[1])
        wire.greet("a procedure")
        async with asyncio.timeout(PATIENCE_S):
            while not accepted:
                await asyncio.sleep(0)
        await asyncio.sleep(1.5 * CHECK_S)
        assert wire.checks, "the checks have begun"
        end(wire, accepted[0])
        wire._cancel_timer()
        wire._check_silence()  # as its timer does in this step of the loop, in which the transport closes
        await asyncio.sleep(CHECKS * CHECK_S)
        for each in (wire, accepted[0]):
            each.abort()
            await _lost(each)
        await _no_further_checks(wire, accepted[0])


@pytest.mark.parametrize(
    "end",
    [
        _abort,
        _close,
        _close_with_unsent_bytes,
        _close_without_reading,
        _abort_the_peer,
        _end_by_the_peer,
        _end_by_the_peer_without_reading,
        _pause,
    ],
)
def test_a_check_of_a_closing_connection_fails_on_no_event_loop(
    run: Callable[[Coroutine[Any, Any, None]], None], contexts: Contexts, end: Callable[[Wire, Wire], None]
) -> None:
    run(_ended(contexts, end))


async def _lost_before_its_greeting(contexts: Contexts) -> None:
    async with _serving(contexts[0]) as (_, port):
        _, wire = await asyncio.get_running_loop().create_connection(_Counting, "127.0.0.1", port, ssl=contexts[1])
        wire.abort()
        await _lost(wire)
        wire.greet("a procedure")
        await _no_further_checks(wire)


def test_a_connection_that_is_lost_before_its_greeting_is_not_checked(run: Callable[[Coroutine[Any, Any, None]], None], contexts: Contexts) -> None:
    run(_lost_before_its_greeting(contexts))
