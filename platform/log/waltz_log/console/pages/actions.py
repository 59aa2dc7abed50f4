"""Actions that change the cluster. Each is offered only with `allow_actions`, asks first, and is logged with who it was for and how it ended.

A form carries the token of this process; the guard has refused requests of other sites before (`security`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from waltz_log.console.console import Console
from waltz_log.console.pages.parameters import text_of
from waltz_log.coordination.subscribers import remove_subscriber
from waltz_log.coordination.topics import change_catalogue
from waltz_log.core.topics.catalogue import Policies
from waltz_log.core.topics.topic_names import TopicName
from waltz_log.errors import InvalidRequest, WaltzError
from waltz_log.loggers import get_logger
from waltz_log.security.audit import acted

__all__ = ["routes"]

log = get_logger(__name__)

FORM_BYTES_MAX = 64 * 1024

KEPT = 100
"""Actions that the page lists; the log has all of them."""


@dataclass(frozen=True, slots=True)
class Done:
    time_ms: int
    what: str
    failed: str | None


@dataclass(frozen=True, slots=True)
class Action:
    """`question`: what is asked before; `back`: the page to return to. `plan` gives what would change, and changes nothing."""

    title: str
    question: Callable[[dict[str, str]], str]
    back: Callable[[dict[str, str]], str]
    run: Callable[[Console, dict[str, str], bool], Awaitable[str]]


async def _remove_subscriber(console: Console, values: dict[str, str], dry_run: bool) -> str:
    gone = await remove_subscriber(await console.link.coordinator(), values.get("name", ""), dry_run=dry_run)
    return f"subscriber {gone.name} with its marks of {len(gone.marks)} partitions"


async def _change_policy(console: Console, values: dict[str, str], dry_run: bool) -> str:
    name = TopicName.parse(values.get("topic", ""))
    policy, text = values.get("policy", ""), values.get("value", "")
    kinds = {each.name: type(getattr(Policies(), each.name)) for each in fields(Policies)}
    value: object = text
    if kinds.get(policy) is bool:
        value = {"true": True, "false": False}.get(text.lower(), text)
    elif kinds.get(policy) is int:
        try:
            value = int(text.replace(",", "").replace("_", ""))
        except ValueError:
            raise InvalidRequest(reason=f"{policy} is a whole number, not {text[:80]!r}") from None
    coordinator = await console.link.coordinator()
    await change_catalogue(coordinator, lambda found: found.with_policies(name, {policy: value}), dry_run=dry_run)
    return f"policy {policy} of {name} to {value}"


ACTIONS = {
    "remove-subscriber": Action(
        "Remove a subscriber",
        lambda values: f"Remove the subscriber {values.get('name', '')}? What it has not read is then no longer kept for it.",
        lambda values: "/topics",
        _remove_subscriber,
    ),
    "change-policy": Action(
        "Change a policy",
        lambda values: f"Set {values.get('policy', '')} of the topic {values.get('topic', '')} to {values.get('value', '')}?",
        lambda values: f"/topics/{values.get('topic', '')}",
        _change_policy,
    ),
}


async def _form(request: Request) -> dict[str, str]:
    """The fields of a form that has no files. Raises `InvalidRequest`."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > FORM_BYTES_MAX:
            raise InvalidRequest(reason=f"a form has at most {FORM_BYTES_MAX} bytes")
    try:
        return dict(parse_qsl(body.decode(), max_num_fields=20))
    except ValueError:
        raise InvalidRequest(reason="the form cannot be read") from None


def routes(console: Console) -> list[Route]:
    done: deque[Done] = deque(maxlen=KEPT)

    def chosen(request: Request) -> Action:
        if not console.settings.allow_actions:
            raise InvalidRequest(reason="actions are not allowed: start the console with --allow-actions")
        action = ACTIONS.get(str(request.path_params["action"]))
        if action is None:
            raise InvalidRequest(reason="there is no such action")
        return action

    async def ask(request: Request) -> Response:
        """Shows what would change, and asks."""
        action = chosen(request)
        values = {name: text for name in request.query_params if (text := text_of(request.query_params, name)) is not None}
        plan = await action.run(console, values, True)
        return console.page(
            request, "confirm.html", title=action.title, question=action.question(values), plan=plan, values=values, back=action.back(values)
        )

    async def run(request: Request) -> Response:
        action = chosen(request)
        form = await _form(request)
        if not console.token.fits(form.pop("token", None)):
            raise InvalidRequest(reason="the form is not one of this console, or it was restarted since: open the page again")
        values = {name: value.strip() for name, value in form.items()}
        name = request.path_params["action"]
        try:
            what = await action.run(console, values, False)
        except WaltzError as error:
            log.warning("action failed", action=name, values=" ".join(f"{key}={value}" for key, value in values.items()), error=str(error))
            done.appendleft(Done(console.clock.now_ms(), f"{action.title}: {', '.join(values.values())}", str(error)))
            raise
        log.warning("action done", action=name, change=what)
        acted("console action", action=name, change=what, principal=console.access.principal)
        done.appendleft(Done(console.clock.now_ms(), f"{action.title}: {what}", None))
        await console.sampler.fresh()
        return RedirectResponse(action.back(values), 303)

    async def listing(request: Request) -> Response:
        return console.page(request, "actions.html", title="Actions", done=list(done))

    return [Route("/actions", listing), Route("/actions/{action}", ask), Route("/actions/{action}", run, methods=["POST"])]
