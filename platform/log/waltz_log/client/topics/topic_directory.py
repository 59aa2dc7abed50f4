"""Names of topics to what they are, as the catalogue says: asked once for each name, watched from then on.

A topic never changes what it is, so the only news of one that matters is that it was deleted; a later topic of the same name is another topic. A
watch that is interrupted begins again; until then the last known holds.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

from waltz_log.client.base.retry import Backoff
from waltz_log.client.base.settings import ClientSettings
from waltz_log.client.owners.owners import Owners
from waltz_log.client.topics.compacted import ViewReader
from waltz_log.core.ports import Coordinator, Node
from waltz_log.core.topics.catalogue import CATALOGUE, Catalogue, Topic
from waltz_log.core.topics.topic_names import TopicName
from waltz_log.errors import ClusterUnavailable, TopicDeleted, WaltzError
from waltz_log.loggers import get_logger

__all__ = ["KnownTopic", "TopicDirectory"]

log = get_logger(__name__)


@dataclass(eq=False, slots=True)
class KnownTopic:
    """Shared by all handles of the topic in one client."""

    topic: Topic
    deleted: asyncio.Event = field(default_factory=asyncio.Event)

    def expect_there(self) -> None:
        """Raises `TopicDeleted`."""
        if self.deleted.is_set():
            raise TopicDeleted(topic=str(self.topic.name))


class TopicDirectory:
    def __init__(self, owners: Owners, settings: ClientSettings, rng: random.Random) -> None:
        self._owners = owners
        self._settings = settings
        self._rng = rng
        self._known: dict[TopicName, KnownTopic] = {}
        self._version: int | None = None
        self._watcher: asyncio.Task[None] | None = None

    async def find(self, name: TopicName) -> KnownTopic:
        """Raises `NoSuchTopic`, `ClusterUnavailable`."""
        try:
            async with asyncio.timeout(self._settings.request_timeout_s):
                catalogue = await self._read(await self._coordinator(), latest=True)
        except TimeoutError:
            reason = f"no answer about topics within {self._settings.request_timeout_s:g} s"
            raise ClusterUnavailable(address="coordinator", reason=reason) from None
        topic = catalogue.find(name)
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = KnownTopic(topic)
        await self._owners.reach(max(topic.partitions))
        if self._watcher is None:
            self._watcher = asyncio.create_task(self._watch(), name="waltz topics watch")
        return known

    def view_reader(self, log_partition: int) -> ViewReader:
        """Of the partition's compacted view."""
        return ViewReader(log_partition, self._owners, self._settings, Backoff(self._settings.retry_base_s, self._settings.retry_cap_s, self._rng))

    async def _coordinator(self) -> Coordinator:
        """Once there is one: a session that was used up is being replaced."""
        while (coordinator := self._owners.coordinator) is None:
            await self._owners.wait_changed(self._settings.retry_cap_s)
        return coordinator

    async def _read(self, coordinator: Coordinator, *, latest: bool = False) -> Catalogue:
        node: Node | None = await coordinator.get(CATALOGUE, latest=latest)
        self._version = None if node is None else node.version
        catalogue = Catalogue() if node is None else Catalogue.from_bytes(node.data)
        for name, known in list(self._known.items()):
            now = catalogue.topics.get(name)
            if now is None or now.identity != known.topic.identity or now.partitions != known.topic.partitions:
                known.deleted.set()
                del self._known[name]
        return catalogue

    async def _watch(self) -> None:
        backoff = Backoff(self._settings.retry_base_s, self._settings.retry_cap_s, self._rng)
        while True:
            try:
                coordinator = await self._coordinator()
                await coordinator.wait_changed(CATALOGUE, self._version)
                await self._read(coordinator)
                backoff.reset()
            except WaltzError as error:
                log.info("topic watch restarted", reason=str(error))
                await asyncio.sleep(backoff.next_s())

    async def close(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
            self._watcher = None
