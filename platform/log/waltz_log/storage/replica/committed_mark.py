"""Up to where a replica knows that its log is committed: what it may serve to a reader that is not the partition's owner.

The owner sends its mark on the stream of blocks, a little after it rose. What a session began with is committed too. The mark is kept in memory:
after a restart the replica knows what the session began with, until the owner sends its mark again.
"""

from __future__ import annotations

import asyncio
from typing import Final

__all__ = ["WAIT_S", "CommittedMark"]

WAIT_S: Final = 1.0
"""How long a reader waits for a mark that is on its way. Then it gets what is known to be committed, and goes on at another replica."""


class CommittedMark:
    def __init__(self) -> None:
        self.mark = -1
        self._rose: asyncio.Future[None] | None = None

    def rise(self, mark: int) -> None:
        """A mark never falls."""
        if mark > self.mark:
            self.mark = mark
            if self._rose is not None:
                self._rose.set_result(None)
                self._rose = None

    async def wait(self, wanted: int) -> None:
        """Returns when the mark has reached the id, or after `WAIT_S`."""
        try:
            async with asyncio.timeout(WAIT_S):
                while self.mark < wanted:
                    if self._rose is None:
                        self._rose = asyncio.get_running_loop().create_future()
                    await asyncio.shield(self._rose)
        except TimeoutError:
            return
