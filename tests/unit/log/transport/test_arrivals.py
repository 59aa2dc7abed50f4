"""Requests that arrive over gRPC: few of one principal at a time, and none for a while after one that was too large."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

import pytest

from waltz_log.core.ports import AnyMethod
from waltz_log.errors import ProtocolViolation
from waltz_log.security.identity import Identity, Role
from waltz_log.testing.virtual_time import run_in_virtual_time
from waltz_log.transport import methods, served_calls
from waltz_log.transport.request_limits import request_bytes_max
from waltz_log.transport.served_calls import ARRIVALS_MAX, OPENING_S, OPENINGS_MAX, TOO_LARGE_S, Arrivals

METHOD = methods.RESOLVE
ADA, BOB = (Identity(f"spiffe://waltz/application/{name}", frozenset({Role.APPLICATION})) for name in ("ada", "bob"))


class Context:
    """A call whose request arrives after a time."""

    def __init__(self, size: int, after_s: float = 0.0) -> None:
        self._size, self._after_s = size, after_s

    def peer(self) -> str:
        return "test"

    async def read(self) -> bytes:
        await asyncio.sleep(self._after_s)
        return bytes(self._size)


PEER: ContextVar[Identity] = ContextVar("peer")


@pytest.fixture(autouse=True)
def _callers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_calls, "caller", PEER.get)


async def _received_s(arrivals: Arrivals, peer: Identity, size: int = 10, after_s: float = 0.0, method: AnyMethod = METHOD) -> float:
    """When it was received, in seconds."""
    PEER.set(peer)
    await arrivals.receive(method, Context(size, after_s))
    return asyncio.get_running_loop().time()


def test_after_a_request_that_is_too_large_its_principal_waits_and_others_do_not() -> None:
    async def scenario() -> None:
        arrivals = Arrivals()
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(ProtocolViolation, match="too large"):
            await _received_s(arrivals, ADA, request_bytes_max(METHOD) + 1)
        assert await _received_s(arrivals, BOB) == began_s
        assert await _received_s(arrivals, ADA) == pytest.approx(began_s + TOO_LARGE_S)
        later_s = asyncio.get_running_loop().time()
        assert await _received_s(arrivals, ADA, request_bytes_max(METHOD)) == later_s

    run_in_virtual_time(scenario())


def test_a_pause_is_not_ended_by_a_caller_that_gives_up() -> None:
    async def scenario() -> None:
        arrivals = Arrivals()
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(ProtocolViolation):
            await _received_s(arrivals, ADA, request_bytes_max(METHOD) + 1)
        for _ in range(3 * ARRIVALS_MAX):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(_received_s(arrivals, ADA), 0.1)
        assert await _received_s(arrivals, ADA) == pytest.approx(began_s + TOO_LARGE_S)
        assert not arrivals._places

    run_in_virtual_time(scenario())


def test_few_requests_of_a_principal_arrive_at_a_time() -> None:
    async def scenario() -> None:
        arrivals = Arrivals()
        found = await asyncio.gather(*(_received_s(arrivals, ADA, after_s=1.0) for _ in range(ARRIVALS_MAX + 1)))
        assert sorted(found) == pytest.approx([found[0]] * ARRIVALS_MAX + [found[0] + 1.0])

    run_in_virtual_time(scenario())


def test_first_messages_of_streams_have_places_of_their_own() -> None:
    async def scenario() -> None:
        arrivals = Arrivals()
        openings = [_received_s(arrivals, ADA, after_s=1.0, method=methods.MOUNT) for _ in range(OPENINGS_MAX + 1)]
        *found, request_s = await asyncio.gather(*openings, _received_s(arrivals, ADA))
        assert sorted(found) == pytest.approx([request_s + 1.0] * OPENINGS_MAX + [request_s + 2.0])

    run_in_virtual_time(scenario())


def test_a_first_message_that_is_too_large_pauses_its_principal_too() -> None:
    async def scenario() -> None:
        arrivals = Arrivals()
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(ProtocolViolation, match="too large"):
            await _received_s(arrivals, ADA, request_bytes_max(methods.MOUNT) + 1, method=methods.MOUNT)
        found = await asyncio.gather(_received_s(arrivals, ADA), _received_s(arrivals, ADA, method=methods.MOUNT))
        assert found == pytest.approx([began_s + TOO_LARGE_S] * 2)

    run_in_virtual_time(scenario())


def test_a_first_message_of_a_node_has_no_place_and_does_not_arrive_forever() -> None:
    async def scenario() -> None:
        arrivals, node = Arrivals(), Identity("spiffe://waltz/node/a", frozenset({Role.NODE}))
        began_s = asyncio.get_running_loop().time()
        found = await asyncio.gather(*(_received_s(arrivals, node, after_s=1.0, method=methods.REPLICATE) for _ in range(4 * OPENINGS_MAX)))
        assert found == pytest.approx([began_s + 1.0] * len(found))
        with pytest.raises(ProtocolViolation, match="did not arrive"):
            await _received_s(arrivals, node, after_s=2 * OPENING_S, method=methods.REPLICATE)

    run_in_virtual_time(scenario())
