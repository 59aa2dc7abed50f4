"""Reads entries of the coordinator as hostile input: one that cannot be parsed is skipped, and reported, and never stops who reads its neighbors.

An operator removes such an entry with `waltz cluster repair`. A value without neighbors (the assignment, the catalog) has no skip: its readers raise
`Unavailable` (`parsed`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, TypeVar

from waltz_log.core.ports import Coordinator, Node
from waltz_log.errors import Unavailable, WaltzError
from waltz_log.loggers import get_logger

__all__ = ["UNREADABLE", "parsed", "read_entry", "readable", "why_unreadable"]

log = get_logger(__name__)

T = TypeVar("T")

UNREADABLE: Final = (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError, WaltzError)
"""What a parser raises for anything but what was written. `RecursionError`: of JSON that is nested deeply."""

REPORTED_MAX: Final = 1_000
_reported: OrderedDict[tuple[str, int], None] = OrderedDict()
"""Paths and versions that this process has reported, so that a periodic reader does not fill the log."""


def why_unreadable(error: BaseException) -> str:
    """A short sentence without the entry's content."""
    return f"{type(error).__name__}: {str(error)[:200]}"


def readable(path: str, node: Node | None, parse: Callable[[bytes], T]) -> T | None:
    """What the node holds; None if there is no node, or nothing that can be parsed, which is reported once for each version."""
    if node is None:
        return None
    try:
        return parse(node.data)
    except UNREADABLE as error:
        if (path, node.version) not in _reported:
            _reported[path, node.version] = None
            while len(_reported) > REPORTED_MAX:
                _reported.popitem(last=False)
            log.error("coordinator entry unreadable", path=path, reason=why_unreadable(error), advice="run `waltz cluster repair`")
        return None


def parsed(path: str, node: Node, parse: Callable[[bytes], T]) -> T:
    """What the node holds, of a value without which the caller does nothing. Raises `Unavailable` for what cannot be parsed."""
    try:
        return parse(node.data)
    except UNREADABLE as error:
        raise Unavailable(reason=f"{path} in the coordinator cannot be read: {why_unreadable(error)}; `waltz cluster repair` repairs it") from None


async def read_entry(coordinator: Coordinator, path: str, parse: Callable[[bytes], T]) -> T | None:
    """As `readable`, of the node at the path."""
    return readable(path, await coordinator.get(path), parse)
