"""Topics with their policies, and subscribers with their lag."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from waltz_log.console.console import Console
from waltz_log.console.pages.parameters import find_topic
from waltz_log.console.pages.partitions import row_of
from waltz_log.console.reading.sampling import Sample
from waltz_log.core.topics.catalogue import Policies, Topic
from waltz_log.core.topics.subscribers import Subscriber

__all__ = ["SubscriberRow", "routes", "subscriber_rows"]


@dataclass(frozen=True, slots=True)
class SubscriberRow:
    """`lag`: transactions that it has not reported as read, of the partitions whose mark is known; `unknown`: those whose mark is not."""

    subscriber: Subscriber
    topics: tuple[str, ...]
    lag: int
    unknown: int
    silent_s: float


def subscriber_rows(console: Console, sample: Sample, topic: Topic | None = None) -> list[SubscriberRow]:
    rows = []
    for each in sample.subscribers:
        marks = {part: mark for part, mark in each.marks.items() if topic is None or part in topic.partitions}
        if topic is not None and not marks:
            continue
        known = {part: console.sampler.history.mark(part) for part in marks}
        lag = sum(max(0, high - marks[part]) for part, high in known.items() if high is not None)
        names = tuple(sorted({str(found[0].name) for part in marks if (found := sample.topic_by_partition.get(part)) is not None}))
        silent_s = max(0.0, (console.clock.now_ms() - each.seen_ms) / 1000)
        rows.append(SubscriberRow(each, names, lag, sum(high is None for high in known.values()), silent_s))
    return sorted(rows, key=lambda row: -row.lag)


@dataclass(frozen=True, slots=True)
class TopicRow:
    """`bytes`: of a replica of each partition. `appended`: transactions per second, None if no partition's owner answers."""

    topic: Topic
    state: str
    transactions: int
    bytes: int | None
    hidden: bool
    appended: float | None


def _topic_row(console: Console, sample: Sample, topic: Topic, state: str) -> TopicRow:
    held, sizes = 0, []
    for at, partition in enumerate(topic.partitions):
        mark = console.sampler.history.mark(partition)
        opened = sample.opened.get(partition)
        upkeep = None if opened is None else opened.upkeep
        first = max(topic.begin_of(at), (upkeep.first or 0) if upkeep is not None else 0)
        held += 0 if mark is None else max(0, mark + 1 - first)
        if upkeep is not None and upkeep.replicas:
            sizes.append(max(each.bytes for each in upkeep.replicas.values()))
    hidden = bool(topic.partitions) and console.hides(sample, topic.partitions[0])
    return TopicRow(topic, state, held, sum(sizes) if sizes else None, hidden, console.sampler.history.rate(topic.partitions))


def policy_rows(policies: Policies) -> list[tuple[str, object, bool]]:
    """Name, value, and whether it differs from the default."""
    defaults = asdict(Policies())
    return [(name, value, value != defaults[name]) for name, value in asdict(policies).items()]


def routes(console: Console) -> list[Route]:
    async def listing(request: Request) -> Response:
        sample = await console.sampler.sample()
        rows = [_topic_row(console, sample, each, "active") for each in sample.catalogue.topics.values()]
        rows += [_topic_row(console, sample, each, "pending") for each in sample.catalogue.pending.values()]
        free = len(sample.survey.partitions) - sum(len(row.topic.partitions) for row in rows)
        return console.page(
            request,
            "topics.html",
            title="Topics",
            rows=sorted(rows, key=lambda row: str(row.topic.name)),
            free=max(0, free),
            subscribers=subscriber_rows(console, sample),
        )

    async def one(request: Request) -> Response:
        sample = await console.sampler.sample()
        topic = find_topic(sample, f"{request.path_params['namespace']}/{request.path_params['topic']}")
        assert topic is not None
        partitions = [row_of(console, sample, sample.survey.partitions[each]) for each in topic.partitions if each < len(sample.survey.partitions)]
        return console.page(
            request,
            "topic.html",
            title=str(topic.name),
            row=_topic_row(console, sample, topic, "active"),
            policies=policy_rows(topic.policies),
            partitions=partitions,
            subscribers=subscriber_rows(console, sample, topic),
        )

    return [Route("/topics", listing), Route("/topics/{namespace}/{topic}", one)]
