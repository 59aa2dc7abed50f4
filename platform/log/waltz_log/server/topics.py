"""The catalogue of topics as a log server knows it: which topic a log partition belongs to, and what follows from that.

Read before the server serves anybody, and again whenever it changes; in between the last one known holds. Decides nothing itself: the rules are
`core.catalogue` and `core.access`.
"""

from __future__ import annotations

from waltz_log.core.access import Action, allowed, expect_allowed
from waltz_log.core.catalogue import CATALOGUE, Catalogue, Topic
from waltz_log.core.ports import Coordinator
from waltz_log.server.pulse import Pulse

__all__ = ["ServedTopics"]


class ServedTopics:
    """`read` once, then `run`. `changed` tells that the catalogue is another one."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.catalogue = Catalogue()
        self.changed = Pulse()
        self.version: int | None = None
        """Of the catalogue in the coordinator; None: no topic was ever made."""
        self._coordinator = coordinator
        self._owners: dict[int, tuple[Topic, int]] = {}

    async def read(self, *, latest: bool = False) -> None:
        """`latest`: before anybody is served by it; afterwards a watch says when there is something new."""
        node = await self._coordinator.get(CATALOGUE, latest=latest)
        found = None if node is None else node.version
        if found == self.version:
            return
        self.version = found
        self.catalogue = Catalogue() if node is None else Catalogue.from_bytes(node.data)
        self._owners = {each: (topic, at) for topic in self.catalogue.topics.values() for at, each in enumerate(topic.partitions)}
        self.changed.notify()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._coordinator.wait_changed(CATALOGUE, self.version)
            await self.read()

    async def wait_beyond(self, version: int | None) -> None:
        """Returns when another version of the catalogue than that is known."""
        await self.changed.wait_for(lambda: self.version != version)

    def of(self, log_partition: int) -> tuple[Topic, int] | None:
        """The topic that a log partition belongs to, and as which of its partitions; None: to no topic."""
        return self._owners.get(log_partition)

    def expect_allowed(self, log_partition: int, action: Action, principal: str) -> None:
        """Raises `NotAllowed`."""
        found = self._owners.get(log_partition)
        if found is not None:
            topic, partition = found
            expect_allowed(topic.name, allowed(topic.properties_of(partition), action), action, principal)
