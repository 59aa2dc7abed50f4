"""Room for what callers do not read: bounded for each principal, returned, and given up by those that read nothing."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from waltz_log.errors import QuotaExceeded
from waltz_log.security.identity import Identity, Role
from waltz_log.transport import unread
from waltz_log.transport.unread import Room, Unread

ADA, BOB = (Identity(name, frozenset({Role.READER})) for name in ("ada", "bob"))
NODE = Identity("a node", frozenset({Role.NODE}))


async def _passes(count: int = 3) -> None:
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


@pytest.mark.parametrize(("size", "apart"), [(1, 1), (unread.PASS_BYTES, 2), (4 * unread.PASS_BYTES, 5)])
async def test_messages_of_a_principal_begin_in_different_passes_of_the_loop(size: int, apart: int) -> None:
    """A commit that wakes hundreds of its feeds would otherwise make hundreds of frames in one pass, while all others wait."""
    rooms, begun, passes = Unread(1 << 30), list[int](), 0

    async def send() -> None:
        room = await rooms.acquire(ADA, 8 * unread.PASS_BYTES)
        begun.append(passes)
        room.shrink(size)
        room.release()

    sending = [asyncio.ensure_future(send()) for _ in range(4)]
    while not all(each.done() for each in sending):
        passes += 1
        await asyncio.sleep(0)
        assert passes < 100
        other = rooms.acquire_now(BOB, 1)
        assert passes % 9 or other is not None, "each principal has its own"
        if other is not None:
            other.release()
    assert {later - earlier for earlier, later in pairwise(begun[1:])} == {apart}


@pytest.mark.parametrize("passes", range(8))
async def test_a_cancelled_caller_leaves_the_room_of_later_ones_alone(passes: int) -> None:
    """Its principal may have been forgotten meanwhile, and have come back."""
    rooms = Unread(10)

    async def send(size: int) -> None:
        async with await rooms.acquire(ADA, size):
            await asyncio.sleep(0)

    await send(4)
    waiting = asyncio.ensure_future(send(4))
    await _passes(passes)
    later = [asyncio.ensure_future(send(6)) for _ in range(3)]
    waiting.cancel()
    async with asyncio.timeout(5):
        await asyncio.gather(waiting, *later, return_exceptions=True)
        await send(6)
    await _passes()
    assert (rooms.held("ada"), rooms.principals) == (0, 0)


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


async def test_a_message_that_is_still_made_does_not_protect_those_that_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unread, "UNREAD_S", 0.05)
    rooms = Unread(10)
    made = await rooms.acquire(ADA, 5)

    async def never_read() -> None:
        async with await rooms.acquire(ADA, 5):
            await asyncio.Event().wait()

    deaf = asyncio.ensure_future(never_read())
    await _passes()
    async with asyncio.timeout(5):
        room = await rooms.acquire(ADA, 5)
        with pytest.raises(QuotaExceeded):
            await deaf
    room.release()
    made.release()
