"""Every feature of the client as one small run each, for tests of what it needs around it. `FEATURES` has a row for each; a row names the public
calls that it makes. `CALLS` are all public calls of the classes that speak to a cluster, so that a test notices a call without a row.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import waltz_log.client
from waltz_log.cli.main import run as waltz
from waltz_log.client.inspection.inspect import ClusterInspector

__all__ = ["ASYNCHRONOUS", "BLOCKING", "CALLS", "REGULAR", "SPEAKING", "STOCK", "VALUES", "Feature", "Place", "feature", "ran", "recorded"]

SPEAKING: dict[str, type] = {
    **{
        name: getattr(waltz_log.client, name)
        for name in (
            *("WaltzClient", "SyncWaltzClient", "TopicHandle", "SyncTopicHandle", "TopicTransaction", "TransactionContext", "Follower"),
            *("Subscribers", "SyncSubscribers", "Outbox", "SyncOutbox", "IntentReceipt", "SyncIntentReceipt"),
        )
    },
    "ClusterInspector": ClusterInspector,
}
"""Classes whose calls may need the cluster."""

VALUES = frozenset(
    {
        *("Appended", "Application", "BulkColumns", "BulkReceipt", "ClientPartitionStatistics", "ClientSettings", "ClientStatistics", "Context"),
        *("DeadLetter", "Draft", "GiveUp", "Intent", "KeyedDraft", "Lock", "LockConflict", "NotAppended", "NotInLog", "OutboxSettings"),
        *(
            "OutboxStatistics",
            "Outcome",
            "OutcomeUnknown",
            "Receipt",
            "Subscriber",
            "TopicBulkReceipt",
            "TopicRecord",
            "Transaction",
            "Unacknowledged",
        ),
    }
)
"""Public names that are values, errors, or classes that the application extends."""

OVER_ANY_NETWORK = frozenset(
    {"WaltzClient.connect_over", "SyncWaltzClient.connect_over", "Subscribers.connect_over", "ClusterInspector.connect_over"}
)
"""They get the network from their caller; the public ways to connect use them, or the same code."""

CRASHES = frozenset({"Outbox.abort"})
"""It ends an outbox as a killed process does, and speaks to no one."""


def _calls(name: str) -> set[str]:
    return {
        f"{name}.{call}" for call, value in vars(SPEAKING[name]).items() if call[0] != "_" and (callable(value) or isinstance(value, classmethod))
    }


CALLS = frozenset(call for name in SPEAKING for call in _calls(name)) - OVER_ANY_NETWORK - CRASHES

REGULAR, STOCK = "shop/orders", "shop/stock"
"""Topics of the cluster: of log partitions 2 and 3; the second one is a compaction topic."""


class Place(NamedTuple):
    cluster: str
    folder: Path


@dataclass(frozen=True)
class Feature:
    name: str
    calls: frozenset[str]
    run: Callable[[Place], Any]


ASYNCHRONOUS: list[Feature] = []
BLOCKING: list[Feature] = []


def feature(**calls: str) -> Callable[[Callable[[Place], Any]], Callable[[Place], Any]]:
    """By class, the calls that the row makes."""

    def register(run: Callable[[Place], Any]) -> Callable[[Place], Any]:
        made = frozenset(f"{name}.{call}" for name, listed in calls.items() for call in listed.split())
        (ASYNCHRONOUS if inspect.iscoroutinefunction(run) else BLOCKING).append(Feature(run.__name__, made, run))
        return run

    return register


@contextmanager
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """The public calls that are made inside the block."""
    made: set[str] = set()

    def recording(call: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def record(*arguments: Any, **keywords: Any) -> Any:
            made.add(call)
            return function(*arguments, **keywords)

        return record

    with monkeypatch.context() as patch:
        for call in CALLS:
            name, _, method = call.partition(".")
            original = vars(SPEAKING[name])[method]
            whole = classmethod(recording(call, original.__func__)) if isinstance(original, classmethod) else recording(call, original)
            patch.setattr(SPEAKING[name], method, whole)
        yield made


def ran(arguments: list[str]) -> None:
    """A command of the command line, in this process."""
    assert waltz(arguments) == 0
