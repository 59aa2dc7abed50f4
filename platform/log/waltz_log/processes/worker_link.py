"""What a supervisor and its worker process tell each other: the worker's orders at its start, then a line whenever there is something to say.

Both hold one end of a socket pair. Where the supervisor's end is gone, so is the supervisor, and the worker ends: no worker serves for a node that is
not there any more. Lines are JSON objects with one key.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from waltz_log.core.topics.sharding import Shard

__all__ = ["READY", "ROOM", "Link", "Orders"]

READY = "ready"
"""The worker serves."""

ROOM = "room"
"""The worker of a storage node needs room for so many partitions in the control files."""

LINE_BYTES_MAX = 1024 * 1024


@dataclass(frozen=True)
class Orders:
    """`settings` of the node, as plain values; `fellows`: where the workers reach each other; `own`: where each is reached by others, if by itself;
    `server_id`: of a log server; `cluster_key`: of a storage node, in hexadecimal; `restarts`: how often this worker was started again."""

    kind: Literal["server", "storage"]
    settings: dict[str, Any]
    worker: int
    workers: int
    address: str
    fellows: tuple[str, ...]
    own: tuple[str, ...] = ()
    log_level: str | None = None
    server_id: int = -1
    cluster_key: str = ""
    restarts: int = 0

    @property
    def shard(self) -> Shard:
        return Shard(self.worker, self.workers)


class Link:
    """One end, of whichever side."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, end: socket.socket) -> Link:
        return cls(*await asyncio.open_connection(sock=end, limit=LINE_BYTES_MAX))

    def tell(self, what: str, value: object = True) -> None:
        """Does not wait: what is told is little, and nobody is served better for it. Told to a peer that is gone it is lost."""
        if not self._writer.is_closing():
            self._writer.write(json.dumps({what: value}).encode() + b"\n")

    async def told(self) -> AsyncIterator[tuple[str, Any]]:
        """What the other side says, until it is gone."""
        try:
            while line := await self._reader.readline():
                for what, value in json.loads(line).items():
                    yield what, value
        except (ConnectionError, ValueError):
            return  # gone in the middle of a line

    def give(self, orders: Orders) -> None:
        self.tell("orders", asdict(orders))

    async def take(self) -> Orders | None:
        """The worker's first line; None where the supervisor is gone already."""
        async for _, value in self.told():
            return Orders(**value | {name: tuple(value[name]) for name in ("fellows", "own")})
        return None

    def close(self) -> None:
        self._writer.close()
