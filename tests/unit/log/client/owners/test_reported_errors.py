"""Which error a call ends with that was tried until its time was over: what a server said, not that the last attempt was cut off."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any  # requests of any method

import pytest

from waltz_log.client import ClientSettings
from waltz_log.client.owners.owners import Owners
from waltz_log.errors import ConnectionLost, Unavailable, WaltzError
from waltz_log.testing.known_servers import KnownServers
from waltz_log.testing.network import MemoryNetwork
from waltz_log.testing.virtual_time import run_in_virtual_time
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.methods import BOUND, CONFIRM

REQUEST_S = 2.0
SETTINGS = ClientSettings(retry_base_s=0.01, retry_cap_s=0.02, request_timeout_s=REQUEST_S)
FULL = Unavailable(reason="the cluster has 3 subscribers")
REFUSED = ConnectionLost(address="server:1", reason="refused")
Script = Callable[[float], WaltzError | None]
"""What a server does with a request that comes at this time: it answers an error at once, or None: it never answers."""


class Channel:
    def __init__(self, script: Script) -> None:
        self._script = script

    async def call(self, method: object, request: object, *, timeout_s: float) -> object:
        error = self._script(asyncio.get_running_loop().time())
        if error is None:
            await asyncio.sleep(timeout_s)
            error = ConnectionLost(address="server:1", reason="deadline exceeded")
        raise error


class Scripted(Owners):
    """Servers that follow a script, the first one in the order of `scripts`."""

    def __init__(self, *scripts: Script) -> None:
        super().__init__(KnownServers(list), MemoryNetwork(), SETTINGS, random.Random(1))
        self._channels = {f"server:{number}": Channel(script) for number, script in enumerate(scripts, 1)}

    def server_addresses(self) -> list[str]:
        return list(self._channels)

    def address(self, partition: int) -> str | None:
        return "server:1"

    def call_channel(self, address: str) -> Any:
        return self._channels[address]


def _any(owners: Owners, timeout_s: float) -> Coroutine[Any, Any, object]:
    return owners.call_any(CONFIRM, pb.ConfirmRequest(), timeout_s=timeout_s)


def _owner(owners: Owners, timeout_s: float) -> Coroutine[Any, Any, object]:
    return owners.ask(0, BOUND, pb.BoundRequest(), timeout_s=timeout_s)


CALLS = pytest.mark.parametrize("call", [_any, _owner])
Call = Callable[[Owners, float], Coroutine[Any, Any, object]]


def _reported(call: Call, timeout_s: float, *scripts: Script) -> WaltzError:
    async def main() -> WaltzError:
        with pytest.raises(WaltzError) as raised:
            await call(Scripted(*scripts), timeout_s)
        return raised.value

    return run_in_virtual_time(main())


@CALLS
def test_an_answer_is_reported_rather_than_the_end_of_the_call(call: Call) -> None:
    assert _reported(call, 1.0, lambda at_s: FULL if at_s < 0.9 else None) is FULL


@CALLS
def test_a_server_that_was_silent_for_the_time_of_a_request_is_reported(call: Call) -> None:
    error = _reported(call, 5.0, lambda at_s: FULL if at_s < 0.9 else None)
    assert isinstance(error, ConnectionLost)
    assert error.reason == "deadline exceeded"


@CALLS
def test_a_server_that_never_answered_is_reported(call: Call) -> None:
    error = _reported(call, 1.0, lambda _: None)
    assert isinstance(error, ConnectionLost)
    assert error.address == "server:1"


@CALLS
def test_a_connection_that_is_refused_after_an_answer_is_reported(call: Call) -> None:
    assert _reported(call, 1.0, lambda at_s: FULL if at_s < 0.5 else REFUSED) is REFUSED


def test_an_answer_of_one_server_is_reported_rather_than_the_silence_of_another_at_the_end() -> None:
    assert _reported(_any, 1.0, lambda _: FULL, lambda _: None) is FULL
