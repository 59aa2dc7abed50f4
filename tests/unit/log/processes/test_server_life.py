"""A server whose coordinator session ends before it serves joins again; one that finds no cluster ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from waltz_log.coordination.administration import AdministrationAudit
from waltz_log.errors import ClusterUnavailable
from waltz_log.monitoring.monitored import Monitored
from waltz_log.processes import server as process
from waltz_log.processes.access import access_control
from waltz_log.server import ServerSettings

ADDRESS = "127.0.0.1:1/waltz/test"


class Refusing:
    """A coordinator that answers every read with an error."""

    def __init__(self, *, ended: bool) -> None:
        self.ended = ended
        self.closed = False

    async def get(self, _path: str, *, latest: bool = False) -> Any:
        raise ClusterUnavailable(address=ADDRESS, reason="session ended" if self.ended else "no cluster there")

    async def wait_session_lost(self) -> None:
        await asyncio.Event().wait()

    async def close(self) -> None:
        self.closed = True


async def life(coordinator: Refusing, monkeypatch: pytest.MonkeyPatch, *, workers: int = 1) -> str | None:
    async def connect(*_: Any, **__: Any) -> Refusing:
        return coordinator

    monkeypatch.setattr(process, "join", connect)
    settings = ServerSettings(coordinator=ADDRESS, listen="127.0.0.1:0", workers=workers)
    monitored, stop, recorded = Monitored("server"), asyncio.Event(), AdministrationAudit(rules=False)
    if workers == 1:
        return await process._life(settings, monitored, stop, access_control(None), recorded)
    addresses: Any = None
    await process._life_of_workers(settings, monitored, addresses, stop, None, recorded)
    return None


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_session_that_ends_before_the_server_serves_is_no_error(monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    coordinator = Refusing(ended=True)
    assert await life(coordinator, monkeypatch, workers=workers) in ("127.0.0.1:0", None)
    assert coordinator.closed


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_missing_cluster_ends_the_server(monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    coordinator = Refusing(ended=False)
    with pytest.raises(ClusterUnavailable, match="no cluster there"):
        await life(coordinator, monkeypatch, workers=workers)
    assert coordinator.closed
