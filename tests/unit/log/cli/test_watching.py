"""`--watch`: rounds follow each other, a failure does not end them, a mistake does."""

from __future__ import annotations

import asyncio

import pytest

from waltz_log.cli.watching import CLEAR, watched
from waltz_log.errors import InvalidRequest, Unavailable, WaltzError


async def test_it_shows_again_until_it_is_cancelled_and_survives_an_outage(capsys: pytest.CaptureFixture[str]) -> None:
    rounds: list[WaltzError | None] = [None, Unavailable(reason="nobody answers\x1b[2J"), None]
    slept: list[float] = []

    async def show() -> int:
        error = rounds.pop(0)
        if error is not None:
            raise error
        print("shown")
        return 0

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if not rounds:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await watched(show, every_s=1.5, output="table", sleep=sleep)
    captured = capsys.readouterr()
    assert slept == [1.5] * 3
    assert captured.out.count("shown") == 2
    assert captured.out.count("every 1.5 s, Ctrl-C ends") == 3
    assert CLEAR not in captured.out, "no terminal"
    assert captured.err == "waltz: unavailable: nobody answers\\x1b[2J\n"


async def test_a_mistake_ends_it_and_without_the_option_it_shows_once() -> None:
    async def wrong() -> int:
        raise InvalidRequest(reason="no such topic")

    with pytest.raises(InvalidRequest):
        await watched(wrong, every_s=1.0, output="json")

    async def once() -> int:
        return 3

    assert await watched(once, every_s=None, output="table") == 3
