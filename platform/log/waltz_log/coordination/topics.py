"""The catalog of topics in a coordinator: read, and changed by compare-and-set. `core.topics.catalogue` decides which changes are valid."""

from __future__ import annotations

from collections.abc import Callable

from waltz_log.coordination.entries import parsed
from waltz_log.core.metadata import CLUSTER, ClusterParameters
from waltz_log.core.ports import Coordinator, Values
from waltz_log.core.topics.catalogue import CATALOGUE, Catalogue, Topic
from waltz_log.errors import InvalidRequest

__all__ = ["Change", "change_catalogue", "pool_of", "read_catalogue", "write_catalogue"]

Change = Callable[[Catalogue], tuple[Catalogue, Topic]]
"""From the present catalog to the new one, and the topic that the change concerns."""


async def read_catalogue(coordinator: Values) -> Catalogue:
    """Empty if no topic was ever created."""
    node = await coordinator.get(CATALOGUE, latest=True)
    return Catalogue() if node is None else parsed(CATALOGUE, node, Catalogue.from_bytes)


async def pool_of(coordinator: Coordinator) -> range:
    """All log partitions. Raises `InvalidRequest` if there is no cluster."""
    node = await coordinator.get(CLUSTER, latest=True)
    if node is None:
        raise InvalidRequest(reason="there is no cluster at this address: create one first")
    return range(parsed(CLUSTER, node, ClusterParameters.from_bytes).partitions)


async def change_catalogue(coordinator: Coordinator, change: Change, *, dry_run: bool = False) -> Topic:
    """The topic after the change. The change is computed again if another client was faster. `dry_run`: only checks whether it is possible. Raises
    the errors of the change."""
    return (await write_catalogue(coordinator, change, dry_run=dry_run))[0]


async def write_catalogue(coordinator: Coordinator, change: Change, *, dry_run: bool = False) -> tuple[Topic, int]:
    """The same, with the version that the catalog has then, or a later one."""
    while True:
        node = await coordinator.get(CATALOGUE, latest=True)  # the change may refuse what it finds
        found = Catalogue() if node is None else parsed(CATALOGUE, node, Catalogue.from_bytes)
        wanted, topic = change(found)
        if dry_run or wanted is found:
            return topic, 0 if node is None else node.version
        if node is None:
            if await coordinator.create(CATALOGUE, wanted.to_bytes()):
                return topic, 0
        elif (version := await coordinator.set(CATALOGUE, wanted.to_bytes(), node.version)) is not None:
            return topic, version
