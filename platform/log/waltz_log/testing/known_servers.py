"""The addresses of log servers that need no lookup, as in a test."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from waltz_log.errors import ClusterUnavailable, WaltzError

__all__ = ["KnownServers"]


class KnownServers:
    """`find` returns the addresses as they are at each attempt, like DNS."""

    def __init__(self, find: Callable[[], Iterable[str]], text: str = "memory") -> None:
        self.text = text
        self._find = find

    async def resolve(self) -> Sequence[str]:
        found = list(self._find())
        if not found:
            raise ClusterUnavailable(address=self.text, reason="no log server runs")
        return found

    async def diagnose(self) -> WaltzError | None:
        return None
