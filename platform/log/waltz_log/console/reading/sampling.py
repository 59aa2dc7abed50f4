"""Surveys the cluster in the background. So a page is ready at once and shows the time of its data, even if the cluster does not answer.

One survey at a time. A survey that fails leaves the last good one in place and says why there is no newer one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from time import monotonic

from waltz_log.background_tasks import BackgroundTask
from waltz_log.client.feed.subscriber_entries import subscriber_entries
from waltz_log.console.reading.cluster_values import ClusterValues
from waltz_log.console.reading.known_nodes import KnownNodes, MissingNode
from waltz_log.console.reading.link import ClusterLink
from waltz_log.console.reading.sampled_history import History, partitions_of
from waltz_log.coordination.placement import read_moves
from waltz_log.coordination.survey import Survey
from waltz_log.coordination.survey import survey as survey_cluster
from waltz_log.coordination.topics import read_catalogue
from waltz_log.core.metadata import ReplicaMove
from waltz_log.core.ports import Clock
from waltz_log.core.status.server_statistics import OpenPartitionStatistics, OwnerStatistics, ServerStatistics
from waltz_log.core.topics.catalogue import Catalogue, Topic
from waltz_log.core.topics.subscribers import Subscriber
from waltz_log.errors import Unavailable, WaltzError
from waltz_log.loggers import get_logger
from waltz_log.statistics import rules_of

__all__ = ["Sample", "Sampler"]

log = get_logger(__name__)

WATCHED_S = 30.0
"""If no page was requested for this time, surveys become rare."""

RARE_FACTOR = 5
"""The interval of rare surveys is this many times longer."""

SUBSCRIBERS_S = 2.0
"""For the subscribers, which log servers read from the coordinator."""

OLD_S = 5.0
"""Values older than this are said to be old."""

NO_ANSWER = "no log server and no storage node answers"

FIRST_WAIT_S = 5.0
"""A page that is requested before the first survey waits this long for it."""


@dataclass(frozen=True)
class Sample:
    """The cluster at one time. `at_ms`: since 1970."""

    survey: Survey
    catalogue: Catalogue
    subscribers: tuple[Subscriber, ...]
    at_ms: int
    replica_moves: Mapping[int, ReplicaMove] = field(default_factory=dict)
    """By partition: the move of a replica that is in progress, as `waltz drain` and `waltz rebalance` record it."""
    missing: tuple[MissingNode, ...] = ()
    """Nodes that the console saw in the last day, and that the cluster does not list any more."""

    @cached_property
    def opened(self) -> Mapping[int, OpenPartitionStatistics]:
        """By partition: what its owner reports."""
        return partitions_of(self.survey)

    @cached_property
    def owners(self) -> tuple[OwnerStatistics, ...]:
        """The history of owners that all servers together know."""
        merged: tuple[OwnerStatistics, ...] = ()
        rule = rules_of(ServerStatistics)["owners"]
        for server in self.survey.servers:
            merged = rule.merge(merged, server.statistics.owners)
        return merged

    @cached_property
    def moves(self) -> tuple[OwnerStatistics, ...]:
        """Changes of owner, the newest first."""
        return tuple(sorted((each for each in self.owners if each.exact), key=lambda each: -each.since_ms))

    @cached_property
    def topic_by_partition(self) -> Mapping[int, tuple[Topic, int]]:
        """The topic of each log partition that has one, with the partition's number in it."""
        return {partition: (topic, at) for topic in self.catalogue.topics.values() for at, partition in enumerate(topic.partitions)}


