"""Subscribers in a coordinator, and the first retained id, on which they must agree with the owner that trims. `core.topics.subscribers` defines a
subscriber.

Registering and trimming use the coordinator in an order that leaves no gap. A subscriber writes its node, then reads what was proposed for trimming.
The owner writes its proposal, then reads the subscribers. Whichever wrote second sees the other: either the subscriber is seen before anything that
it has not read is trimmed, or it learns that it came too late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TypeAlias

from waltz_log.coordination.entries import readable
from waltz_log.coordination.followed import RETAINED_MARKS, KnownValues
from waltz_log.core.ports import Coordinator, Node
from waltz_log.core.retention import Retained, retained_path
from waltz_log.core.topics.subscribers import SUBSCRIBERS, Subscriber, UnreadableSubscriber, subscriber_path
from waltz_log.errors import InvalidRequest, OutOfRange

__all__ = [
    "Held",
    "propose_retained",
    "read_retained",
    "read_subscriber_entries",
    "read_subscribers",
    "register_subscriber",
    "remove_subscriber",
    "report_marks",
    "set_marks",
    "settle_retained",
    "withdraw_proposal",
]


Held: TypeAlias = Callable[[Subscriber | UnreadableSubscriber], Subscriber | UnreadableSubscriber | None]
"""Whose a subscriber is: returns it as it is to be from now on, or None if it does not exist for the caller."""


async def read_subscribers(coordinator: Coordinator) -> list[Subscriber]:
    """All subscribers, by name, without the entries that are none."""
    found, _ = await read_subscriber_entries(coordinator)
    return found


async def read_subscriber_entries(coordinator: Coordinator) -> tuple[list[Subscriber], list[UnreadableSubscriber]]:
    """All subscribers, by name, and the entries that are none."""
    names = await coordinator.children(SUBSCRIBERS)
    nodes = await asyncio.gather(*(coordinator.get(f"{SUBSCRIBERS}/{name}") for name in names))
    entries = [_entry(name, node) for name, node in zip(names, nodes, strict=True) if node is not None]
    return [each for each in entries if isinstance(each, Subscriber)], [each for each in entries if isinstance(each, UnreadableSubscriber)]


def _entry(name: str, node: Node) -> Subscriber | UnreadableSubscriber:
    found = readable(f"{SUBSCRIBERS}/{name}", node, Subscriber.from_bytes)
    if found is None:
        return UnreadableSubscriber(name, "it cannot be parsed")
    return found if found.name == name else UnreadableSubscriber(name, "it has another name")


async def register_subscriber(coordinator: Coordinator, wanted: Subscriber, held: Held | None = None) -> Subscriber:
    """The subscriber as it is then; an existing one keeps its marks if they are higher. From then on nothing above its marks is trimmed. Raises
    `OutOfRange` if something above a mark is trimmed or proposed already: then it is not registered, or unchanged. Raises `InvalidRequest` for the
    name of an entry that is no subscriber, or is not the caller's (`held`)."""
    path = subscriber_path(wanted.name)
    while True:
        node = await coordinator.get(path)
        before = None if node is None else _of_caller(wanted.name, node, held)
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


def _of_caller(name: str, node: Node, held: Held | None) -> Subscriber:
    """Raises `InvalidRequest`, in the same words for one that is not the caller's and one that is not there."""
    entry = _entry(name, node)
    found = entry if held is None else held(entry)
    if isinstance(found, UnreadableSubscriber):
        raise InvalidRequest(reason=f"the entry is not a valid subscriber: {name}: {found.reason}; remove it first")
    if found is None:
        raise _no_such(name)
    return found


def _no_such(name: str) -> InvalidRequest:
    return InvalidRequest(reason=f"no such subscriber: {name}; it was never registered, or removed")


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


