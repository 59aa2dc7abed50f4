"""A storage node whose coordinator session ends before it is registered starts over; one that finds no cluster ends."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from waltz_log.core.metadata import CLUSTER, STORAGE_NODES, ClusterParameters, StorageNodeEntry
from waltz_log.errors import ClusterUnavailable
from waltz_log.filesystem import FileSystemDisk
from waltz_log.monitoring.monitored import Monitored
from waltz_log.processes import storage as process
from waltz_log.processes.supervisor import NodeAddresses
from waltz_log.storage import StorageSettings
from waltz_log.testing.memory_coordinator import MemoryEnsemble

ADDRESS = "127.0.0.1:1/waltz/test"
KEY = UUID(int=7)


class Session:
    """A session as `ZooKeeperCoordinator` has it."""

    def __init__(self, ensemble: MemoryEnsemble) -> None:
        self.inner = ensemble.session()
        self.lost = self.closed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def close(self) -> None:
        self.closed = True


async def run(directory: Path, monkeypatch: pytest.MonkeyPatch, *, lost: int, workers: int) -> tuple[MemoryEnsemble, list[Session]]:
    """Ends the first `lost` sessions when the node registers, the first one after the entry was written."""
    ensemble, sessions, stop = MemoryEnsemble(), list[Session](), asyncio.Event()
    await ensemble.session().create(CLUSTER, ClusterParameters("test", KEY, 1).to_bytes())

    async def join(*_: object) -> Session:
        sessions.append(Session(ensemble))
        return sessions[-1]

    async def registered(coordinator: Session, *arguments: Any, **named: Any) -> None:
        assert not coordinator.closed
        if len(sessions) == 1:
            await register(coordinator, *arguments, **named)
        if len(sessions) <= lost:
            ensemble.expire(coordinator.inner)
            coordinator.lost = True
        await register(coordinator, *arguments, **named)
        stop.set()

    register: Any = process.register
    monkeypatch.setattr(process, "join", join)
    monkeypatch.setattr(process, "register", registered)
    monkeypatch.setattr(process, "AGAIN_PAUSE_S", 0.01)
    settings = StorageSettings(name="a", coordinator=ADDRESS, listen="127.0.0.1:0", directory=directory, workers=workers)
    monitored = Monitored("storage")
    if workers == 1:
        await process._lives(lambda: process._life(settings, monitored, stop, False), stop)
    else:
        with NodeAddresses(settings.listen, workers) as addresses:
            await process._lives(lambda: process._life_of_workers(settings, monitored, addresses, stop, False, None), stop)
    return ensemble, sessions


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_session_that_ends_before_the_node_is_registered_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    with capture_logs() as logs:
        ensemble, sessions = await asyncio.wait_for(run(tmp_path, monkeypatch, lost=2, workers=workers), 120)
    assert [session.closed for session in sessions] == [True, True, True]
    found = await ensemble.session().get(f"{STORAGE_NODES}/a")
    assert found is not None
    assert StorageNodeEntry.from_bytes(found.data).start == 3
    assert [each["event"] for each in logs].count("coordinator session ended, starting over") == 2
    FileSystemDisk(tmp_path).lock()  # the node has left the directory


async def test_a_missing_cluster_ends_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(MemoryEnsemble())

    async def join(*_: object) -> Session:
        return session

    monkeypatch.setattr(process, "join", join)
    settings = StorageSettings(name="a", coordinator=ADDRESS, listen="127.0.0.1:0", directory=tmp_path)
    stop = asyncio.Event()
    with pytest.raises(ClusterUnavailable, match="no cluster there"):
        await process._lives(lambda: process._life(settings, Monitored("storage"), stop, False), stop)
    assert session.closed
