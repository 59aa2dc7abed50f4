"""The room of a feed's frame is returned whenever the mount ends."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any  # Any: a stream, a feed and a store that answer what a mount asks of them

import pytest

from waltz_log.security.identity import Identity, Role
from waltz_log.server.mounts.mount import Mount
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.unread import Unread

ADA = Identity("ada", frozenset({Role.READER}))
FEEDS = 30
FRAME_BYTES = 1 << 20


class _Stream:
    async def send(self, message: pb.ServerMessage) -> None:
        await asyncio.sleep(0)


class _Feed:
    bytes_max = FRAME_BYTES

    def near(self, first: int) -> bool:
        return True

    def ready(self, headers: bool, first: int, target: int) -> Any:
        return SimpleNamespace(size=1000, message=pb.ServerMessage(), last=target)


def _mount(unread: Unread, store: Any) -> Mount:
    stream: Any = _Stream()
    feed: Any = _Feed()
    request = pb.MountRequest(client_id=1, mount_sequence=1, client_high_water_mark=-1, feed=pb.FEED_HEADERS)
    mount = Mount(request, stream, store, feed, 1, 1, None, unread)
    mount.caller = ADA
    return mount


async def _passes(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("passes", range(0, 100, 3))
async def test_feeds_of_a_principal_that_end_together_hold_nothing(passes: int) -> None:
    """Most of them wait for their turn, and some have just got their room."""
    unread, store = Unread(FEEDS * FRAME_BYTES), SimpleNamespace(partition=0, first_transaction_id=0, committed=-1)
    mounts = [_mount(unread, store) for _ in range(FEEDS)]
    writing = [asyncio.ensure_future(mount.write(-1)) for mount in mounts]
    await _passes(50)
    store.committed = 5
    for mount in mounts:
        mount.committed()
    await _passes(passes)
    for each in writing:
        each.cancel()
    await asyncio.gather(*writing, return_exceptions=True)
    await _passes(50)
    assert unread.held("ada") == 0
    assert unread.principals == 0
