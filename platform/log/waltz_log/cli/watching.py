"""`--watch`: shows the same again and again. A failure while watching is one sentence, and the next round tries again."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from waltz_log.errors import InvalidRequest, WaltzError
from waltz_log.outside_text import printable

__all__ = ["CLEAR", "watched"]

CLEAR = "\x1b[H\x1b[2J\x1b[3J"
"""Cursor home, screen and scrollback empty."""


async def watched(
    show: Callable[[], Awaitable[int]], *, every_s: float | None, output: str, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
) -> int:
    """Once if `every_s` is None, else until cancelled. A terminal is cleared for each round; elsewhere, and in JSON and YAML, rounds follow each
    other. Raises `InvalidRequest` and its kind, which no later round would cure."""
    if every_s is None:
        return await show()
    terminal = sys.stdout.isatty() and output == "table"
    while True:
        if output == "table":
            print(f"{CLEAR if terminal else ''}{datetime.now(UTC).isoformat(timespec='seconds')}, every {every_s:g} s, Ctrl-C ends", flush=True)
        elif output == "yaml":
            print("---")
        try:
            await show()
        except InvalidRequest:
            raise
        except WaltzError as error:
            print(f"waltz: {printable(' '.join(str(error).split()))}", file=sys.stderr, flush=True)
        await sleep(every_s)
