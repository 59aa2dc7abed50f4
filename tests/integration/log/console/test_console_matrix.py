"""Each route of the console, for each kind of caller, and for topics that the caller may read, may not read, or that do not exist.

A route without a row fails the test. A caller without the role of a viewer gets the same answer for everything. A viewer without the right to read a
topic sees no payload of it; that it exists, all viewers may see (docs/guides/console.md).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest
from starlette.routing import Mount, Route

from tests.integration.log.console.test_console_access import ORDER, SECRET, Site, known, site  # noqa: F401  # fixtures
from waltz_log.console.asgi import make_application

ROWS: dict[str, dict[str, str]] = {
    "/": {"": "/"},
    "/history.json": {"": "/history.json"},
    "/partitions": {"": "/partitions"},
    "/partitions/{partition}": {"own": "/partitions/{orders}", "foreign": "/partitions/{secrets}", "unknown": "/partitions/1000"},
    "/topics": {"": "/topics"},
    "/topics/{namespace}/{topic}": {"own": "/topics/shop/orders", "foreign": "/topics/shop/secrets", "unknown": "/topics/no/such"},
    "/nodes": {"": "/nodes"},
    "/state": {"": "/state"},
    "/conflicts": {"": "/conflicts"},
    "/conflicts/heat.json": {"": "/conflicts/heat.json"},
    "/transactions": {
        "own": "/transactions?topic=shop/orders",
        "foreign": "/transactions?topic=shop/secrets",
        "unknown": "/transactions?topic=no/such",
        "search": "/transactions?text=swordfish",
    },
    "/transactions/more": {
        "own": "/transactions/more?topic=shop/orders",
        "foreign": "/transactions/more?topic=shop/secrets",
        "unknown": "/transactions/more?topic=no/such",
        "search": "/transactions/more?text=swordfish",
    },
    "/transactions/tail": {"unknown": "/transactions/tail?topic=no/such"},  # of a topic that exists it has no end: test_console_access.py
    "/transactions/{partition}/{transaction_id}": {
        "own": "/transactions/{orders}/0",
        "foreign": "/transactions/{secrets}/0",
        "unknown": "/transactions/1000/0",
    },
    "/transactions/{partition}/{transaction_id}/raw": {
        "own": "/transactions/{orders}/0/raw",
        "foreign": "/transactions/{secrets}/0/raw",
        "unknown": "/transactions/1000/0/raw",
    },
    "/transactions/{partition}/{transaction_id}/replicas": {
        "own": "/transactions/{orders}/0/replicas",
        "foreign": "/transactions/{secrets}/0/replicas",
        "unknown": "/transactions/1000/0/replicas",
    },
    "/actions": {"": "/actions"},
    "/actions/{action}": {"": "/actions/set-policy?topic=shop/secrets&policy=retention_bytes&value=5000000", "unknown": "/actions/none"},
    "/livez": {"": "/livez"},
    "/static": {"": "/static/console.js"},
}
"""By the pattern of the route. Routes of pipelines and tables: test_console_dead_letters.py."""

VIEWERS = {"operator ann": True, "reader reports": False, "reader nothing": False}
"""Whether the caller may read shop/secrets."""


def _routes(at: Site) -> list[Route | Mount]:
    console = at.served.console
    application = make_application(console.settings, console.link, console.clock, control=at.control)
    return [route for route in application.routes if isinstance(route, Route | Mount)]


def test_each_route_has_a_row(known: Site) -> None:  # noqa: F811
    assert {re.sub(r":\w+}", "}", route.path) for route in _routes(known)} == set(ROWS)


def _path(at: Site, pattern: str) -> str:
    orders, secrets = (place.split("/")[2] for place in (at.orders, at.secrets))
    return pattern.replace("{orders}", orders).replace("{secrets}", secrets)


def _text(answer: httpx.Response) -> str:
    return answer.text + answer.content.hex()


def _payloads(payload: bytes) -> Iterator[str]:
    yield payload.decode()
    yield payload.hex()
    yield payload.hex(" ")


@pytest.mark.parametrize("caller", VIEWERS)
def test_a_viewer_sees_payloads_of_what_it_may_read_alone(known: Site, caller: str) -> None:  # noqa: F811
    role, name = caller.split()
    with known.visitor(role, name) as browser:
        answers = {pattern: browser.get(_path(known, pattern)) for cases in ROWS.values() for pattern in cases.values()}
    shown = {pattern for pattern, answer in answers.items() if any(each in _text(answer) for each in _payloads(SECRET))}
    assert bool(shown) == VIEWERS[caller], shown
    shown = {pattern for pattern, answer in answers.items() if any(each in _text(answer) for each in _payloads(ORDER))}
    assert bool(shown) == (caller != "reader nothing"), shown
    assert {answer.status_code for answer in answers.values()} <= {200, 400, 403, 404}


def test_a_caller_without_a_viewers_role_gets_one_answer_for_everything(known: Site) -> None:  # noqa: F811
    with known.visitor("application", "orders") as browser:
        answers = {pattern: browser.get(_path(known, pattern)) for route, cases in ROWS.items() if route != "/livez" for pattern in cases.values()}
    assert {(answer.status_code, answer.text) for answer in answers.values()} == {(403, next(iter(answers.values())).text)}


@pytest.mark.parametrize("caller", ["reader reports", "reader nothing"])
def test_a_raw_payload_without_the_right_is_refused_like_one_that_does_not_exist(known: Site, caller: str) -> None:  # noqa: F811
    """The caller may know that the topic exists, but not whether it has a transaction of this id."""
    role, name = caller.split()
    partition = known.secrets.split("/")[2]
    with known.visitor(role, name) as browser:
        there, beyond = (browser.get(f"/transactions/{partition}/{number}/raw") for number in (0, 10**6))
    assert there.status_code == beyond.status_code
    assert re.sub(r"\d+", "N", there.text) == re.sub(r"\d+", "N", beyond.text)
