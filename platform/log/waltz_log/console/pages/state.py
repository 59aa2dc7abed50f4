"""What every open page asks for again and again: how old its data is, and what is wrong with it. Pages without a part that refreshes ask too."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from waltz_log.console.console import Console

__all__ = ["routes"]


def routes(console: Console) -> list[Route]:
    async def state(_request: Request) -> Response:
        console.sampler.watch()
        return console.part("state.html")

    return [Route("/state", state)]
