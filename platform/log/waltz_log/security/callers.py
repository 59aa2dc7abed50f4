"""Whose call a handler serves. The transport sets it for each call before the handler runs; tasks that the handler starts inherit it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from waltz_log.core.topics.access import CLUSTER_PRINCIPAL
from waltz_log.security.identity import Identity, Role

__all__ = ["SIBLING", "caller", "calling", "set_caller"]

SIBLING: Final = Identity(CLUSTER_PRINCIPAL, frozenset({Role.NODE}))
"""Another process of the same node, over a socket that only its user may open."""

_caller: ContextVar[Identity | None] = ContextVar("caller", default=None)


def caller() -> Identity | None:
    """None: the transport does not know its peers, as without TLS, or this is not a call."""
    return _caller.get()


def set_caller(identity: Identity | None) -> None:
    """For the rest of this task, and the tasks that it starts."""
    _caller.set(identity)


@contextmanager
def calling(identity: Identity | None) -> Iterator[None]:
    """Sets the caller inside the block alone."""
    token = _caller.set(identity)
    try:
        yield
    finally:
        _caller.reset(token)
