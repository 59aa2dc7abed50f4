"""The live tail: new transactions as they are committed, as server-sent events.

A tail never falls behind and slows nothing: it polls the committed marks and shows the newest few of what came since, with the number of
those it skipped. The more it shows, the longer it waits. The number and the duration of tails are limited, and one principal may have half of them.
A browser connects again by itself; if all tails are in use, the page says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from waltz_log.console.console import Console
from waltz_log.console.pages.parameters import scope_of
from waltz_log.console.pages.transactions import Query, line_of, parse_query
from waltz_log.console.reading.following import Follower
from waltz_log.core.fair_counts import FairCounts
from waltz_log.errors import WaltzError
from waltz_log.loggers import get_logger

__all__ = ["routes"]

log = get_logger(__name__)

INTERVAL_S = 0.5
"""Between two polls that find little."""

ROWS_PER_S = 20
"""A reader cannot follow more, and each row costs the cluster a little."""

LIFE_S = 600.0

UNREAD_S = 10.0
"""After `LIFE_S`, for a browser that does not read."""

RETRY_MS = 5000


def routes(console: Console) -> list[Route]:
    tails = FairCounts(console.settings.tails_max)

    async def tail(request: Request) -> Response:
        sample = await console.sampler.sample(watched=console.protects_payloads)
        return TailResponse(_limited(_events(console, parse_query(request, sample))), tails, console.access.principal or "")

    return [Route("/transactions/tail", tail)]


class TailResponse(StreamingResponse):
    """Counts from its first byte to its end, also if the browser is gone before the first event, or does not read."""

    def __init__(self, events: AsyncGenerator[str, None], tails: FairCounts, principal: str) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._tails = tails
        self._principal = principal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._tails.fits(self._principal):
            await PlainTextResponse("All live tails are in use.\n", 503, {"Retry-After": "30"})(scope, receive, send)
            return
        with self._tails.one(self._principal):
            limit = asyncio.timeout(LIFE_S + UNREAD_S)
            try:
                async with limit:
                    await super().__call__(scope, receive, send)
            except TimeoutError:
                if not limit.expired():
                    raise


async def _limited(events: AsyncGenerator[str, None]) -> AsyncGenerator[str, None]:
    ends_s = asyncio.get_running_loop().time() + LIFE_S
    async with aclosing(events):
        async for event in events:
            yield event
            if asyncio.get_running_loop().time() >= ends_s:
                yield f"retry: {RETRY_MS}\nevent: ended\ndata: \n\n"
                return


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
