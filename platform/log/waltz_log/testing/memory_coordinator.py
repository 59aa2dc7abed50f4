"""The coordinator port in one process: nodes with versions, sessions that can be expired or disconnected, without threads and without a clock.

Decides nothing by chance: waiters wake in the order in which they came, so one seed replays one run. A call yields to the event loop once before it
takes effect, as a real one would, or lasts as long as the test sets (`delay_s`). No call blocks the thread.

Faults: `expire(session)` ends a session as a real ensemble does after silence; `restore(snapshot)` sets everything back to an older state;
`cut(session)` keeps its calls and watches waiting until `heal(session)`, and a session that expires while it is cut learns of it only then.
`lag(session)` delays only its watches until `catch_up(session)`: the session can read and write but gets no notification of a change. `loses_answer`
selects changes that take effect without a response to their caller.

Followers: once `follower_lag_s` is set, each new session reads from a follower that applies a change that long after it was made.
A session keeps ZooKeeper's promises (sequential consistency): it never goes back, sees its own writes, and every write or `latest` read brings its
follower up to date first.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from waltz_log.core.metadata import expect_fits
from waltz_log.core.ports import Coordinator, Node
from waltz_log.errors import ClusterUnavailable, InvalidRequest
from waltz_log.testing.virtual_time import world_time_s

__all__ = ["MemoryCoordinator", "MemoryEnsemble"]

T = TypeVar("T")


FOLLOWER_STEP_S = 0.001
"""Shortest time after which a wait polls its follower again."""


@dataclass(frozen=True)
class _Stored:
    data: bytes
    version: int = 0
    owner: MemoryCoordinator | None = None
    changed: int = 0


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


class MemoryEnsemble:
    """The shared state. `session()` is what `ZooKeeperCoordinator.connect` is to a real ensemble."""

    def __init__(self, address: str = "memory/waltz", timeout_s: float = 10.0) -> None:
        self.address = address
        self._timeout_s = timeout_s
        self._nodes: dict[str, _Stored] = {"/": _Stored(b"")}
        self._numbered = 0
        """Changes of all nodes so far."""
        self._changed: list[asyncio.Event] = []
        self._sessions: list[MemoryCoordinator] = []
        self.delay_s: Callable[[], float] = lambda: 0.0
        self.loses_answer: Callable[[], bool] = lambda: False
        self.follower_lag_s: Callable[[], float] | None = None
        """How far behind the follower of each new session is; None: every session reads what was written last."""
        self._past: dict[str, list[tuple[int, _Stored | None]]] = {}
        """By path: what each change made of it, by the change's number. Kept where there are followers."""
        self._changed_s: list[float] = []
        self.observer: Callable[[str, bytes, int | None, int], None] = lambda path, data, expected, version: None
        """Called for every node that was written: with the expected version (None: created, -1: any), and the version that it has now."""

    def session(self) -> MemoryCoordinator:
        made = MemoryCoordinator(self, self._timeout_s, 0.0 if self.follower_lag_s is None else self.follower_lag_s())
        self._sessions = [each for each in self._sessions if not each.ended]
        self._sessions.append(made)
        return made

    def expire(self, session: MemoryCoordinator) -> None:
        """Ends the session and removes its ephemeral nodes."""
        for path in [path for path, node in self._nodes.items() if node.owner is session]:
            self._put(path, None)
        session.ended = True
        self.wake()

    def snapshot(self) -> Mapping[str, object]:
        """What a backup of the ensemble holds: every node but the ephemeral ones, as they are now."""
        return {path: node for path, node in self._nodes.items() if node.owner is None}

    def restore(self, snapshot: Mapping[str, object]) -> None:
        """Goes back to what `snapshot` gave. The ensemble that returns knows no session from before."""
        for session in self._sessions:
            session.ended = True
        for path in [path for path in self._nodes if path not in snapshot]:
            self._put(path, None)
        for path, node in snapshot.items():
            assert isinstance(node, _Stored)
            if self._nodes.get(path) != node:
                self._put(path, node)
        self._numbered = max(node.changed for node in self._nodes.values())
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
        """Wakes all waiters after a change. Each then waits for a new event, so none is woken twice for one change."""
        waiting, self._changed = self._changed, []
        for event in waiting:
            event.set()

    async def next_change(self) -> None:
        event = asyncio.Event()
        self._changed.append(event)
        await event.wait()

    @property
    def changes(self) -> int:
        """How many there were, where followers are kept."""
        return len(self._changed_s)

    def changes_at(self, at_s: float) -> int:
        """How many there were by then."""
        return bisect_right(self._changed_s, at_s)

    def changed_s(self, change: int) -> float:
        return self._changed_s[change]

    def get(self, path: str, change: int | None = None) -> _Stored | None:
        """The node after this many changes; None: after all."""
        if change is None or change >= self.changes:
            return self._nodes.get(path)
        past = self._past.get(path)
        return self._nodes.get(path) if past is None else next((stored for number, stored in reversed(past) if number <= change), None)

    def children(self, path: str, change: int | None = None) -> list[str]:
        start = path.rstrip("/") + "/"
        names: Iterable[str] = self._nodes
        if change is not None and change < self.changes:
            known = dict.fromkeys((*self._nodes, *self._past))
            names = [name for name in known if name.startswith(start) and self.get(name, change) is not None]
        return sorted(name[len(start) :] for name in names if name.startswith(start) and name != "/" and "/" not in name[len(start) :])

    def _put(self, path: str, stored: _Stored | None) -> None:
        """None: removes it."""
        if self.follower_lag_s is not None:
            self._changed_s.append(world_time_s())
            self._past.setdefault(path, [(0, self._nodes.get(path))]).append((self.changes, stored))
        if stored is None:
            del self._nodes[path]
        else:
            self._nodes[path] = stored

    def _next_number(self) -> int:
        self._numbered += 1
        return self._numbered

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
            self._put(each, _Stored(b""))
        self._put(path, _Stored(data, owner=owner, changed=self._next_number()))
        self.observer(path, data, None, 0)
        self.wake()
        return True

    def set(self, path: str, data: bytes, version: int) -> int | None:
        node = self._nodes.get(path)
        if node is None or version not in (-1, node.version):
            return None
        self._put(path, _Stored(data, node.version + 1, node.owner, self._next_number()))
        self.observer(path, data, version, node.version + 1)
        self.wake()
        return node.version + 1

    def delete(self, path: str, version: int) -> bool:
        node = self._nodes.get(path)
        if node is None or version not in (-1, node.version) or self.children(path):
            return False
        self._put(path, None)
        self.wake()
        return True


