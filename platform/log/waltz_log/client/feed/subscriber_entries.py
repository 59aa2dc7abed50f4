"""The entries of subscribers as log servers show them: to an operator also those that are no subscribers, to list and remove them."""

from __future__ import annotations

import struct
from collections.abc import Mapping

from waltz_log.client.owners.owners import Owners
from waltz_log.core.topics.subscribers import Subscriber, UnreadableSubscriber
from waltz_log.errors import InvalidRequest, ProtocolViolation
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.methods import SUBSCRIBERS

__all__ = ["ask_subscribers", "remove_entry", "set_entry_marks", "subscriber_entries", "subscriber_of"]


async def ask_subscribers(owners: Owners, request: pb.SubscribersRequest, timeout_s: float) -> pb.SubscribersResponse:
    request.cluster_key = owners.parameters.key.bytes
    return await owners.call_any(SUBSCRIBERS, request, timeout_s=timeout_s)


async def subscriber_entries(owners: Owners, timeout_s: float) -> tuple[list[Subscriber], list[UnreadableSubscriber]]:
    """The subscribers of this principal, for an operator all, and the entries that are none."""
    states = (await ask_subscribers(owners, pb.SubscribersRequest(action=pb.SubscribersRequest.ACTION_LIST), timeout_s)).subscribers
    unreadable = [UnreadableSubscriber(each.name, each.unreadable) for each in states if each.unreadable]
    return [subscriber_of(each) for each in states if not each.unreadable], unreadable


async def remove_entry(owners: Owners, name: str, timeout_s: float, *, dry_run: bool = False) -> Subscriber | UnreadableSubscriber:
    """Returns what it was. `dry_run`: removes nothing. Raises `InvalidRequest` if there is none, or it is another principal's."""
    known, unreadable = await subscriber_entries(owners, timeout_s)
    entries: dict[str, Subscriber | UnreadableSubscriber] = {each.name: each for each in known}
    entries |= {each.name: each for each in unreadable}
    if name not in entries:
        raise InvalidRequest(reason=f"no such subscriber: {name}; it was never registered, or removed")
    if not dry_run:
        await ask_subscribers(owners, pb.SubscribersRequest(action=pb.SubscribersRequest.ACTION_REMOVE, name=name), timeout_s)
    return entries[name]


async def set_entry_marks(owners: Owners, name: str, marks: Mapping[int, int], timeout_s: float) -> Subscriber:
    """Sets the last transaction of each partition that the subscriber does not read again. Returns it as it is then. Raises `InvalidRequest` if there
    is none, or it is another principal's, and `OutOfRange` below what is retained."""
    partitions = sorted(marks)
    request = pb.SubscribersRequest(
        action=pb.SubscribersRequest.ACTION_SET,
        name=name,
        partitions=struct.pack(f">{len(partitions)}i", *partitions),
        marks=struct.pack(f">{len(partitions)}q", *(marks[each] for each in partitions)),
    )
    return subscriber_of((await ask_subscribers(owners, request, timeout_s)).subscribers[0])


def subscriber_of(state: pb.SubscriberState) -> Subscriber:
    """Raises `ProtocolViolation`."""
    marks = dict(zip(_column(state.partitions, "i"), _column(state.marks, "q"), strict=True))
    return Subscriber(state.name, marks, dict(state.labels), state.created_ms, state.seen_ms, state.principal)


def _column(data: bytes, kind: str) -> tuple[int, ...]:
    width = struct.calcsize(f">{kind}")
    if len(data) % width:
        raise ProtocolViolation(reason=f"column of {len(data)} bytes is not rows of {width}")
    return struct.unpack(f">{len(data) // width}{kind}", data)
