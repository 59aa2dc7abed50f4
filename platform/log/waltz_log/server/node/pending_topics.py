"""Ends pending topics whose creation crashed, so that their log partitions accept appends again (`coordination.topic_creation`;
docs/guides/topics.md).

Every server does this. Its own event loop measures the bound, from the moment at which the server sees the topic pending, so no two clocks have to
agree. No safety depends on the bound: a creation activates its topic by compare-and-set and only while that very entry is pending, so one that is
slower than the bound is refused.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from waltz_log.coordination.topics import change_catalogue
from waltz_log.core.ports import Coordinator
from waltz_log.core.topics.catalogue import Topic
from waltz_log.loggers import get_logger
from waltz_log.server.base.topics import ServedTopics

__all__ = ["PENDING_MAX_S", "PendingTopics"]

log = get_logger(__name__)

PENDING_MAX_S: Final = 60.0
"""Twice the time that a creation allows itself between the reservation and the activation (`client.topics.topic_creation.JUDGE_MAX_S`)."""


class PendingTopics:
    """The pending topics of one server; `run` it as long as the server lives."""

    def __init__(self, topics: ServedTopics, coordinator: Coordinator) -> None:
        self._topics = topics
        self._coordinator = coordinator
        self._since_s: list[tuple[Topic, float]] = []
        """Pending topics, and when this server saw each for the first time."""

    async def run(self) -> None:
        """Until cancelled. Raises what the coordinator raises; a later call continues with the same bounds."""
        loop = asyncio.get_running_loop()
        while True:
            version, now_s = self._topics.version, loop.time()
            known = {topic.identity: since_s for topic, since_s in self._since_s}
            self._since_s = [(topic, known.get(topic.identity, now_s)) for topic in self._topics.catalogue.pending.values()]
            for topic, since_s in self._since_s:
                if now_s - since_s >= PENDING_MAX_S:
                    await self._withdraw(topic)
            due_s = min((since_s + PENDING_MAX_S for _, since_s in self._since_s), default=None)
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due_s):
                    await self._topics.wait_beyond(version)

    async def _withdraw(self, topic: Topic) -> None:
        log.warning("withdrawing an unfinished topic", topic=str(topic.name), epoch=topic.epoch, log_partitions=list(topic.partitions))
        await change_catalogue(self._coordinator, lambda found: found.withdrawn(topic))
        await self._topics.read(latest=True)
