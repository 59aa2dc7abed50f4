"""Names of topics to what they are, as the map of the cluster says, confirmed when a name is looked up.

A topic never changes what it is, so the only news of one that matters is that it was deleted; a later topic of the same name is another topic.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

from waltz_log.client.base.retry import Backoff
from waltz_log.client.base.settings import ClientSettings
from waltz_log.client.owners.owners import Owners
from waltz_log.client.topics.compacted import ViewReader
from waltz_log.core.topics.catalogue import Catalogue, Topic
from waltz_log.core.topics.topic_names import TopicName
from waltz_log.errors import ClusterUnavailable, TopicDeleted, Unavailable
from waltz_log.loggers import get_logger

__all__ = ["KnownTopic", "TopicDirectory", "find_topic"]

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


async def find_topic(owners: Owners, name: TopicName, timeout_s: float) -> Topic:
    """As the coordinator has it now; the one of the map while it is away for so long. Raises `NoSuchTopic`, also for a topic of which this client may
    do nothing, and `ClusterUnavailable` if it is not known whether there is one."""
    try:
        await owners.confirm(timeout_s)
    except Unavailable as error:
        if name not in owners.catalogue.topics:
            raise ClusterUnavailable(address="log servers", reason=f"the topics are not known for certain: {error}") from None
        log.info("topic found in the map alone", topic=str(name), reason=str(error))
    return owners.catalogue.find(name)


class TopicDirectory:
    def __init__(self, owners: Owners, settings: ClientSettings, rng: random.Random) -> None:
        self._owners = owners
        self._settings = settings
        self._rng = rng
        self._known: dict[TopicName, KnownTopic] = {}
        owners.on_topics(self._changed)

    async def find(self, name: TopicName) -> KnownTopic:
        """A topic that is known is found while the coordinator is away. Raises `NoSuchTopic`, also for a topic of which this client may do nothing,
        and `ClusterUnavailable` if it is not known whether there is one."""
        topic = await find_topic(self._owners, name, self._settings.request_timeout_s)
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = KnownTopic(topic)
        await self._owners.reach(max(topic.partitions))
        return known

    def view_reader(self, log_partition: int) -> ViewReader:
        """A reader of the partition's compacted view."""
        return ViewReader(log_partition, self._owners, self._settings, Backoff(self._settings.retry_base_s, self._settings.retry_cap_s, self._rng))

    def _changed(self, catalogue: Catalogue) -> None:
        for name, known in list(self._known.items()):
            now = catalogue.topics.get(name)
            if now is None or now.identity != known.topic.identity or now.partitions != known.topic.partitions:
                known.deleted.set()
                del self._known[name]
