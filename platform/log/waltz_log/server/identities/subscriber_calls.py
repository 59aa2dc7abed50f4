"""Registers, reports and removes subscribers for the principals that they belong to, bounded in size and number.

A subscriber belongs to the principal that registered it. One that was registered before there were principals, or without TLS, is bound to the first
principal that registers it again or reports for it, and may read all its partitions. To every other principal it does not exist. Operators see and
remove all of them.
"""

from __future__ import annotations

import struct
from typing import Final

from waltz_log.coordination.entries import readable
from waltz_log.coordination.subscribers import (
    Held,
    read_retained,
    read_subscriber_entries,
    register_subscriber,
    remove_subscriber,
    report_marks,
    set_marks,
)
from waltz_log.core.metadata import ClusterParameters
from waltz_log.core.ports import Clock, Coordinator
from waltz_log.core.topics.subscribers import SUBSCRIBERS, Subscriber, UnreadableSubscriber, expect_bounded, subscriber_path
from waltz_log.errors import InvalidRequest, OutOfRange, PermissionDenied, ProtocolViolation, Unavailable
from waltz_log.security.access import AccessControl
from waltz_log.security.rules import Operation
from waltz_log.server.base.topics import ServedTopics
from waltz_log.server.identities.client_ids import ClientIds
from waltz_log.transport import waltz_pb2 as pb

__all__ = ["SubscriberCalls"]

SUBSCRIBERS_MAX: Final = 1_000
"""For a cluster. Each owner reads all of them when it may trim something."""

SUBSCRIBERS_OF_PRINCIPAL_MAX: Final = 100