class Sampler:
    def __init__(self, link: ClusterLink, clock: Clock, interval_s: float) -> None:
        self.history = History()
        self._nodes = KnownNodes()
        self.error: str | None = None
        """Why there is no newer sample; None: there is."""
        self.warning: str | None = None
        """What the newest sample lacks; None: nothing."""
        self._link = link
        self._clock = clock
        self._interval_s = interval_s
        self._known: ClusterValues | None = None
        self._sample: Sample | None = None
        self._arrived = asyncio.Event()
        self._wanted = asyncio.Event()
        self._watched_s = 0.0
        self._task: BackgroundTask | None = None

    def start(self) -> None:
        self._task = BackgroundTask("console surveys", self._run)

    async def close(self) -> None:
        if self._task is not None:
            await self._task.end()

    async def sample(self, *, watched: bool = True) -> Sample:
        """The newest sample. `watched`: a page shows it, so surveys become more frequent. Raises `Unavailable` if there is none yet."""
        if watched:
            self.watch()
        if self._sample is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(FIRST_WAIT_S):
                    await self._arrived.wait()
        if self._sample is None:
            raise Unavailable(reason=f"the cluster has not answered yet: {self.error or 'still connecting'}")
        return self._sample

    def watch(self) -> None:
        """A page is open: surveys become more frequent."""
        if monotonic() - self._watched_s > self._interval_s * RARE_FACTOR:
            self._wanted.set()
        self._watched_s = monotonic()

    async def fresh(self) -> Sample:
        """A new sample, for the page after an action."""
        await self._survey()
        return await self.sample()

    @property
    def age_s(self) -> float | None:
        """Age of the newest sample; None if there is none."""
        return None if self._sample is None else max(0.0, (self._clock.now_ms() - self._sample.at_ms) / 1000)

    async def _run(self) -> None:
        while True:
            await self._survey()
            watched = monotonic() - self._watched_s < WATCHED_S
            self._wanted.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s if watched else self._interval_s * RARE_FACTOR):
                    await self._wanted.wait()

    async def _survey(self) -> None:
        try:
            (values, problem), (subscribers, lacking) = await asyncio.gather(self._values(), self._subscribers())
            found = await survey_cluster(values, self._link.network, self._link.address)
            catalogue, moves = await read_catalogue(values), await read_moves(values)
        except WaltzError as error:
            self._fail(str(error))
        except Exception as error:  # a sample that cannot be read must not end all later ones
            log.exception("survey failed")
            self._fail(f"the console could not read what the cluster reported: {type(error).__name__}")
        else:
            answers = [*(each.answers for each in found.servers), *(each.answers for each in found.storages)]
            if problem is not None and not any(answers):
                self._fail(NO_ANSWER)  # only what was known before: it is not of now
                return
            at_ms = self._clock.now_ms()
            self.history.add(found, at_ms)
            self._sample = Sample(found, catalogue, subscribers, at_ms, moves, self._nodes.add(found, at_ms))
            self._arrived.set()
            self.error = None
            self._warn(problem or lacking)

    async def _values(self) -> tuple[ClusterValues, str | None]:
        """The newest values, and what is wrong with them. Without a log server, those that one answered last: the nodes are asked themselves."""
        try:
            self._known = values = await self._link.values()
        except WaltzError as error:
            if self._known is None or not error.retriable:
                raise
            return self._known, f"no log server answers, so owners and topics are those of an earlier survey: {error}"
        old = values.age_s > OLD_S
        return values, f"the log servers have not reached the coordinator for {values.age_s:.0f} s" if old else None

    async def _subscribers(self) -> tuple[tuple[Subscriber, ...], str | None]:
        """Those of the last survey while the coordinator, which only log servers reach, does not answer them."""
        try:
            async with asyncio.timeout(SUBSCRIBERS_S):
                return tuple((await subscriber_entries(await self._link.owners(), SUBSCRIBERS_S))[0]), None
        except (WaltzError, TimeoutError) as error:
            known = () if self._sample is None else self._sample.subscribers
            return known, f"the subscribers are not known: {str(error) or 'no answer in time'}"

    def _fail(self, reason: str) -> None:
        if self.error != reason:
            log.warning("cluster not surveyed", reason=reason)
        self.error = reason
        self.history.gap(self._clock.now_ms())

    def _warn(self, reason: str | None) -> None:
        """What the newest sample lacks; None: nothing."""
        if reason is not None and self.warning is None:
            log.warning("cluster surveyed in part", reason=reason)
        self.warning = reason
