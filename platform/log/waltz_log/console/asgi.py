"""The console as an ASGI application: routes, start and end of its background work, and pages for errors."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from waltz_log.console.console import Console, Extension
from waltz_log.console.extensions import load_extensions
from waltz_log.console.pages import actions, conflicts, nodes, overview, partitions, state, tail, topics, transaction, transactions
from waltz_log.console.reading.link import ClusterLink
from waltz_log.console.rendering import STATIC
from waltz_log.console.security import BrowserAccess, Guard
from waltz_log.console.settings import ConsoleSettings
from waltz_log.core.ports import Clock
from waltz_log.errors import InvalidRequest, NotAllowed, NotCommittedYet, Trimmed, WaltzError
from waltz_log.line_limit import LineLimit
from waltz_log.loggers import get_logger
from waltz_log.security.access import AccessControl

__all__ = ["make_application"]

log = get_logger(__name__)

_failures = LineLimit(5, 50)
"""Lines with a stack trace, of one caller and of all."""

PAGES = (overview, partitions, transactions, transaction, tail, conflicts, topics, nodes, actions, state)

REFRESHED = ("part", "part2")
"""Parts of a page that refresh. An error must not replace them: the page keeps what it shows, and says how old it is."""


def make_application(
    settings: ConsoleSettings,
    link: ClusterLink,
    clock: Clock,
    *,
    extensions: Sequence[Extension] | None = None,
    control: AccessControl | None = None,
) -> Starlette:
    """`link`: closed when the application ends. `extensions`: used instead of the installed ones. `control`: roles and rules of access, which the
    caller keeps up to date; None: every user may do everything, because the console serves without TLS."""
    access = BrowserAccess(control or AccessControl(enforced=False))
    console = Console(settings, link, clock, load_extensions(settings) if extensions is None else extensions, access)

    @asynccontextmanager
    async def lifespan(_application: Starlette) -> AsyncGenerator[None, None]:
        console.sampler.start()
        try:
            yield
        finally:
            await console.sampler.close()
            for extension in console.extensions:
                await extension.close()
            await link.close()

    async def livez(_request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def failed(request: Request, error: Exception) -> Response:
        return _failed(console, request, error)

    routes = [route for page in PAGES for route in page.routes(console)]
    routes += [route for extension in console.extensions for route in extension.routes(console)]
    routes += [Route("/livez", livez), Mount("/static", StaticFiles(directory=STATIC), name="static")]
    handlers = {WaltzError: failed, HTTPException: failed, Exception: failed}
    application = Starlette(routes=routes, middleware=[Middleware(Guard, access)], exception_handlers=handlers, lifespan=lifespan)
    application.state.console = console
    return application


def _failed(console: Console, request: Request, error: Exception) -> Response:
    """A page about the error. Unexpected errors are in the console's log, never on the page."""
    if isinstance(error, HTTPException):
        status, title, reason = error.status_code, "Not found" if error.status_code == 404 else "Not possible", str(error.detail)
        if error.status_code == 404 and reason == "Not Found":
            reason = "There is no such page."
    elif isinstance(error, WaltzError):
        status, title, reason = _status(error), _title(error), str(error)
    else:
        left_out = _failures.count(console.access.principal or (request.client.host if request.client else None))
        if left_out is not None:
            log.error("page failed", path=request.url.path, error=type(error).__name__, left_out=left_out, exc_info=error)
        status, title, reason = 500, "The console failed", "This page could not be made. The log of the console says why."
    if "hx-request" in request.headers and request.headers.get("hx-target") not in REFRESHED:
        return console.part("problem.html", 200, title=title, reason=reason)  # htmx shows only answers that succeed
    return console.page(request, "failed.html", title=title, status=status, reason=reason)


def _status(error: WaltzError) -> int:
    if isinstance(error, NotCommittedYet | Trimmed):
        return 404
    if isinstance(error, NotAllowed):
        return 403
    return 400 if isinstance(error, InvalidRequest) else 503


def _title(error: WaltzError) -> str:
    if isinstance(error, Trimmed):
        return "Trimmed"
    if isinstance(error, NotCommittedYet):
        return "Not committed yet"
    if isinstance(error, NotAllowed):
        return "Not allowed"
    return "Not possible" if isinstance(error, InvalidRequest) else "No answer"
