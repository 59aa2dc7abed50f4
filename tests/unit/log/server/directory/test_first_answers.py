"""Followers that do not read keep no other follower from its first answer, and hold a bounded part of a server's memory. In virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from waltz_log.client.owners.following import FIRST_ANSWER_S
from waltz_log.core.messages import Encoded
from waltz_log.errors import QuotaExceeded
from waltz_log.security.callers import calling
from waltz_log.security.identity import Identity, Role
from waltz_log.security.rules import Operation, Rule
from waltz_log.server.directory import followers
from waltz_log.server.directory.followers import Followers
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.testing.virtual_time import run_in_virtual_time
from waltz_log.transport import waltz_pb2 as pb

STREAMS = 4608
"""As many as one connection may have."""

PLACES = 32
"""As `SENDING_MAX`, which a test would follow to any number."""


class Sender:
    """The serving end of a stream. `reads`: how the peer reads a message."""

    def __init__(self, reads: Callable[[], Awaitable[object]]) -> None:
        self._reads = reads
        self.sending_bytes = 0
        self.messages = 0
        self.answered_s: float | None = None
        """When the first answer was complete."""

    async def send(self, message: pb.FollowResponse | Encoded[pb.FollowResponse]) -> None:
        assert isinstance(message, Encoded)
        self.sending_bytes += len(message)
        await self._reads()
        self.sending_bytes -= len(message)
        self.messages += 1
        if not message.decoded().more and self.answered_s is None:
            self.answered_s = asyncio.get_running_loop().time()

    async def cancel(self) -> None:
        """Nothing to do: the test ends the handler."""


async def _never() -> None:
    await asyncio.get_running_loop().create_future()


async def _at_once() -> None:
    await asyncio.sleep(0)


class Served:
    """Streams of a server that follow it, each of its own principal or of a shared one."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self.cluster = cluster
        found = cluster.servers["server-0"][0]._followers
        assert found is not None
        self.followers: Followers = found
        self.tasks: list[asyncio.Task[None]] = []

    def follow(self, name: str, reads: Callable[[], Awaitable[object]] = _at_once) -> Sender:
        sender = Sender(reads)
        with calling(_identity(f"application-{name}")):
            self.tasks.append(asyncio.ensure_future(self.followers.follow(pb.FollowRequest(cluster_key=self.cluster.key.bytes), sender)))
        return sender

    async def answer_s(self, name: str, reads: Callable[[], Awaitable[object]] = _at_once) -> float:
        """How long a new follower waits for its first answer; raises what ended it before."""
        begun_s = asyncio.get_running_loop().time()
        sender, task = self.follow(name, reads), self.tasks[-1]
        while sender.answered_s is None:
            if task.done():
                task.result()
            await asyncio.sleep(0.01)
        return sender.answered_s - begun_s


def _identity(host: str) -> Identity:
    role, _, name = host.partition("-")
    return Identity(f"spiffe://waltz/{role}/{name}", frozenset({Role(role)}))


def _run(work: Callable[[Served], Coroutine[Any, Any, None]], **settings: Any) -> None:
    async def main() -> None:
        cluster = MemoryCluster(partitions=4, storages=1, servers=1, identities=_identity, settings=settings)
        await cluster.start()
        await cluster.change_access(lambda found: found.granted(Rule(principal="spiffe://waltz/*/*", operations=(Operation.READ,), resource="log:0")))
        await asyncio.sleep(1)
        served = Served(cluster)
        try:
            await work(served)
        finally:
            for task in served.tasks:
                task.cancel()
            await asyncio.gather(*served.tasks, return_exceptions=True)
            await cluster.stop()

    run_in_virtual_time(main())


@pytest.mark.parametrize("streams", [PLACES, STREAMS])
def test_a_principal_that_reads_nothing_does_not_delay_the_first_answer_of_another(streams: int) -> None:
    async def work(served: Served) -> None:
        for _ in range(streams):
            served.follow("hostile", _never)
        for at in range(5):
            assert await served.answer_s(f"honest-{at}") < 1.0
            await asyncio.sleep(0.7)

    _run(work)


def test_many_principals_that_read_nothing_leave_the_time_in_which_a_client_expects_its_answer() -> None:
    async def work(served: Served) -> None:
        for number in range(16):
            for _ in range(200):
                served.follow(f"hostile-{number}", _never)
        for at in range(5):
            assert await served.answer_s(f"honest-{at}") < FIRST_ANSWER_S
            await asyncio.sleep(0.7)

    _run(work)


def test_a_process_is_answered_while_others_of_its_principal_stand_still() -> None:
    """As many as a principal has places."""

    async def work(served: Served) -> None:
        for _ in range(PLACES // 2):
            served.follow("shop", _never)
        assert await served.answer_s("shop") < FIRST_ANSWER_S

    _run(work)


def test_no_more_first_answers_are_sent_at_once_than_there_are_places() -> None:
    async def work(served: Served) -> None:
        now = most = 0

        async def reads() -> None:
            nonlocal now, most
            now += 1
            most = max(now, most)
            await asyncio.sleep(0.05)
            now -= 1

        senders = [served.follow(f"application-{number}", reads) for number in range(200)]
        await asyncio.sleep(2)
        assert all(each.answered_s is not None for each in senders)
        assert most == PLACES

    _run(work)


def test_a_follower_that_reads_slowly_gets_the_whole_of_a_large_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than it may have a place. Clients wait for each message, not for all."""
    monkeypatch.setattr(followers, "CHUNK_BYTES", 64)

    async def work(served: Served) -> None:
        async def slowly() -> None:
            await asyncio.sleep(0.9 * FIRST_ANSWER_S)

        slow = [served.follow("slow", slowly) for _ in range(PLACES)]
        await asyncio.sleep(0.1)
        assert await served.answer_s("slow") < FIRST_ANSWER_S
        await asyncio.sleep(60)
        assert {each.answered_s is not None for each in slow} == {True}
        assert min(each.messages for each in slow) > 3, "an answer of several messages"
        assert not any(each.done() for each in served.tasks)

    _run(work)


def test_what_a_principal_does_not_read_is_bounded_and_the_oldest_of_it_ends() -> None:
    size = 4 * 1024

    async def work(served: Served) -> None:
        assert await served.answer_s("deaf") < 0.1
        deaf = [served.follow("deaf", _never) for _ in range(200)]
        for _ in range(100):
            await asyncio.sleep(0.1)
            assert sum(each.sending_bytes for each in deaf) <= size + PLACES * 200, "and the heads of messages"
        refused = [task for task in served.tasks if task.done() and isinstance(task.exception(), QuotaExceeded)]
        assert len(refused) > 100
        await asyncio.sleep(12)  # those that got room when the first ones ended have not read for 10 s either
        assert await served.answer_s("deaf") < FIRST_ANSWER_S
        assert await served.answer_s("other") < 0.1

    _run(work, unread_bytes_per_principal=size)
