"""When a mount accepts appends: from the moment its client may know of it, which may be before the owner's own write returns."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from waltz_log.server.mounts.feed import Feed
from waltz_log.server.mounts.mount import Mount
from waltz_log.server.replication.store_session import StoreSession
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.methods import PROTOCOL_VERSION, ServedMountStream


class _SlowToReturn:
    """The message is out, and its sender does not know yet."""

    def __init__(self) -> None:
        self.sent: list[pb.ServerMessage] = []

    async def send(self, message: pb.ServerMessage) -> None:
        self.sent.append(message)
        await asyncio.Event().wait()


async def test_a_mount_is_ready_before_its_client_gets_the_answer() -> None:
    stream = _SlowToReturn()
    store = SimpleNamespace(partition=0, first_transaction_id=0, session=3, committed=-1)
    request = pb.MountRequest(client_id=1, mount_sequence=1, client_high_water_mark=-1)
    mount = Mount(request, cast(ServedMountStream, stream), cast(StoreSession, store), cast(Feed, None), 1, PROTOCOL_VERSION)
    writing: asyncio.Task[Any] = asyncio.ensure_future(mount.write(-1))
    try:
        assert not mount.ready
        while not stream.sent:
            await asyncio.sleep(0)
        assert stream.sent[0].WhichOneof("kind") == "mounted"
        assert mount.ready
    finally:
        writing.cancel()