class SubscriberCalls:
    """The subscriber calls of one server process."""

    def __init__(self, coordinator: Coordinator, access: AccessControl, topics: ServedTopics, client_ids: ClientIds, clock: Clock) -> None:
        self._coordinator = coordinator
        self._access = access
        self._topics = topics
        self._client_ids = client_ids
        self._clock = clock

    async def serve(self, request: pb.SubscribersRequest, cluster: ClusterParameters) -> pb.SubscribersResponse:
        """Raises `InvalidRequest`, `OutOfRange`, `PermissionDenied`, `Unavailable`."""
        actions = pb.SubscribersRequest
        if request.action == actions.ACTION_LIST:
            return pb.SubscribersResponse(subscribers=await self._listed())
        found: Subscriber | UnreadableSubscriber
        if request.action in (actions.ACTION_REGISTER, actions.ACTION_REGISTER_AT_START):
            found = await self._register(request, cluster, at_start=request.action == actions.ACTION_REGISTER_AT_START)
        elif request.action == actions.ACTION_REPORT:
            found = await report_marks(self._coordinator, request.name, _marks(request), self._clock.now_ms(), self._held(binds=True))
        elif request.action == actions.ACTION_SET:
            found = await set_marks(self._coordinator, request.name, _marks(request), self._held(binds=False))
        elif request.action == actions.ACTION_REMOVE:
            found = await remove_subscriber(self._coordinator, request.name, held=self._held(binds=False))
        else:
            raise ProtocolViolation(reason=f"no such action: {request.action}")
        return pb.SubscribersResponse(subscribers=[_state(found)])

    # ---- whose a subscriber is -----------------------------------------------------------------------------------------------------------------

    def _held(self, *, binds: bool) -> Held | None:
        """None: no call is judged. `binds`: a subscriber of no principal becomes the caller's if that may read all of it."""
        if not self._access.enforced:
            return None

        def judged(found: Subscriber | UnreadableSubscriber) -> Subscriber | UnreadableSubscriber | None:
            if isinstance(found, UnreadableSubscriber):
                return found if self._access.permits_cluster() else None
            if found.principal == self._client_ids.principal or (not binds and self._access.permits_cluster()):
                return found
            if binds and not found.principal and all(self._access.permits(Operation.READ, each) for each in found.marks):
                return found.bound(self._client_ids.principal)
            return None

        return judged

    async def _listed(self) -> list[pb.SubscriberState]:
        """Those that the caller may see: an operator all, everyone else its own."""
        found, unreadable = await read_subscriber_entries(self._coordinator)
        every = self._access.permits_cluster()
        seen = [_state(each) for each in found if every or each.principal == self._client_ids.principal]
        return seen + ([_state(each) for each in unreadable] if every else [])

    # ---- registering ---------------------------------------------------------------------------------------------------------------------------

    async def _register(self, request: pb.SubscribersRequest, cluster: ClusterParameters, *, at_start: bool) -> Subscriber:
        partitions = _partitions(request)
        for each in partitions:
            self._access.expect(each, Operation.READ)
            self._topics.expect_allowed(each, "read", self._client_ids.principal)
        if beyond := [each for each in partitions if not 0 <= each < cluster.partitions]:
            raise InvalidRequest(reason=f"no such partition: partition={beyond[0]} partitions={cluster.partitions}")
        labels = dict(request.labels)
        expect_bounded(labels)
        await self._expect_room(request.name)
        while True:
            marks = await self._starts(partitions) if at_start else _marks(request)
            now_ms = self._clock.now_ms()
            wanted = Subscriber(request.name, marks, labels, now_ms, now_ms, self._client_ids.principal)
            try:
                return await register_subscriber(self._coordinator, wanted, self._held(binds=True))
            except OutOfRange:
                if not at_start:
                    raise  # otherwise it was trimmed meanwhile

    async def _starts(self, partitions: list[int]) -> dict[int, int]:
        kept = {partition: await read_retained(self._coordinator, partition) for partition in sorted(set(partitions))}
        return {partition: max(each.first, each.proposed) - 1 for partition, each in kept.items()}

    async def _expect_room(self, name: str) -> None:
        """Raises `Unavailable` for a new subscriber above the limits, and `PermissionDenied` for the name of another principal's."""
        path = subscriber_path(name)
        node = await self._coordinator.get(path, latest=True)
        known, held = readable(path, node, Subscriber.from_bytes), self._held(binds=True)
        if node is not None:
            if held is not None and held(known or UnreadableSubscriber(name, "")) is None:
                raise PermissionDenied(principal=self._client_ids.principal or None, operation="register the subscriber", resource=name)
            return
        names = await self._coordinator.children(SUBSCRIBERS)
        if len(names) >= SUBSCRIBERS_MAX:
            raise Unavailable(reason=f"the cluster has {SUBSCRIBERS_MAX} subscribers, which is the limit")
        if self._access.enforced:
            found, _ = await read_subscriber_entries(self._coordinator)
            if sum(each.principal == self._client_ids.principal for each in found) >= SUBSCRIBERS_OF_PRINCIPAL_MAX:
                raise Unavailable(reason=f"this principal has {SUBSCRIBERS_OF_PRINCIPAL_MAX} subscribers, which is the limit")


def _partitions(request: pb.SubscribersRequest) -> list[int]:
    if len(request.partitions) % 4:
        raise ProtocolViolation(reason=f"column of {len(request.partitions)} bytes does not hold partition numbers")
    return list(struct.unpack(f">{len(request.partitions) // 4}i", request.partitions))


def _marks(request: pb.SubscribersRequest) -> dict[int, int]:
    partitions = _partitions(request)
    if len(request.marks) != 8 * len(partitions):
        raise ProtocolViolation(reason=f"column of {len(request.marks)} bytes does not hold the marks of {len(partitions)} partitions")
    return dict(zip(partitions, struct.unpack(f">{len(partitions)}q", request.marks), strict=True))


def _state(found: Subscriber | UnreadableSubscriber) -> pb.SubscriberState:
    if isinstance(found, UnreadableSubscriber):
        return pb.SubscriberState(name=found.name, unreadable=found.reason)
    partitions = sorted(found.marks)
    return pb.SubscriberState(
        name=found.name,
        partitions=struct.pack(f">{len(partitions)}i", *partitions),
        marks=struct.pack(f">{len(partitions)}q", *(found.marks[each] for each in partitions)),
        labels=found.labels,
        created_ms=found.created_ms,
        seen_ms=found.seen_ms,
        principal=found.principal,
    )