async def report_marks(coordinator: Coordinator, name: str, marks: Mapping[int, int], now_ms: int, held: Held | None = None) -> Subscriber:
    """Raises `InvalidRequest` if there is no such subscriber: it was removed, and what it has not read may be trimmed; register it again.
    `held`: whose it is."""
    path = subscriber_path(name)
    while True:
        node = await coordinator.get(path, latest=True)
        if node is None:
            raise _no_such(name)
        wanted = _of_caller(name, node, held).reported(marks, now_ms)
        if await coordinator.set(path, wanted.to_bytes(), node.version) is not None:
            return wanted


async def set_marks(coordinator: Coordinator, name: str, marks: Mapping[int, int], held: Held | None = None) -> Subscriber:
    """Marks that an operator chose, also lower ones. Raises `OutOfRange`, and changes nothing, if something above a mark is trimmed or proposed
    already: it writes first and then reads the proposals, as `register_subscriber` does. Raises `InvalidRequest` as `report_marks` does."""
    path = subscriber_path(name)
    while True:
        node = await coordinator.get(path, latest=True)
        if node is None:
            raise _no_such(name)
        before = _of_caller(name, node, held)
        after = before.placed(marks)
        version = await coordinator.set(path, after.to_bytes(), node.version)
        if version is None:
            continue
        try:
            for partition, mark in marks.items():
                if mark < before.marks[partition]:
                    await _expect_retained(coordinator, partition, mark)
        except OutOfRange:
            await coordinator.set(path, before.to_bytes(), version)  # unless another client has changed it since
            raise
        return after


async def remove_subscriber(
    coordinator: Coordinator, name: str, *, dry_run: bool = False, held: Held | None = None
) -> Subscriber | UnreadableSubscriber:
    """Returns what it was; an entry that is no subscriber is removed too. From then on nothing is retained for it. Raises `InvalidRequest` if
    there is none."""
    if "/" in name or name in ("", ".", ".."):
        raise _no_such(name)
    path = f"{SUBSCRIBERS}/{name}"
    while True:
        node = await coordinator.get(path, latest=True)
        if node is None:
            raise _no_such(name)
        entry = _entry(name, node)
        found = entry if held is None else held(entry)
        if found is None:
            raise _no_such(name)
        if dry_run or await coordinator.delete(path, node.version):
            return found


async def read_retained(coordinator: Coordinator, partition: int, known: KnownValues | None = None) -> Retained:
    """`known`: what this process knows of the values of the coordinator. Raises `Unavailable` for a value that cannot be read, if none is known."""
    values = known or KnownValues()
    return _retained(await values.get(coordinator, RETAINED_MARKS, str(partition)), partition, values)


def _retained(node: Node | None, partition: int, known: KnownValues | None) -> Retained:
    values = known or KnownValues()
    if node is None:
        return values.accept(RETAINED_MARKS, node, str(partition)) or Retained()
    return values.expect(RETAINED_MARKS, node, str(partition))


async def propose_retained(coordinator: Coordinator, partition: int, first: int, known: KnownValues | None = None) -> tuple[Retained, int]:
    """Announces that everything below `first` is about to be trimmed. Returns the previous value, and the version for `settle_retained`; only
    subscribers that are read after this count."""
    path = retained_path(partition)
    while True:
        node = await coordinator.get(path)
        found = _retained(node, partition, known)
        wanted = Retained(found.first, max(found.first, first))
        version = await _put(coordinator, path, wanted.to_bytes(), None if node is None else node.version)
        if version is not None:
            return found, version


async def settle_retained(coordinator: Coordinator, partition: int, first: int, version: int) -> bool:
    """Everything below `first` may be trimmed from now on, permanently. False if another client has written since the proposal; then nothing may be
    trimmed."""
    return await coordinator.set(retained_path(partition), Retained(first, first).to_bytes(), version) is not None


async def withdraw_proposal(coordinator: Coordinator, partition: int, known: KnownValues | None = None) -> None:
    """Cancels a proposal: nothing is trimmed, and its proposer can no longer settle it."""
    node = await coordinator.get(retained_path(partition))
    found = _retained(node, partition, known)
    if node is not None and found.proposed != found.first:
        await settle_retained(coordinator, partition, found.first, node.version)
