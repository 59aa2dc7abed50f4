"""A client for code that blocks has every method of the asynchronous one, with the same arguments."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from waltz_log.client import (
    Draft,
    Follower,
    KeyedDraft,
    Outbox,
    Subscribers,
    SyncOutbox,
    SyncSubscribers,
    SyncTopicHandle,
    SyncWaltzClient,
    TopicHandle,
    WaltzClient,
)
from waltz_log.client.sync_follower import SyncFollower
from waltz_log.client.transactions.transaction import DraftOptions

INTERNAL = {"topic"}
"""A keyword that only a topic's handle passes."""

ABSENT = {
    WaltzClient: {"bulk", "connect", "open"},  # made by its constructor; `bulk` is what `append_bulk` is made of
    TopicHandle: {"bulk", "draft_of", "identity"},
    Follower: {"settled"},
    Subscribers: {"connect", "connect_over"},
    Outbox: {"abort", "open", "over"},
}
DIFFERENT = {"connect_over"}
"""The network is made in the client's own thread."""

ADDED = {"timeout_s"}
"""Waits that a coroutine's caller bounds with `asyncio.timeout`."""


def _public(of: type) -> dict[str, Any]:
    return {name: member for name, member in inspect.getmembers(of) if not name.startswith("_")}


def _arguments(member: Any) -> list[tuple[str, Any, Any]]:
    found = inspect.signature(member).parameters.values()
    return [(each.name, each.kind, each.default) for each in found if each.name not in INTERNAL]


@pytest.mark.parametrize(
    ("asynchronous", "blocking"),
    [(WaltzClient, SyncWaltzClient), (TopicHandle, SyncTopicHandle), (Follower, SyncFollower), (Subscribers, SyncSubscribers), (Outbox, SyncOutbox)],
)
def test_a_blocking_client_has_what_the_asynchronous_one_has(asynchronous: type, blocking: type) -> None:
    wanted, there = _public(asynchronous), _public(blocking)
    assert wanted.keys() - there.keys() == ABSENT[asynchronous], "missing, or no longer absent"
    for name, member in wanted.items():
        if not callable(member) or name not in there or name in DIFFERENT:
            continue
        wanted_arguments, found = _arguments(member), _arguments(there[name])
        added = {each[0] for each in found} & ADDED - {each[0] for each in wanted_arguments}
        assert [each for each in found if each[0] not in added] == wanted_arguments, name


def test_headers_locks_and_marks_of_drafts_are_the_same_everywhere() -> None:
    options = [*DraftOptions.__annotations__]
    assert [*Draft._fields] == ["data", *options]
    assert [*KeyedDraft._fields] == ["key", "value", *options]
    for method in (WaltzClient.append, WaltzClient.append_nowait):
        assert [*inspect.signature(method).parameters] == ["self", "partition", "data", *options, "timeout_s"]
