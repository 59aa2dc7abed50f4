"""The live tail: new transactions as they are committed, as server-sent events.

A tail never falls behind and never holds anything up: it polls the committed marks and shows the newest few of what came since, with the number of
those it left out. Tails are bounded in number and in life; a browser connects again by itself, and a page without a place says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from waltz_log.console.console import Console
from waltz_log.console.pages.parameters import scope_of
from waltz_log.console.pages.transactions import Query, line_of, parse_query
from waltz_log.errors import WaltzError
from waltz_log.loggers import get_logger

__all__ = ["routes"]

log = get_logger(__name__)

INTERVAL_S = 0.5
ROWS_MAX = 12
"""In one interval; a reader cannot follow more."""

PARTITIONS_MAX = 3
"""Partitions whose rows are read in one interval, others the next time: a tail of a thousand partitions costs no more than one of three."""

LIFE_S = 600.0
RETRY_MS = 5000


def routes(console: Console) -> list[Route]:
    places = asyncio.BoundedSemaphore(console.settings.tails_max)

    async def tail(request: Request) -> Response:
        sample = await console.sampler.sample()
        query = parse_query(request, sample)
        if places.locked():
            return PlainTextResponse("All live tails are in use.\n", 503, {"Retry-After": "30"})
        await places.acquire()

        async def events() -> AsyncGenerator[str, None]:
            try:
                async with asyncio.timeout(LIFE_S):
                    async for event in _events(console, query):
                        yield event
            except TimeoutError:
                yield f"retry: {RETRY_MS}\nevent: ended\ndata: \n\n"
            finally:
                places.release()

        return StreamingResponse(events(), media_type="text/event-stream")

    return [Route("/transactions/tail", tail)]


async def _events(console: Console, query: Query) -> AsyncGenerator[str, None]:
    yield f"retry: {RETRY_MS}\n\n"
    marks: dict[int, int] = {}
    turn = 0
    while True:
        sample = await console.sampler.sample()
        partitions = scope_of(sample, query.topic, query.partition)
        try:
            bounds = await console.reader.bounds(sample, partitions)
            fresh = {each: bound.last for each, bound in bounds.items() if bound.answered and bound.last > marks.get(each, bound.last)}
            before = dict(marks)
            came = sum(last - before[each] for each, last in fresh.items())
            for each, bound in bounds.items():
                if bound.answered:
                    marks[each] = bound.last
            if fresh:
                turn += 1
                ordered = sorted(fresh)
                start = turn * PARTITIONS_MAX % len(ordered)
                chosen = (ordered[start:] + ordered[:start])[:PARTITIONS_MAX]
                found = await console.reader.newest(sample, chosen, min(ROWS_MAX, came), {each: fresh[each] + 1 for each in chosen})
                lines = [line_of(console, sample, each) for each in found.entries if each.transaction_id > before[each.partition]]
                page = console.part("tail_rows.html", lines=lines, skipped=max(0, came - len(lines)))
                yield _event("rows", bytes(page.body).decode())
            else:
                yield ": nothing new\n\n"
        except WaltzError as error:
            yield _event("problem", str(error))
        await asyncio.sleep(INTERVAL_S)


def _event(kind: str, text: str) -> str:
    data = "".join(f"data: {line}\n" for line in text.splitlines()) or "data: \n"
    return f"event: {kind}\n{data}\n"
