"""Room for what callers do not read: bounded for each principal, returned, and given up by those that read nothing."""

from __future__ import annotations

import asyncio

import pytest

from waltz_log.errors import QuotaExceeded
from waltz_log.security.identity import Identity, Role
from waltz_log.transport import unread
from waltz_log.transport.unread import Room, Unread

ADA, BOB = (Identity(name, frozenset({Role.READER})) for name in ("ada", "bob"))
NODE = Identity("a node", frozenset({Role.NODE}))


async def _passes(count: int = unread.PASSES + 1) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_principal_waits_for_its_own_room_and_no_other_does() -> None:
    rooms = Unread(10)
    first = await rooms.acquire(ADA, 6)
    waiting = asyncio.ensure_future(rooms.acquire(ADA, 6))
    await asyncio.sleep(0)
    assert not waiting.done()
    assert rooms.acquire_now(ADA, 1) is None, "it would pass the one that waits"
    assert rooms.acquire_now(BOB, 10) is not None
    await _passes()
    assert not waiting.done(), "there is no room"
    first.release()
    assert rooms.held("ada") == 6
    second = await waiting
    second.release()
    second.release()
    assert rooms.held("ada") == 0


async def test_messages_of_a_principal_begin_some_passes_of_the_loop_apart() -> None:
    """A commit that wakes hundreds of its feeds would otherwise make hundreds of frames in one pass, while all others wait."""
    rooms = Unread(1000)
    assert rooms.acquire_now(ADA, 1) is not None
    assert rooms.acquire_now(ADA, 1) is None
    assert rooms.acquire_now(BOB, 1) is not None, "each principal has its own"
    waiting = [asyncio.ensure_future(rooms.acquire(ADA, 1)) for _ in range(3)]
    begun = []
    for _ in range(4 * (unread.PASSES + 2)):
        await asyncio.sleep(0)
        begun.append(sum(each.done() for each in waiting))
    assert begun[-1] == 3
    first, second, third = (begun.index(count) for count in (1, 2, 3))
    assert min(first + 1, second - first, third - second) >= unread.PASSES
    for each in waiting:
        each.result().release()


async def test_room_is_returned_when_a_message_turns_out_to_be_smaller_and_when_it_was_sent() -> None:
    rooms = Unread(10)
    room = await rooms.acquire(ADA, 10)
    waiting = asyncio.ensure_future(rooms.acquire(ADA, 7))
    await asyncio.sleep(0)
    room.shrink(3)
    async with room:
        (await waiting).release()
    await _passes()
    assert rooms.principals == 0


async def test_one_that_waited_and_was_cancelled_holds_nothing() -> None:
    rooms = Unread(10)
    room = await rooms.acquire(ADA, 10)
    waiting = [asyncio.ensure_future(rooms.acquire(ADA, 10)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await _passes()
    room.release()  # it is the turn of the second one, which is cancelled before it runs
    waiting[1].cancel()
    (await waiting[2]).release()
    await _passes()
    assert rooms.principals == 0


async def test_nodes_and_peers_without_a_name_are_not_counted() -> None:
    rooms = Unread(1)
    for peer in (NODE, None):
        for _ in range(5):
            assert rooms.acquire_now(peer, 1 << 30) is not None
    assert Unread(0).acquire_now(ADA, 1 << 30) is not None
    assert rooms.principals == 0


async def test_what_is_larger_than_the_limit_uses_all_of_it() -> None:
    rooms = Unread(10)
    room = rooms.acquire_now(ADA, 1 << 30)
    assert room is not None
    assert rooms.held("ada") == 10
    room.release()


async def test_the_oldest_that_is_not_read_ends_where_its_room_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unread, "UNREAD_S", 0.05)
    rooms = Unread(10)

    async def never_read(room: Room) -> None:
        async with room:
            await asyncio.Event().wait()

    deaf = [asyncio.ensure_future(never_read(await rooms.acquire(ADA, 5))) for _ in range(2)]
    await asyncio.sleep(0.1)
    assert not any(each.done() for each in deaf), "while nothing waits for its room, a message may stay unread"
    async with asyncio.timeout(5):
        room = await rooms.acquire(ADA, 5)
        with pytest.raises(QuotaExceeded, match="unread_bytes_per_principal"):
            await deaf[0]
    assert not deaf[1].done()
    room.release()
    deaf[1].cancel()
    await asyncio.gather(deaf[1], return_exceptions=True)
    assert rooms.principals == 0
