"""The time limit for reads from a replica, and which replicas exceeded it recently.

A node whose disk hangs accepts connections and never answers. So a late answer counts as a lost connection, and a replica that was late is read last
for a while, also if the reader gave up earlier. Times decide only which replica is asked first, never a result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from waltz_log.errors import ConnectionLost

__all__ = ["Patience"]

T = TypeVar("T")

SLOW_S = 0.5
"""The limit for one answer of about a megabyte. Below the shortest timeout of a search."""

READ_LAST_S = 60.0
"""After that it is tried again, which may cost one reader `timeout_s`."""


class Patience:
    """With one replica."""

    def __init__(self, name: str, timeout_s: float) -> None:
        self._name = name
        self._timeout_s = timeout_s
        self._slow_until = 0.0

    @property
    def strained(self) -> bool:
        return asyncio.get_running_loop().time() < self._slow_until

    async def await_answer(self, answer: Awaitable[T]) -> T:
        """Raises `ConnectionLost` if it does not come in time."""
        late = asyncio.get_running_loop().call_later(SLOW_S, self._read_last)  # others choose a replica while this one waits
        try:
            async with asyncio.timeout(self._timeout_s):
                return await answer
        except TimeoutError:
            raise ConnectionLost(address=self._name, reason=f"replica does not answer a read within {self._timeout_s:g} s") from None
        finally:
            late.cancel()

    def _read_last(self) -> None:
        self._slow_until = asyncio.get_running_loop().time() + READ_LAST_S
