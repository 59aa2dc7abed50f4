"""Subscribers in a coordinator, and the first retained id, on which they must agree with the owner that trims. `core.topics.subscribers` defines a
subscriber.

Registering and trimming use the coordinator in an order that leaves no gap. A subscriber writes its node, then reads what was proposed for trimming.
The owner writes its proposal, then reads the subscribers. Whichever wrote second sees the other: either the subscriber is seen before anything that
it has not read is trimmed, or it learns that it came too late.
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
    """All subscribers, by name."""
    nodes = await asyncio.gather(*(coordinator.get(f"{SUBSCRIBERS}/{name}") for name in await coordinator.children(SUBSCRIBERS)))
    return [Subscriber.from_bytes(node.data) for node in nodes if node is not None]


async def register_subscriber(coordinator: Coordinator, wanted: Subscriber) -> Subscriber:
    """The subscriber as it is then; an existing one keeps its marks if they are higher. From then on nothing above its marks is trimmed. Raises
    `OutOfRange` if something above a mark is trimmed or proposed already: then it is not registered, or unchanged."""
    path = subscriber_path(wanted.name)
    while True:
        node = await coordinator.get(path)
        before = None if node is None else Subscriber.from_bytes(node.data)
        after = wanted if before is None else before.registered(wanted.marks, wanted.labels, wanted.seen_ms)
        version = await _put(coordinator, path, after.to_bytes(), None if node is None else node.version)
        if version is None:
            continue
        known = {} if before is None else before.marks
        try:
            for partition, mark in after.marks.items():
                if partition not in known:
                    await _expect_retained(coordinator, partition, mark)
        except OutOfRange:
            # Unless another client has changed it since, which has then checked the proposals as well.
            if before is None:
                await coordinator.delete(path, version)
            else:
                await coordinator.set(path, before.to_bytes(), version)
            raise
        return after


async def _put(coordinator: Coordinator, path: str, wanted: bytes, version: int | None) -> int | None:
    """The version of what was written; None if another client was faster."""
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
    """Raises `InvalidRequest` if there is no such subscriber: it was removed, and what it has not read may be trimmed; register it again."""
    path = subscriber_path(name)
    while True:
        node = await coordinator.get(path, latest=True)
        if node is None:
            raise InvalidRequest(reason=f"no such subscriber: {name}; it was never registered, or removed")
        wanted = Subscriber.from_bytes(node.data).reported(marks, now_ms)
        if await coordinator.set(path, wanted.to_bytes(), node.version) is not None:
            return wanted


async def remove_subscriber(coordinator: Coordinator, name: str, *, dry_run: bool = False) -> Subscriber:
    """Returns what it was. From then on nothing is retained for it. Raises `InvalidRequest` if there is none."""
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
    """Announces that everything below `first` is about to be trimmed. Returns the previous value, and the version for `settle_retained`; only
    subscribers that are read after this count."""
    path = retained_path(partition)
    while True:
        node = await coordinator.get(path)
        found = Retained() if node is None else Retained.from_bytes(node.data)
        wanted = Retained(found.first, max(found.first, first))
        version = await _put(coordinator, path, wanted.to_bytes(), None if node is None else node.version)
        if version is not None:
            return found, version


async def settle_retained(coordinator: Coordinator, partition: int, first: int, version: int) -> bool:
    """Everything below `first` may be trimmed from now on, permanently. False if another client has written since the proposal; then nothing may be
    trimmed."""
    return await coordinator.set(retained_path(partition), Retained(first, first).to_bytes(), version) is not None


async def withdraw_proposal(coordinator: Coordinator, partition: int) -> None:
    """Cancels a proposal: nothing is trimmed, and its proposer can no longer settle it."""
    node = await coordinator.get(retained_path(partition))
    found = Retained() if node is None else Retained.from_bytes(node.data)
    if node is not None and found.proposed != found.first:
        await settle_retained(coordinator, partition, found.first, node.version)
