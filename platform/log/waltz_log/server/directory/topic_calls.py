"""Shows, creates, changes and deletes topics for callers that may do so (docs/guides/topics.md).

A topic is shown to a caller that may do anything with any of its partitions, and to no other. Whether there is a topic of a name is not said to a
caller that may not manage it. A caller that may not administer the cluster gets empty log partitions alone, of which it does not choose, and not more
than `MANAGED_TOPICS_MAX` topics and half of the log's partitions.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Final, cast

from waltz_log.coordination.partition_contents import PartitionContents
from waltz_log.coordination.topic_creation import Existing, TopicPlan, create_topic, plan_topic
from waltz_log.coordination.topics import change_catalogue, pool_of, read_catalogue
from waltz_log.core.ports import Clock, Coordinator, Network
from waltz_log.core.topics.catalogue import Catalogue, Policies, Topic
from waltz_log.core.topics.policy_texts import policy_values
from waltz_log.core.topics.topic_names import TopicName
from waltz_log.errors import ClusterUnavailable, InvalidRequest, NoSuchTopic, PermissionDenied, ProtocolViolation
from waltz_log.security.access import AccessControl
from waltz_log.security.audit_log import acted
from waltz_log.security.callers import caller
from waltz_log.security.identity import named_principal
from waltz_log.server.base.fair_places import FairPlaces
from waltz_log.server.base.topics import ServedTopics
from waltz_log.transport import waltz_pb2 as pb

__all__ = ["TopicCalls"]

MANAGED_TOPICS_MAX: Final = 100
"""That a caller may manage when it creates one more."""

PROPERTIES_BYTES_MAX: Final = 4096
"""For one topic of a caller that may not administer: all topics are one value of the coordinator, of at most a megabyte."""

CREATING_MAX: Final = 4
"""Creations at once. Others wait, their principals in turns."""

READ_S: Final = 1.0
"""For the coordinator to answer."""

ASK_S: Final = 3.0
"""For the owners of the log partitions to say what is in them."""


class TopicCalls:
    """The topic calls of one server process."""

    def __init__(self, coordinator: Coordinator, network: Network, topics: ServedTopics, access: AccessControl, clock: Clock) -> None:
        self._coordinator = coordinator
        self._topics = topics
        self._network = network
        self._access = access
        self._clock = clock
        self._creating = FairPlaces(CREATING_MAX)

    async def serve(self, request: pb.TopicsRequest) -> pb.TopicsResponse:
        """Raises `InvalidRequest`, `InvalidSetting`, `NoSuchTopic`, `PermissionDenied`, `Unavailable`."""
        self._access.expect_member()
        actions = pb.TopicsRequest
        if request.action == actions.ACTION_LIST:
            return await self._listed()
        calls = {actions.ACTION_CREATE: self._create, actions.ACTION_ALTER: self._alter, actions.ACTION_DELETE: self._delete}
        if request.action not in calls:
            raise ProtocolViolation(reason=f"no such action: {request.action}")
        self._access.expect_manage(request.topic)
        name = TopicName.parse(request.topic)
        answer = await calls[request.action](name, request)
        if not request.dry_run:
            peer = caller()
            action = pb.TopicsRequest.Action.Name(request.action).removeprefix("ACTION_").lower()
            acted("topic request", action=action, topic=str(name), principal=named_principal(peer))
        return answer

    async def _listed(self) -> pb.TopicsResponse:
        catalogue = await self._latest()
        active = [_state(each) for each in catalogue.topics.values() if self._sees(each.name)]
        return pb.TopicsResponse(topics=active + [_state(each, pending=True) for each in catalogue.pending.values() if self._sees(each.name)])

    async def _latest(self) -> Catalogue:
        """The topics as the coordinator has them; while it is away, as this server knows them."""
        if not self._coordinator.reachable:
            return self._topics.catalogue
        try:
            async with asyncio.timeout(READ_S):
                return await read_catalogue(self._coordinator)
        except (TimeoutError, ClusterUnavailable):
            return self._topics.catalogue

    def _sees(self, name: TopicName) -> bool:
        return self._access.sees(str(name), caller())

    # ---- creating ------------------------------------------------------------------------------------------------------------------------------

    async def _create(self, name: TopicName, request: pb.TopicsRequest) -> pb.TopicsResponse:
        plan = _plan(name, request, discloses=self._access.permits_cluster())
        if not plan.discloses:
            self._expect_modest(plan, await read_catalogue(self._coordinator), len(await pool_of(self._coordinator)))
        contents: list[PartitionContents] = []
        peer = caller()
        async with self._creating.place(named_principal(peer) or ""):
            about = (self._coordinator, self._network, plan)
            if request.dry_run:
                topic, contents = await plan_topic(*about, now_ms=self._clock.now_ms, timeout_s=ASK_S)
            else:
                topic = await create_topic(*about, now_ms=self._clock.now_ms, timeout_s=ASK_S)
        return pb.TopicsResponse(topics=[_state(topic)], contents=map(_contents, contents if plan.discloses else ()))

    def _expect_modest(self, plan: TopicPlan, catalogue: Catalogue, partitions: int) -> None:
        """Raises `PermissionDenied` and `InvalidRequest` for what only a caller that may administer gets."""
        if plan.log_partitions is not None:
            peer = caller()
            what = "name log partitions, which needs the right to administer,"
            raise PermissionDenied(principal=named_principal(peer), operation=what, resource=str(plan.name))
        size = sum(len(key.encode()) + len(value.encode()) for key, value in plan.properties.items())
        if size > PROPERTIES_BYTES_MAX:
            raise InvalidRequest(reason=f"the properties of a topic have at most {PROPERTIES_BYTES_MAX} bytes, these have {size}")
        managed = [each for each in (*catalogue.topics.values(), *catalogue.pending.values()) if self._access.manages(str(each.name))]
        others = [each for each in managed if each.name != plan.name]
        if len(others) >= MANAGED_TOPICS_MAX:
            raise InvalidRequest(reason=f"this principal manages {MANAGED_TOPICS_MAX} topics, which is the limit; an operator can create more")
        used = sum(len(each.partitions) for each in others)
        if used + plan.partitions > max(1, partitions // 2):
            raise InvalidRequest(
                reason=f"the topics that this principal manages may have half of the {partitions} log partitions: they have {used}, and "
                f"{plan.partitions} more are wanted; an operator can create more"
            )

    # ---- changing ------------------------------------------------------------------------------------------------------------------------------

    async def _alter(self, name: TopicName, request: pb.TopicsRequest) -> pb.TopicsResponse:
        changes = policy_values(request.policies)
        before: list[Topic] = []

        def altered(found: Catalogue) -> tuple[Catalogue, Topic]:
            before[:] = [found.find(name)]
            return found.with_policies(name, changes)

        topic = await self._changed(name, altered, dry_run=request.dry_run)
        return pb.TopicsResponse(topics=[_state(topic)], before=_state(before[0]))

    async def _delete(self, name: TopicName, request: pb.TopicsRequest) -> pb.TopicsResponse:
        topic = await self._changed(name, lambda found: found.without(name), dry_run=request.dry_run)
        return pb.TopicsResponse(topics=[_state(topic)])

    async def _changed(self, name: TopicName, change: Callable[[Catalogue], tuple[Catalogue, Topic]], *, dry_run: bool) -> Topic:
        """An unknown topic is compared with those that the caller sees: the error suggests none of the others."""
        try:
            return await change_catalogue(self._coordinator, change, dry_run=dry_run)
        except NoSuchTopic:
            seen = [str(each) for each in (await read_catalogue(self._coordinator)).topics if self._sees(each)]
            raise NoSuchTopic.among(str(name), seen) from None


def _plan(name: TopicName, request: pb.TopicsRequest, *, discloses: bool) -> TopicPlan:
    wanted = request.plan
    if wanted.existing not in ("", "keep", "discard"):
        raise ProtocolViolation(reason="what is in the log partitions is kept or discarded")
    return TopicPlan(
        name,
        wanted.partitions,
        wanted.type,
        wanted.keyed,
        dict(wanted.properties),
        Policies().changed(policy_values(request.policies)),
        tuple(wanted.log_partitions) or None,
        cast("Existing | None", wanted.existing or None),
        None if not wanted.discards else wanted.discards - 1,
        discloses=discloses,
    )


def _state(topic: Topic, *, pending: bool = False) -> pb.TopicState:
    return pb.TopicState(row=json.dumps(topic.row()).encode(), pending=pending)


def _contents(found: PartitionContents) -> pb.PartitionContents:
    known: Mapping[str, int] = {name: -1 if value is None else value for name, value in found.figures.items()}
    return pb.PartitionContents(partition=found.partition, first=found.first, last=found.last, replicas=found.replicas, **known)
