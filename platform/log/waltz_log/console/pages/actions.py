"""Actions that change the cluster. Each is offered only with `allow_actions`, asks first, and is logged with its principal and its result.

A form carries the token of this process; `security.Guard` has already refused requests of other sites.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, fields
from typing import Any  # fields of a request
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from waltz_log.client.feed.subscriber_entries import remove_entry
from waltz_log.console.console import Action, Console
from waltz_log.console.pages.parameters import text_of
from waltz_log.core.topics.catalogue import Policies
from waltz_log.core.topics.policy_texts import policy_values
from waltz_log.core.topics.subscribers import UnreadableSubscriber
from waltz_log.core.topics.topic_names import TopicName
from waltz_log.errors import InvalidRequest, WaltzError
from waltz_log.loggers import get_logger
from waltz_log.security.audit_log import acted
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.methods import PLACEMENT, TOPICS

__all__ = ["routes"]

log = get_logger(__name__)

PLACE = pb.PlacementRequest

REMOVE_S = 5.0
"""For the removal of a subscriber."""

FORM_BYTES_MAX = 64 * 1024

KEPT = 100
"""How many actions the page lists; the log has all of them."""

MOVES_NAMED = 8
"""Partitions that a confirmation names."""


@dataclass(frozen=True, slots=True)
class Done:
    time_ms: int
    what: str
    failed: str | None


async def _remove_subscriber(console: Console, values: dict[str, str], dry_run: bool) -> str:
    gone = await remove_entry(await console.link.owners(), values.get("name", ""), REMOVE_S, dry_run=dry_run)
    if isinstance(gone, UnreadableSubscriber):
        return f"entry {gone.name}, which is not a valid subscriber"
    return f"subscriber {gone.name} with its marks of {len(gone.marks)} partitions"


async def _change_policy(console: Console, values: dict[str, str], dry_run: bool) -> str:
    name = TopicName.parse(values.get("topic", ""))
    policy, text = values.get("policy", ""), values.get("value", "")
    kinds = {each.name: type(getattr(Policies(), each.name)) for each in fields(Policies)}
    if kinds.get(policy) is bool:
        text = text.lower()
    elif kinds.get(policy) is int:
        text = text.replace(",", "").replace("_", "")
        if not isinstance(policy_values({policy: text})[policy], int):
            raise InvalidRequest(reason=f"{policy} must be a whole number, not {text[:80]!r}")
    request = pb.TopicsRequest(action=pb.TopicsRequest.ACTION_ALTER, topic=str(name), policies={policy: text}, dry_run=dry_run)
    await console.link.call(TOPICS, request)
    return f"policy {policy} of {name} to {text}"


async def _move_owner(console: Console, values: dict[str, str], dry_run: bool) -> str:
    return await _place(console, PLACE.ACTION_MOVE, dry_run, partitions=[_partition(values)], server=values.get("server", ""))


async def _release_owner(console: Console, values: dict[str, str], dry_run: bool) -> str:
    return await _place(console, PLACE.ACTION_RELEASE, dry_run, partitions=[_partition(values)])


async def _drain_server(console: Console, values: dict[str, str], dry_run: bool) -> str:
    """Storage nodes are left to `waltz drain`, which copies their replicas and can run for hours."""
    return await _place(console, PLACE.ACTION_DRAIN, dry_run, server=values.get("server", ""))


async def _readmit_server(console: Console, values: dict[str, str], dry_run: bool) -> str:
    return await _place(console, PLACE.ACTION_READMIT, dry_run, server=values.get("server", ""))


async def _place(console: Console, action: pb.PlacementRequest.Action.ValueType, dry_run: bool, **what: Any) -> str:
    """Which partitions change their owner, the first of them by number."""
    answer = await console.link.call(PLACEMENT, pb.PlacementRequest(action=action, dry_run=dry_run, **what))
    moves = [f"partition {each.partition} to {'no server' if each.after < 0 else f'server {each.after}'}" for each in answer.moves]
    more = f" and {len(moves) - MOVES_NAMED} more" if len(moves) > MOVES_NAMED else ""
    return f"{', '.join(moves[:MOVES_NAMED])}{more}" if moves else "no partition changes its owner"


def _partition(values: dict[str, str]) -> int:
    text = values.get("partition", "")
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise InvalidRequest(reason=f"a partition must be a number, not {text[:80]!r}")
    return int(text)


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
    "move-owner": Action(
        "Move a partition",
        lambda values: f"Move partition {values.get('partition', '')} to server {values.get('server', '')}? It stays there until it is released.",
        lambda values: f"/partitions/{values.get('partition', '')}",
        _move_owner,
    ),
    "release-owner": Action(
        "Release a partition",
        lambda values: f"Release partition {values.get('partition', '')}? The cluster then chooses its owner again.",
        lambda values: f"/partitions/{values.get('partition', '')}",
        _release_owner,
    ),
    "drain-server": Action(
        "Drain a log server",
        lambda values: f"Drain the log server at {values.get('server', '')}? It gets no partitions until it is readmitted, also after a restart.",
        lambda values: "/nodes",
        _drain_server,
    ),
    "readmit-server": Action(
        "Readmit a log server",
        lambda values: f"Readmit the log server at {values.get('server', '')}? It then gets partitions again.",
        lambda values: "/nodes",
        _readmit_server,
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
    actions = dict(ACTIONS)
    for extension in console.extensions:
        actions.update(extension.actions)

    def chosen(request: Request) -> Action:
        if not console.settings.allow_actions:
            raise InvalidRequest(reason="actions are not allowed: start the console with --allow-actions")
        action = actions.get(str(request.path_params["action"]))
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
        if not console.token.matches(form.pop("token", None)):
            raise InvalidRequest(reason="the form is not one of this console, or the console was restarted: open the page again")
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
