"""Subscribers in a coordinator, and the first retained id that they must agree on with who trims. What a subscriber is stands in
`core.topics.subscribers`.

Registering and trimming meet in the coordinator, in an order that leaves no gap: who registers writes its node, then reads what was proposed to go;
who trims writes what it proposes, then reads the subscribers. Whichever wrote second sees the other: a subscriber is either seen before anything goes
that it has not read, or told that it came too late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from waltz_log.core.ports import Coordinator
from waltz_log.core.retention import Retained, retained_path
from waltz_log.core.topics.subscribers import SUBSCRIBERS, Subscriber, subscriber_path
from waltz_log.errors import InvalidRequest, OutOfRange

__all__ = [
    "propose_retained",
    "read_retained",
    "read_subscribers",
    "register_subscriber",
    "remove_subscriber",
    "report_marks",
    "settle_retained",
    "withdraw_proposal",
]


async def read_subscribers(coordinator: Coordinator) -> list[Subscriber]:
    """All there are, by name."""
    nodes = await asyncio.gather(*(coordinator.get(f"{SUBSCRIBERS}/{name}") for name in await coordinator.children(SUBSCRIBERS)))
    return [Subscriber.from_bytes(node.data) for node in nodes if node is not None]


async def register_subscriber(coordinator: Coordinator, wanted: Subscriber) -> Subscriber:
    """As it stands then; one that is there keeps its marks where they are higher. From then on nothing above its marks goes. Raises `OutOfRange`
    where something above a mark is gone or about to go already: it is not registered then, or as it was before."""
    path = subscriber_path(wanted.name)
    while True:
        node = await coordinator.get(path)
        before = None if node is None else Subscriber.from_bytes(node.data)
        after = wanted if before is None else before.registered(wanted.marks, wanted.told, wanted.seen_ms)
        version = await _put(coordinator, path, after.to_bytes(), None if node is None else node.version)
        if version is None:
            continue
        known = {} if before is None else before.marks
        try:
            for partition, mark in after.marks.items():
                if partition not in known:
                    await _expect_retained(coordinator, partition, mark)
        except OutOfRange:
            # Unless somebody has changed it since: then that one has looked as well.
            if before is None:
                await coordinator.delete(path, version)
            else:
                await coordinator.set(path, before.to_bytes(), version)
            raise
        return after


async def _put(coordinator: Coordinator, path: str, wanted: bytes, version: int | None) -> int | None:
    """The version of what was written; None where somebody else was faster."""
    if version is not None:
        return await coordinator.set(path, wanted, version)
    if not await coordinator.create(path, wanted):
        return None
    node = await coordinator.get(path)
    return node.version if node is not None and node.data == wanted else None


async def _expect_retained(coordinator: Coordinator, partition: int, mark: int) -> None:
    kept = await read_retained(coordinator, partition)
    first = max(kept.first, kept.proposed)
    if mark + 1 < first:
        raise OutOfRange(partition=partition, asked=mark + 1, first=first, last=-1)


async def report_marks(coordinator: Coordinator, name: str, marks: Mapping[int, int], now_ms: int) -> Subscriber:
    """Raises `InvalidRequest` where there is no such subscriber: it was removed, and what it has not read may be gone; register it again."""
    path = subscriber_path(name)
    while True:
        node = await coordinator.get(path, latest=True)
        if node is None:
            raise InvalidRequest(reason=f"no such subscriber: {name}; it was never registered, or removed")
        wanted = Subscriber.from_bytes(node.data).reported(marks, now_ms)
        if await coordinator.set(path, wanted.to_bytes(), node.version) is not None:
            return wanted


async def remove_subscriber(coordinator: Coordinator, name: str, *, dry_run: bool = False) -> Subscriber:
    """What it was. From then on nothing is held for it. Raises `InvalidRequest` where there is none."""
    path = subscriber_path(name)
    while True:
        node = await coordinator.get(path, latest=True)
        if node is None:
            raise InvalidRequest(reason=f"no such subscriber: {name}")
        if dry_run or await coordinator.delete(path, node.version):
            return Subscriber.from_bytes(node.data)


async def read_retained(coordinator: Coordinator, partition: int) -> Retained:
    node = await coordinator.get(retained_path(partition))
    return Retained() if node is None else Retained.from_bytes(node.data)


async def propose_retained(coordinator: Coordinator, partition: int, first: int) -> tuple[Retained, int]:
    """Says that what is below `first` is about to go. What stood there, and the version for `settle_retained`; subscribers that are read after this
    are all that count."""
    path = retained_path(partition)
    while True:
        node = await coordinator.get(path)
        found = Retained() if node is None else Retained.from_bytes(node.data)
        wanted = Retained(found.first, max(found.first, first))
        version = await _put(coordinator, path, wanted.to_bytes(), None if node is None else node.version)
        if version is not None:
            return found, version


async def settle_retained(coordinator: Coordinator, partition: int, first: int, version: int) -> bool:
    """What is below `first` may go from now on, for good. False, and nothing may go, where somebody else has written since the proposal."""
    return await coordinator.set(retained_path(partition), Retained(first, first).to_bytes(), version) is not None


async def withdraw_proposal(coordinator: Coordinator, partition: int) -> None:
    """What was about to go stays. Who proposed it settles nothing any more."""
    node = await coordinator.get(retained_path(partition))
    found = Retained() if node is None else Retained.from_bytes(node.data)
    if node is not None and found.proposed != found.first:
        await settle_retained(coordinator, partition, found.first, node.version)
