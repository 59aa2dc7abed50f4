"""The catalog of topics as a log server knows it: which topic a log partition belongs to, and what follows from that.

It is read before the server accepts clients, and again whenever it changes. In between the last known one applies. The rules are in
`core.topics.catalogue` and `core.topics.access`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from waltz_log.coordination.followed import TOPICS, KnownValues
from waltz_log.core.ports import Coordinator
from waltz_log.core.topics.access import Action, allowed, expect_allowed
from waltz_log.core.topics.catalogue import CATALOGUE, Catalogue, Topic, TopicEpoch
from waltz_log.errors import BelongsToTopic, NotAllowed, NotOwner, TopicDeleted
from waltz_log.security.access import AccessControl
from waltz_log.security.audit_log import denied
from waltz_log.server.base.pulse import Pulse

__all__ = ["ServedTopics"]

UNNUMBERED: Final = -1
"""The version of a catalog that the coordinator lost: other nodes know it."""


class ServedTopics:
    """Call `read` once, then `run`. `changed` signals a new catalog. `access`: says whether principals are verified. `known`: what the process knows
    of the values of the coordinator."""

    def __init__(self, coordinator: Coordinator, access: AccessControl, known: KnownValues | None = None) -> None:
        self._access = access
        self._known = known or KnownValues()
        self._seen: int | None = None
        """The version of what is in the coordinator, also of a catalog that is not used."""
        self.catalogue = Catalogue()
        self.changed = Pulse()
        self.version: int | None = None
        """For the catalog in the coordinator; None: no topic was ever made."""
        self._coordinator = coordinator
        self._owners: dict[int, tuple[Topic, int]] = {}
        self._judged: dict[int, Topic] = {}

    async def read(self, *, latest: bool = False) -> None:
        """`latest`: before the first client is served; afterwards a watch signals changes. A catalog that is missing, cannot be read or is older
        changes nothing. Raises `Unavailable` for one that cannot be read while none is known."""
        node = await self._known.get(self._coordinator, TOPICS, latest=latest)
        self._seen = None if node is None else node.version
        found = self._known.accept(TOPICS, node) if node is None else self._known.expect(TOPICS, node)
        version = UNNUMBERED if node is None else node.version
        if found is None or found is self.catalogue or version == self.version:
            return
        self.version, self.catalogue = version, found
        self._owners = {each: (topic, at) for topic in self.catalogue.topics.values() for at, each in enumerate(topic.partitions)}
        self._judged = self.catalogue.being_judged()
        self.changed.notify()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._coordinator.wait_changed(CATALOGUE, self._seen)
            await self.read()

    async def wait_beyond(self, version: int | None) -> None:
        """Returns when another version of the catalog than that is known."""
        await self.changed.wait_for(lambda: self.version != version)

    async def wait_for(self, version: int) -> None:
        """Returns when that version of the catalog, or a later one, is known."""
        await self.changed.wait_for(lambda: self.version is not None and self.version >= version)

    def expect_addressed(self, log_partition: int, wanted: TopicEpoch | None, *, appends: bool, by_number: Collection[str] = ()) -> None:
        """Checks that a client mounts the partition as what it is: for its topic, or, with None, by its number. `by_number`: topics whose partitions
        may still be appended to by number. Raises `BelongsToTopic`, `TopicDeleted`, and `NotOwner` if that is about to change."""
        found = self._owners.get(log_partition)
        if wanted is not None and wanted.epoch > self.catalogue.epochs:
            raise NotOwner(partition=log_partition, reason=f"{wanted.name} is not known to this server yet")
        if log_partition in self._judged and (appends or wanted is not None):
            raise NotOwner(partition=log_partition, reason="a new topic may use it: its contents are being checked")
        if wanted is not None:
            there = None if found is None else found[0].identity
            if there is None or there.name != wanted.name or wanted.epoch not in (0, there.epoch):
                raise TopicDeleted(topic=wanted.name)
        elif appends and found is not None and str(found[0].name) not in by_number:
            raise BelongsToTopic(partition=log_partition, topic=str(found[0].name))
        elif appends and found is None and log_partition in self.catalogue.retired:
            raise NotOwner(partition=log_partition, reason="the data of a deleted topic is being removed")

    def of(self, log_partition: int) -> tuple[Topic, int] | None:
        """The topic that a log partition belongs to, and as which of its partitions; None: to no topic."""
        return self._owners.get(log_partition)

    def expect_allowed(self, log_partition: int, action: Action, principal: str) -> None:
        """Raises `NotAllowed`, which is in the audit log then."""
        found = self._owners.get(log_partition)
        if found is None:
            return
        topic, partition = found
        try:
            expect_allowed(topic.name, allowed(topic.properties_of(partition), action), action, principal)
        except NotAllowed as error:
            denied(error, verified=self._access.enforced)
            raise