class MemoryCoordinator:
    """One session of a `MemoryEnsemble`."""

    def __init__(self, ensemble: MemoryEnsemble, timeout_s: float, lag_s: float) -> None:
        self._ensemble = ensemble
        self._timeout_s = timeout_s
        self._lag_s = lag_s
        self._seen = 0
        """The number of changes that its follower has certainly applied, because the session read or wrote them."""
        self.connected = True
        self.ended = False
        self.lags = False

    @property
    def reachable(self) -> bool:
        """Whether the ensemble answers now."""
        return self.connected and not self.ended

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

    def _position(self) -> int | None:
        """The follower's: after how many changes it is now. None: it has all."""
        if not self._lag_s:
            return None
        self._seen = max(self._seen, self._ensemble.changes_at(world_time_s() - self._lag_s))
        return self._seen

    def _synced(self) -> None:
        """The follower has applied everything up to now."""
        self._seen = self._ensemble.changes

    async def get(self, path: str, *, latest: bool = False) -> Node | None:
        await self._reach(path)
        if latest:
            self._synced()
        found = self._ensemble.get(path, self._position())
        return None if found is None else Node(found.data, found.version, found.changed)

    async def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> bool:
        expect_fits(path, data)
        await self._reach(path)
        made = self._ensemble.create(path, data, self if ephemeral else None)
        self._synced()
        return self._answer(made)

    async def set(self, path: str, data: bytes, version: int) -> int | None:
        expect_fits(path, data)
        await self._reach(path)
        written = self._ensemble.set(path, data, version)
        self._synced()
        return self._answer(written)

    async def delete(self, path: str, version: int = -1) -> bool:
        await self._reach(path)
        deleted = self._ensemble.delete(path, version)
        self._synced()
        return self._answer(deleted)

    async def children(self, path: str, *, latest: bool = False) -> list[str]:
        await self._reach(path)
        if latest:
            self._synced()
        return self._ensemble.children(path, self._position())

    async def wait_changed(self, path: str, version: int | None) -> None:
        await asyncio.sleep(0)
        while True:
            await self._until_connected()
            self._check()
            found = self._ensemble.get(path, self._position())
            if not self.lags and (None if found is None else found.version) != version:
                return
            await self._next_change()

    async def wait_children(self, path: str, known: list[str]) -> None:
        await asyncio.sleep(0)
        while True:
            await self._until_connected()
            self._check()
            if not self.lags and self._ensemble.children(path, self._position()) != known:
                return
            await self._next_change()

    async def _next_change(self) -> None:
        """Waits for the next change of what its follower has."""
        position = self._position()
        if position is None or position >= self._ensemble.changes:
            await self._ensemble.next_change()
            return
        visible_s = self._ensemble.changed_s(position) + self._lag_s - world_time_s()
        try:
            async with asyncio.timeout(max(visible_s, FOLLOWER_STEP_S)):
                await self._ensemble.next_change()
        except TimeoutError:
            return

    async def wait_session_lost(self) -> None:
        while not (self.ended and self.connected):
            await self._ensemble.next_change()

    async def close(self) -> None:
        """Ends the session, also while it is cut off: the process itself knows."""
        self.connected = True
        self._ensemble.expire(self)


_coordinator: Coordinator = MemoryEnsemble().session()  # holds the class to the port when types are checked
