"""The transaction browser: the newest transactions of the log, of a topic or of a partition, by id, time, key, header or text."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any  # a template's values
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from waltz_log.console.console import Console
from waltz_log.console.pages.parameters import cursor_text, find_topic, number_of, parse_cursor, parse_time, scope_of, text_of
from waltz_log.console.payloads import preview
from waltz_log.console.reading.criteria import Criteria
from waltz_log.console.reading.sampling import Sample
from waltz_log.console.reading.transaction_reader import Entry, Found
from waltz_log.core.formats.envelope import split_keyed
from waltz_log.core.topics.catalogue import Topic
from waltz_log.core.topics.topic_names import partition_of_key
from waltz_log.errors import InvalidRequest

__all__ = ["Line", "line_of", "routes"]

PAGE = 50
SEARCH_BUDGET_S = 0.15
"""For one request of a search; the page asks again by itself until it has a page full, or everything was compared."""


@dataclass(frozen=True, slots=True)
class Line:
    """A transaction as a list shows it. `key`: of keyed topics; `preview`: the beginning of its value."""

    entry: Entry
    topic: str | None
    key: str | None
    preview: str
    hidden: bool
    tombstone: bool


@dataclass(frozen=True, slots=True)
class Query:
    """What the address of the page asks for."""

    topic: Topic | None
    partition: int | None
    transaction_id: int | None
    time_ms: int | None
    criteria: Criteria
    cursor: dict[int, int]


def line_of(console: Console, sample: Sample, entry: Entry) -> Line:
    found = sample.topic_by_partition.get(entry.partition)
    topic = None if found is None else found[0]
    hidden = console.hides(sample, entry.partition)
    keyed = split_keyed(entry.data) if entry.data is not None and topic is not None and topic.keyed else None
    value = keyed.value if keyed is not None else entry.data
    shown = "" if hidden or value is None else preview(value)
    key = None if keyed is None or hidden else preview(keyed.key, 64)
    return Line(entry, None if topic is None else str(topic.name), key, shown, hidden, keyed is not None and keyed.is_tombstone)


def parse_query(request: Request, sample: Sample) -> Query:
    """Raises `InvalidRequest`, `NoSuchTopic`."""
    values = request.query_params
    topic = find_topic(sample, text_of(values, "topic"))
    criteria = Criteria(text_of(values, "text"), text_of(values, "key"), number_of(values, "header"), number_of(values, "client"))
    partition, transaction_id = number_of(values, "partition"), number_of(values, "id")
    if topic is not None and partition is not None and partition not in topic.partitions:
        numbers = ", ".join(map(str, topic.partitions[:20]))
        raise InvalidRequest(reason=f"log partition {partition} is none of the topic {topic.name}, which has {numbers}")
    return Query(topic, partition, transaction_id, parse_time(text_of(values, "time")), criteria, parse_cursor(text_of(values, "before")))


def routes(console: Console) -> list[Route]:
    async def show(request: Request) -> Response:
        sample = await console.sampler.sample()
        try:
            query, wrong = parse_query(request, sample), None
        except InvalidRequest as error:
            query, wrong = Query(None, None, None, None, Criteria(), {}), str(error)
        if query.transaction_id is not None and query.partition is not None:
            return RedirectResponse(f"/transactions/{query.partition}/{query.transaction_id}", 303)
        found = Found((), {}, 0, 0, {}) if wrong is not None else await _find(console, sample, query)
        return console.page(
            request,
            "transactions.html",
            title="Transactions",
            values=request.query_params,
            wrong=wrong,
            topics=sorted(str(name) for name in sample.catalogue.topics),
            partitions=len(sample.survey.partitions),
            searching=bool(query.criteria),
            **_listed(console, sample, request, found, query),
        )

    async def more(request: Request) -> Response:
        """The rows that follow, for the list that a page shows already."""
        sample = await console.sampler.sample()
        query = parse_query(request, sample)
        found = await _find(console, sample, query)
        return console.part("transaction_rows.html", searching=bool(query.criteria), **_listed(console, sample, request, found, query))

    return [Route("/transactions", show), Route("/transactions/more", more)]


async def _find(console: Console, sample: Sample, query: Query) -> Found:
    partitions = scope_of(sample, query.topic, query.partition)
    before = dict(query.cursor)
    if before:
        partitions = [each for each in partitions if each in before]
    reader = console.reader
    if query.transaction_id is not None:
        below = dict.fromkeys(partitions, query.transaction_id + 1)
        found = await reader.newest(sample, partitions, len(partitions), below)
        hits = tuple(each for each in found.entries if each.transaction_id == query.transaction_id)
        return Found(hits, {}, 0, 0, found.problems)
    if query.time_ms is not None and not before:
        before = await reader.at_time(sample, partitions, query.time_ms)
    if not query.criteria:
        return await reader.newest(sample, partitions, PAGE, before)
    hidden = [each for each in partitions if console.hides(sample, each)] if query.criteria.reads_payloads else []
    searched = [each for each in _with_key(query, partitions) if each not in hidden]
    found = await reader.search(sample, searched, query.criteria, PAGE, before, SEARCH_BUDGET_S)
    return replace(found, problems={**found.problems, **dict.fromkeys(hidden, "its payloads are hidden, and not searched")})


def _with_key(query: Query, partitions: list[int]) -> list[int]:
    """A key of a topic is in one of its partitions."""
    topic, key = query.topic, query.criteria.key
    if topic is None or key is None or not topic.keyed:
        return partitions
    only = topic.partitions[partition_of_key(key.encode(), len(topic.partitions))]
    return [each for each in partitions if each == only]


def _listed(console: Console, sample: Sample, request: Request, found: Found, query: Query) -> dict[str, Any]:
    """What the template of the rows needs."""
    kept = [(name, value) for name, value in request.query_params.items() if name not in ("before", "searched", "shown") and value]
    searched = (number_of(request.query_params, "searched") or 0) + found.searched
    shown = (number_of(request.query_params, "shown") or 0) + len(found.entries)
    following = None
    if found.cursor:
        following = "/transactions/more?" + urlencode([*kept, ("before", cursor_text(found.cursor)), ("searched", searched), ("shown", shown)])
    return {
        "lines": [line_of(console, sample, each) for each in found.entries],
        "following": following,
        "by_itself": bool(query.criteria) and shown < PAGE,
        "searched": searched,
        "left": found.left,
        "problems": found.problems,
        "shown": shown,
    }
