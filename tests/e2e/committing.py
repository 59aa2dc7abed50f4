"""The commit of a table, whichever engine makes it: for tests in which a driver dies or loses a race there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from delta.exceptions import ConcurrentTransactionException

from waltz_delta.base import internal
from waltz_delta.engine.arrow_transaction import ArrowTransaction, Overtaken

__all__ = ["ENGINES", "Lost", "replace_commits"]

ENGINES = (internal.TableTransaction, ArrowTransaction)


class Lost(Overtaken, ConcurrentTransactionException):
    """A lost race, to each engine."""


def replace_commits(patched: pytest.MonkeyPatch, replacement: Callable[[Callable[..., int]], Callable[..., int]]) -> None:
    """`replacement` receives the original commit of each engine and returns the one that is used instead."""
    for engine in ENGINES:
        patched.setattr(engine, "commit", replacement(engine.commit))
