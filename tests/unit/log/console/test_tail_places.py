"""Live tails are limited, one principal leaves half of them to others, and each that ended is free, however it ended. In virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

import pytest

from waltz_log.console.pages import tail
from waltz_log.console.pages.tail import TailResponse
from waltz_log.core.fair_counts import FairCounts
from waltz_log.testing.virtual_time import run_in_virtual_time


async def _events() -> AsyncGenerator[str, None]:
    while True:
        yield "event\n\n"
        await asyncio.sleep(1)


class Browser:
    """Reads until it leaves. `status`: of the answer."""

    def __init__(self, tails: FairCounts, principal: str) -> None:
        self.status = 0
        self.bodies: list[bytes] = []
        self.reads = True
        self._left = asyncio.Event()
        response = TailResponse(tail._limited(_events()), tails, principal)
        self.task = asyncio.ensure_future(response({"type": "http", "asgi": {"spec_version": "2.3"}}, self._receive, self._send))

    async def leave(self) -> None:
        self._left.set()
        await self.task

    async def _receive(self) -> dict[str, Any]:
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if not self.reads:
            await asyncio.get_running_loop().create_future()
        self.status = message.get("status", self.status)
        self.bodies.append(message.get("body", b""))


async def _open(tails: FairCounts, principal: str) -> Browser:
    browser = Browser(tails, principal)
    await asyncio.sleep(0.1)
    return browser


def _run(work: Callable[[FairCounts], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        await work(FairCounts(4))

    run_in_virtual_time(main())


@pytest.mark.parametrize(("principal", "most"), [("ann", 2), ("", 4)], ids=["a principal", "without principals"])
def test_one_principal_has_half_of_the_tails(principal: str, most: int) -> None:
    async def work(tails: FairCounts) -> None:
        some = [await _open(tails, principal) for _ in range(most)]
        assert [each.status for each in some] == [200] * most
        assert (await _open(tails, principal)).status == 503
        other = await _open(tails, "bob")
        assert other.status == (200 if principal else 503)
        await some[0].leave()
        again = await _open(tails, principal)
        assert again.status == 200
        for each in (*some[1:], other, again):
            await each.leave()

    _run(work)


def test_a_browser_that_leaves_before_the_first_event_frees_its_tail() -> None:
    async def work(tails: FairCounts) -> None:
        for _ in range(10):
            browser = Browser(tails, "ann")
            browser._left.set()
            await browser.task
        some = [await _open(tails, name) for name in ("ann", "ann", "bob", "bob")]
        assert [each.status for each in some] == [200] * 4
        for each in some:
            await each.leave()

    _run(work)


def test_a_tail_ends_in_order_after_its_time_and_one_that_is_not_read_ends_soon_after() -> None:
    async def work(tails: FairCounts) -> None:
        reads, deaf = await _open(tails, "ann"), await _open(tails, "ann")
        deaf.reads = False
        await asyncio.sleep(tail.LIFE_S + 2)
        assert reads.task.done()
        assert not deaf.task.done()
        assert b"event: ended" in reads.bodies[-2]
        await asyncio.sleep(tail.UNREAD_S)
        assert deaf.task.done()
        await asyncio.gather(reads.task, deaf.task)
        assert tails._open.total() == 0

    _run(work)
