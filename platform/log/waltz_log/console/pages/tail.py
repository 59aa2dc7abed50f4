"""The live tail: new transactions as they are committed, as server-sent events.

A tail never falls behind and slows nothing: it polls the committed marks and shows the newest few of what came since, with the number of
those it skipped. The more it shows, the longer it waits. The number and the duration of tails are limited. A browser
connects again by itself; if all tails are in use, the page says so.
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
from waltz_log.console.reading.following import Follower
from waltz_log.errors import WaltzError
from waltz_log.loggers import get_logger

__all__ = ["routes"]

log = get_logger(__name__)

INTERVAL_S = 0.5
"""Between two polls that find little."""

ROWS_PER_S = 20
"""A reader cannot follow more, and each row costs the cluster a little."""

LIFE_S = 600.0
RETRY_MS = 5000


def routes(console: Console) -> list[Route]:
    places = asyncio.BoundedSemaphore(console.settings.tails_max)

    async def tail(request: Request) -> Response:
        sample = await console.sampler.sample(watched=console.protects_payloads)
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
    follower = Follower(console.reader)
    while True:
        shown = 0
        try:
            sample = await console.sampler.sample(watched=console.protects_payloads)
            arrived = await follower.poll(sample, scope_of(sample, query.topic, query.partition))
            if arrived.entries or arrived.skipped:
                shown = len(arrived.entries)
                lines = [line_of(console, sample, each) for each in arrived.entries]
                page = console.part("tail_rows.html", lines=lines, skipped=arrived.skipped)
                yield _event("rows", bytes(page.body).decode())
            else:
                yield ": nothing new\n\n"
        except WaltzError as error:
            yield _event("problem", str(error))
        await asyncio.sleep(max(INTERVAL_S, shown / ROWS_PER_S))


def _event(kind: str, text: str) -> str:
    data = "".join(f"data: {line}\n" for line in text.splitlines()) or "data: \n"
    return f"event: {kind}\n{data}\n"
