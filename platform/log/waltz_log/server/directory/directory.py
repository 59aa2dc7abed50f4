"""The cluster as this server knows it: the coordinator's nodes that clients need, each followed by a watch of its own (`core.cluster_map`).

A source gets the version of the node that was read, never that of another node, because the nodes are read at different moments. Which topics a
follower sees depends on its rights. Followers with the same rights share a view, and with it the bytes of each answer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Final
from weakref import WeakValueDictionary

from waltz_log.background_tasks import TaskSet
from waltz_log.coordination.followed import FOLLOWED, STORAGE_ENTRIES, KnownValues
from waltz_log.core import metadata as paths
from waltz_log.core.cluster_map import (
    ASSIGNMENT_SOURCE,
    CLUSTER_SOURCE,
    EVERYTHING,
    REPLICAS_SOURCE,
    RIGHTS_SOURCE,
    TOPICS_SOURCE,
    MapPart,
    Register,
    assignment_items,
    node_source,
    parameters_items,
    replicas_items,
    topic_items,
)
from waltz_log.core.metadata import Assignment, ClusterParameters, ReplicaAssignment, StorageNodeEntry
from waltz_log.core.ports import Coordinator, Node
from waltz_log.core.topics.catalogue import CATALOGUE, Catalogue
from waltz_log.errors import ClusterUnavailable
from waltz_log.loggers import get_logger
from waltz_log.security.access import AccessControl
from waltz_log.security.identity import Identity
from waltz_log.server.base.pulse import Pulse
from waltz_log.server.directory.shared_read import SharedRead
from waltz_log.transport import waltz_pb2 as pb

__all__ = ["Directory", "View"]

log = get_logger(__name__)

CONFIRM_PERIOD_S: Final = 1.0
"""How often the server confirms with the coordinator that its knowledge is current. Heartbeats report the time since."""

CONFIRM_PAUSE_S: Final = 0.02
"""At least so long between two confirmations that clients ask for: one reads the catalog, of up to a megabyte, and answers all that wait."""

TOPICS_AT_ONCE: Final = 32
"""Decisions about rights between two pauses: one compares a topic with every rule of the principal."""


_ITEMS: Final[Mapping[str, tuple[str, Callable[[bytes], dict[str, bytes]]]]] = {
    paths.CLUSTER: (CLUSTER_SOURCE, lambda data: parameters_items(ClusterParameters.from_bytes(data))),
    paths.ASSIGNMENT: (ASSIGNMENT_SOURCE, lambda data: assignment_items(Assignment.from_bytes(data))),
    paths.REPLICAS: (REPLICAS_SOURCE, lambda data: replicas_items(ReplicaAssignment.from_bytes(data))),
    CATALOGUE: (TOPICS_SOURCE, lambda data: topic_items(Catalogue.from_bytes(data))),
}


class View:
    """The topics that followers with the same rights see."""

    def __init__(self, peer: Identity | None) -> None:
        self.peer = peer
        self.topics = Register(TOPICS_SOURCE)
        self.rights = 0
        """The version of the rules by which the topics were chosen."""
        self._chosen_at = 0
        """The version of the rules that last changed which topics are seen."""

    def update(self, version: int, items: Mapping[str, bytes], rights: int) -> None:
        """What is seen of the catalog at that version, by the rules at that version."""
        is_new = self.topics.version < 0
        if is_new or (rights != self.rights and items.keys() != self.topics.items.keys()):
            self._chosen_at = rights
        if version > self.topics.version:
            self.topics.update(version, items)
        elif self._chosen_at == rights != self.rights:
            self.topics.reset(items)
        self.rights = rights

    def parts_since(self, versions: Mapping[str, int]) -> list[MapPart]:
        rights = versions.get(RIGHTS_SOURCE, -1)
        found = self.topics.part_since(versions.get(TOPICS_SOURCE) if rights >= self._chosen_at else None)
        parts = [] if found is None else [found]
        if rights != self.rights:
            parts.append(MapPart(RIGHTS_SOURCE, EVERYTHING, self.rights))
        return parts


class Directory:
    """Call `read` once, then `run`. `changed` signals each change, and `revision` counts them."""

    def __init__(self, coordinator: Coordinator, access: AccessControl, known: KnownValues | None = None) -> None:
        self._known = known or KnownValues()
        self._coordinator = coordinator
        self._access = access
        self._registers: dict[str, Register] = {}
        self._nodes: dict[str, Node | None] = {}
        """By path, as it was read last."""
        self._views: WeakValueDictionary[Identity | None, View] = WeakValueDictionary()
        """By peer, as long as a follower uses it. None: of all who see everything."""
        self._follows: TaskSet | None = None
        self._watched: set[str] = set()
        self._confirmations = SharedRead(lambda: self._confirm(paths.ASSIGNMENT, paths.REPLICAS, CATALOGUE), CONFIRM_PAUSE_S)
        self._confirmed_s = 0.0
        self._held_at: tuple[int, set[str]] = (-2, set())
        """The version of the replicas, and the sources of the storage nodes among them."""
        self.epoch = 0
        self.revision = 0
        self.changed = Pulse()

    # ---- reading ---------------------------------------------------------------------------------------------------------------------------------

    async def read(self) -> None:
        """Reads every source, as the coordinator has it now."""
        begun_s = asyncio.get_running_loop().time()
        for path in _ITEMS:
            self._put(path, await self._coordinator.get(path, latest=path == paths.CLUSTER))
        for name in self._node_names():
            self._put(path := f"{paths.STORAGE_NODES}/{name}", await self._coordinator.get(path))
        self._confirmed_s = begun_s

    async def run(self) -> None:
        """Until cancelled. Raises what the coordinator raises."""
        self._watched.clear()
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # The wait for it cancels the future where `run` is cancelled.
        follows = self._follows = TaskSet(lambda error: None if failed.done() else failed.set_exception(error))
        try:
            for path in _ITEMS:
                self._watch(path)
            self._watch_nodes()
            follows.start(self._confirm_regularly())
            await failed
        finally:
            self._follows = None
            await follows.end()

    def _watch(self, path: str) -> None:
        if self._follows is not None and path not in self._watched:
            self._watched.add(path)
            self._follows.start(self._follow(path))

    async def _follow(self, path: str) -> None:
        while True:
            known = self._nodes.get(path)
            await self._coordinator.wait_changed(path, None if known is None else known.version)
            self._put(path, await self._coordinator.get(path))

    def _node_names(self) -> list[str]:
        register = self._registers.get(REPLICAS_SOURCE)
        items = {} if register is None else register.items
        return sorted({str(name) for value in items.values() for name in json.loads(value)})

    def storage_addresses(self) -> list[str]:
        """The addresses of the storage nodes that hold replicas, as far as they are known."""
        entries = (self._known.accept(STORAGE_ENTRIES, self._nodes.get(f"{paths.STORAGE_NODES}/{name}"), name) for name in self._node_names())
        return [entry.address for entry in entries if entry is not None]

    def _watch_nodes(self) -> None:
        for name in self._node_names():
            self._watch(f"{paths.STORAGE_NODES}/{name}")

    def _put(self, path: str, node: Node | None) -> None:
        """What is missing, cannot be read or is older than what is known changes nothing but the version that is waited for."""
        before = self._nodes.get(path)
        if before is not None and node is not None and node.changed < before.changed:
            return
        self._nodes[path] = node
        version = 0 if node is None else node.changed
        name = path.removeprefix(f"{paths.STORAGE_NODES}/")
        source, items_of = _ITEMS.get(path, (node_source(name), _entry))
        if not self._is_used(path, name, node):
            return
        items = {} if node is None else items_of(node.data)
        if path == paths.CLUSTER and node is not None:
            self.epoch = ClusterParameters.from_bytes(node.data).epoch
        register = self._registers.setdefault(source, Register(source))
        if not register.update(version, items):
            return
        if source == REPLICAS_SOURCE:
            self._watch_nodes()
        self._announce()

    def _is_used(self, path: str, name: str, node: Node | None) -> bool:
        if path in _ITEMS:
            self._known.accept(FOLLOWED[path], node)
        elif node is None and name not in self._node_names():
            self._known.forget(STORAGE_ENTRIES, name)  # an operator removed a node that holds nothing
        else:
            self._known.accept(STORAGE_ENTRIES, node, name)
        return path not in self._known.refused()

    def _announce(self) -> None:
        self.revision += 1
        self.changed.notify()

    # ---- rights ----------------------------------------------------------------------------------------------------------------------------------

    async def view(self, peer: Identity | None) -> View:
        """What the peer sees now. Peers that see everything share one view."""
        key = None if self._access.sees_everything(peer) else peer
        view = self._views.get(key)
        if view is None:
            view = self._views[key] = View(key)
        topics = self._registers[TOPICS_SOURCE]
        while (view.topics.version, view.rights) != (topics.version, self._access.rules_changed):
            version, rights, items = topics.version, self._access.rules_changed, topics.items
            view.update(version, await self._seen(key, items), rights)
        return view

    async def _seen(self, peer: Identity | None, items: Mapping[str, bytes]) -> Mapping[str, bytes]:
        if peer is None:
            return items
        seen: dict[str, bytes] = {}
        for at, (name, value) in enumerate(items.items(), 1):
            if self._access.sees(name, peer):
                seen[name] = value
            if at % TOPICS_AT_ONCE == 0:
                await asyncio.sleep(0)
        return seen

    def expect_member(self) -> None:
        """Raises `PermissionDenied` if the caller may do nothing in the cluster."""
        self._access.expect_member()

    @property
    def rights(self) -> int:
        """The version of the rules in force."""
        return self._access.rules_changed

    def rights_changed(self) -> None:
        """The rules of access changed."""
        self._announce()

    # ---- what followers lack ---------------------------------------------------------------------------------------------------------------------

    def versions(self, view: View) -> dict[str, int]:
        """The versions of every source as a follower of the view gets it."""
        found = {source: register.version for source, register in self._registers.items() if self._is_sent(source)}
        return found | {TOPICS_SOURCE: view.topics.version, RIGHTS_SOURCE: view.rights}

    def known(self, view: View, stated: Iterable[pb.MapVersion]) -> dict[str, int]:
        """Those of the stated versions at which the follower has what this server had at them. From all others there is no difference."""
        registers = self._registers | {TOPICS_SOURCE: view.topics}
        found = {each.source: each.version for each in stated if each.source == RIGHTS_SOURCE}
        for each in stated:
            register = registers.get(each.source)
            if register is not None and register.knew(each.version, each.fingerprint):
                found[each.source] = each.version
        return found

    def parts_since(self, view: View, versions: Mapping[str, int]) -> list[MapPart]:
        """What a follower of the view lacks that has these versions of this epoch."""
        own = (each for source, each in self._registers.items() if source != TOPICS_SOURCE and self._is_sent(source))
        parts = [each.part_since(versions.get(each.source)) for each in own]
        return [part for part in parts if part is not None] + view.parts_since(versions)

    def _is_sent(self, source: str) -> bool:
        """A storage node that holds no partition any more is followed and not sent."""
        held = self._registers[REPLICAS_SOURCE]
        if held.version != self._held_at[0]:
            self._held_at = held.version, {node_source(name) for name in self._node_names()}
        return source in _SOURCES or source in self._held_at[1]

    # ---- the age of what is known ----------------------------------------------------------------------------------------------------------------

    @property
    def age_s(self) -> float:
        """Since the start of the last read that the whole ensemble confirmed."""
        return max(0.0, asyncio.get_running_loop().time() - self._confirmed_s)

    async def _confirm_regularly(self) -> None:
        while True:
            try:
                await self._confirm()
            except ClusterUnavailable as error:
                log.info("knowledge of the cluster not confirmed", reason=str(error), age_s=round(self.age_s, 1))
            await asyncio.sleep(CONFIRM_PERIOD_S)

    async def _confirm(self, *more: str) -> None:
        """One read that reaches the leader. Watches that fired before its answer are delivered before it, so nothing older is waited for then."""
        begun_s = asyncio.get_running_loop().time()
        self._put(paths.CLUSTER, await self._coordinator.get(paths.CLUSTER, latest=True))
        for path in more:
            self._put(path, await self._coordinator.get(path))
        self._confirmed_s = max(self._confirmed_s, begun_s)

    async def confirm(self) -> None:
        """Returns when owners, replicas and topics are known as the coordinator had them at the call, or later. All calls of the same moment share
        one read. Raises `ClusterUnavailable`."""
        await self._confirmations.wait()

    async def close(self) -> None:
        """Ends confirmations in progress; `run` is ended by its caller."""
        await self._confirmations.close()


_SOURCES: Final = frozenset(source for source, _ in _ITEMS.values())


def _entry(data: bytes) -> dict[str, bytes]:
    return {"entry": StorageNodeEntry.from_bytes(data).to_bytes()}
