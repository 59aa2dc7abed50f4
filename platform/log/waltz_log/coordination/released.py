"""Releases a log partition of a deleted topic, once its owner has removed everything in it.

The marks of subscribers are removed first: they are at the end of a log that is no longer read, and would retain what the next topic appends.
An entry of a subscriber that cannot be read retains nothing and is passed over.
"""

from __future__ import annotations

from dataclasses import replace

from waltz_log.coordination.entries import readable
from waltz_log.core.ports import Coordinator
from waltz_log.core.topics.catalogue import CATALOGUE, Catalogue
from waltz_log.core.topics.subscribers import SUBSCRIBERS, Subscriber

__all__ = ["release_partition"]


async def release_partition(coordinator: Coordinator, partition: int) -> None:
    for name in await coordinator.children(SUBSCRIBERS):
        await _forget_mark(coordinator, f"{SUBSCRIBERS}/{name}", partition)
    while (node := await coordinator.get(CATALOGUE)) is not None:
        found = Catalogue.from_bytes(node.data)
        wanted = found.released(partition)
        if wanted is found or await coordinator.set(CATALOGUE, wanted.to_bytes(), node.version) is not None:
            return


async def _forget_mark(coordinator: Coordinator, path: str, partition: int) -> None:
    while (node := await coordinator.get(path)) is not None:
        found = readable(path, node, Subscriber.from_bytes)
        if found is None or partition not in found.marks:
            return
        left = replace(found, marks={each: mark for each, mark in found.marks.items() if each != partition})
        if await coordinator.set(path, left.to_bytes(), node.version) is not None:
            return
