"""The coordinator in one process: conformance, and the faults it plays."""

from __future__ import annotations

import asyncio

import pytest

from verification.conformance.coordinator_conformance import CoordinatorConformance
from waltz_log.core.ports import Coordinator
from waltz_log.errors import ClusterUnavailable
from waltz_log.testing.memory_coordinator import MemoryCoordinator, MemoryEnsemble


class _Ensemble:
    def __init__(self) -> None:
        self._memory = MemoryEnsemble()

    async def session(self) -> Coordinator:
        return self._memory.session()

    async def expire(self, session: Coordinator) -> None:
        assert isinstance(session, MemoryCoordinator)
        self._memory.expire(session)


class TestMemoryCoordinatorConforms(CoordinatorConformance):
    @pytest.fixture
    def ensemble(self) -> _Ensemble:
        return _Ensemble()


async def test_a_cut_session_waits_and_goes_on_when_healed() -> None:
    ensemble = MemoryEnsemble()
    mine, other = ensemble.session(), ensemble.session()
    await mine.create("/member", b"", ephemeral=True)
    ensemble.cut(mine)
    reading = asyncio.create_task(mine.get("/member"))
    waiting = asyncio.create_task(mine.wait_changed("/other", None))
    await other.create("/other", b"")
    await asyncio.sleep(0)
    assert not reading.done()
    assert not waiting.done()
    ensemble.heal(mine)
    assert await reading is not None
    await waiting


async def test_a_cut_session_gives_up_a_call_after_its_timeout() -> None:
    ensemble = MemoryEnsemble(timeout_s=0.01)
    mine = ensemble.session()
    ensemble.cut(mine)
    with pytest.raises(ClusterUnavailable, match=r"no answer.*memory/waltz"):
        await mine.get("/")


async def test_a_session_that_expired_while_cut_learns_of_it_when_healed() -> None:
    ensemble = MemoryEnsemble()
    mine, other = ensemble.session(), ensemble.session()
    await mine.create("/member", b"", ephemeral=True)
    ensemble.cut(mine)
    ensemble.expire(mine)
    assert await other.get("/member") is None
    lost = asyncio.create_task(mine.wait_session_lost())
    await asyncio.sleep(0)
    assert not lost.done()
    ensemble.heal(mine)
    await lost
    with pytest.raises(ClusterUnavailable, match="session ended"):
        await mine.get("/")
