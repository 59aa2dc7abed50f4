"""The coordinator port in one process: nodes with versions, sessions that can be expired or cut off, no threads and no time of its own.

Decides nothing by chance: waiters wake in the order in which they came, so one seed replays one run. A call yields to the event loop once before
it takes effect, as a real one would, or takes as long as the test says (`delay_s`). Nothing here blocks.

Faults: `expire(session)` ends a session as a real ensemble does after silence; `cut(session)` keeps its calls and watches waiting until
`heal(session)`, and a session that expires while it is cut learns of it only then. `lag(session)` keeps its watches alone waiting until
`catch_up(session)`: it lives and can read and write, and hears of no change. `loses_answer` says which changes take effect without their
caller being told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from waltz_log.core.metadata import expect_fits
from waltz_log.core.ports import Coordinator, Node
from waltz_log.errors import ClusterUnavailable, InvalidRequest

__all__ = ["MemoryCoordinator", "MemoryEnsemble"]

T = TypeVar("T")


@dataclass
class _Stored:
    data: bytes
    version: int = 0
    owner: MemoryCoordinator | None = None


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


class MemoryEnsemble:
    """The shared state. `session()` is what `ZooKeeperCoordinator.connect` is to a real ensemble."""

    def __init__(self, address: str = "memory/waltz", timeout_s: float = 10.0) -> None:
        self.address = address
        self._timeout_s = timeout_s
        self._nodes: dict[str, _Stored] = {"/": _Stored(b"")}
        self._changed: list[asyncio.Event] = []
        self.delay_s: Callable[[], float] = lambda: 0.0
        self.loses_answer: Callable[[], bool] = lambda: False
        self.observer: Callable[[str, bytes, int | None, int], None] = lambda path, data, expected, version: None
        """Told of every node that was written: with which version expected (None: created, -1: any), and which it has now."""

    def session(self) -> MemoryCoordinator:
        return MemoryCoordinator(self, self._timeout_s)

    def expire(self, session: MemoryCoordinator) -> None:
        """Ends the session and removes its ephemeral nodes."""
        for path in [path for path, node in self._nodes.items() if node.owner is session]:
            del self._nodes[path]
        session.ended = True
        self.wake()

    def cut(self, session: MemoryCoordinator) -> None:
        session.connected = False

    def heal(self, session: MemoryCoordinator) -> None:
        session.connected = True
        self.wake()

    def lag(self, session: MemoryCoordinator) -> None:
        session.lags = True

    def catch_up(self, session: MemoryCoordinator) -> None:
        session.lags = False
        self.wake()

    # ---- what sessions use ----

    def wake(self) -> None:
        """Something changed: all waiters look again. Each takes a new event, so none is woken twice for one change."""
        waiting, self._changed = self._changed, []
        for event in waiting:
            event.set()

    async def next_change(self) -> None:
        event = asyncio.Event()
        self._changed.append(event)
        await event.wait()

    def get(self, path: str) -> _Stored | None:
        return self._nodes.get(path)

    def children(self, path: str) -> list[str]:
        start = path.rstrip("/") + "/"
        return sorted(name[len(start) :] for name in self._nodes if name.startswith(start) and name != "/" and "/" not in name[len(start) :])

    def create(self, path: str, data: bytes, owner: MemoryCoordinator | None) -> bool:
        if path in self._nodes:
            return False
        missing = []
        parent = _parent(path)
        while parent not in self._nodes:
            missing.append(parent)
            parent = _parent(parent)
        if self._nodes[parent].owner is not None:
            raise InvalidRequest(reason=f"ephemeral node cannot have children: path={parent}")
        for each in reversed(missing):
            self._nodes[each] = _Stored(b"")
        self._nodes[path] = _Stored(data, owner=owner)
        self.observer(path, data, None, 0)
        self.wake()
        return True

    def set(self, path: str, data: bytes, version: int) -> int | None:
        node = self._nodes.get(path)
        if node is None or version not in (-1, node.version):
            return None
        node.data, node.version = data, node.version + 1
        self.observer(path, data, version, node.version)
        self.wake()
        return node.version

    def delete(self, path: str, version: int) -> bool:
        node = self._nodes.get(path)
        if node is None or version not in (-1, node.version) or self.children(path):
            return False
        del self._nodes[path]
        self.wake()
        return True


class MemoryCoordinator:
    """One session of a `MemoryEnsemble`."""

    def __init__(self, ensemble: MemoryEnsemble, timeout_s: float) -> None:
        self._ensemble = ensemble
        self._timeout_s = timeout_s
        self.connected = True
        self.ended = False
        self.lags = False

    async def _reach(self, path: str) -> None:
        if not path.startswith("/") or (path != "/" and path.endswith("/")) or "//" in path:
            raise InvalidRequest(reason=f"not a path: {path!r}")
        await asyncio.sleep(self._ensemble.delay_s())
        if not self.connected:
            try:
                async with asyncio.timeout(self._timeout_s):
                    await self._until_connected()
            except TimeoutError:
                raise ClusterUnavailable(address=self._ensemble.address, reason=f"no answer within {self._timeout_s:g} s") from None
        self._check()

    async def _until_connected(self) -> None:
        while not self.connected:
            await self._ensemble.next_change()

    def _check(self) -> None:
        if self.ended:
            raise ClusterUnavailable(address=self._ensemble.address, reason="session ended")

    def _answer(self, answer: T) -> T:
        if self._ensemble.loses_answer():
            raise ClusterUnavailable(address=self._ensemble.address, reason="connection lost, the change may have taken effect")
        return answer

    async def get(self, path: str) -> Node | None:
        await self._reach(path)
        found = self._ensemble.get(path)
        return None if found is None else Node(found.data, found.version)

    async def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> bool:
        expect_fits(path, data)
        await self._reach(path)
        return self._answer(self._ensemble.create(path, data, self if ephemeral else None))

    async def set(self, path: str, data: bytes, version: int) -> int | None:
        expect_fits(path, data)
        await self._reach(path)
        return self._answer(self._ensemble.set(path, data, version))

    async def delete(self, path: str, version: int = -1) -> bool:
        await self._reach(path)
        return self._answer(self._ensemble.delete(path, version))

    async def children(self, path: str) -> list[str]:
        await self._reach(path)
        return self._ensemble.children(path)

    async def wait_changed(self, path: str, version: int | None) -> None:
        await asyncio.sleep(0)
        while True:
            await self._until_connected()
            self._check()
            found = self._ensemble.get(path)
            if not self.lags and (None if found is None else found.version) != version:
                return
            await self._ensemble.next_change()

    async def wait_children(self, path: str, known: list[str]) -> None:
        await asyncio.sleep(0)
        while True:
            await self._until_connected()
            self._check()
            if not self.lags and self._ensemble.children(path) != known:
                return
            await self._ensemble.next_change()

    async def wait_session_lost(self) -> None:
        while not (self.ended and self.connected):
            await self._ensemble.next_change()

    async def close(self) -> None:
        """Ends the session, also while it is cut off: the process itself knows."""
        self.connected = True
        self._ensemble.expire(self)


_coordinator: Coordinator = MemoryEnsemble().session()  # holds the class to the port when types are checked
