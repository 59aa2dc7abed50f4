"""The messages between a supervisor and a worker process: the worker's orders at its start, then single lines in both directions.

Each holds one end of a socket pair. If the supervisor's end is closed, the supervisor has ended, and the worker ends too: no worker serves for a node
that no longer exists. Lines are JSON objects with one key.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from typing import Any, Literal  # Any: values that processes send each other

from waltz_log.core.topics.sharding import Shard

__all__ = ["ALIVE", "ALIVE_PAUSE_S", "GROW", "READY", "Link", "Orders"]

READY = "ready"
"""The worker serves."""

ALIVE = "alive"
"""The worker's event loop runs: each `ALIVE_PAUSE_S`."""

ALIVE_PAUSE_S = 1.0

GROW = "grow"
"""The worker of a storage node needs space for this many partitions in the control files."""

LINE_BYTES_MAX = 1024 * 1024


@dataclass(frozen=True)
class Orders:
    """`settings` of the node, as plain values; `siblings`: where the workers reach each other; `own`: where each can be reached individually, if at
    all; `server_id`: of a log server; `cluster_key`: of a storage node, in hexadecimal; `restarts`: how often this worker was restarted."""

    kind: Literal["server", "storage"]
    settings: dict[str, Any]
    worker: int
    workers: int
    address: str
    siblings: tuple[str, ...]
    own: tuple[str, ...] = ()
    log_level: str | None = None
    server_id: int = -1
    cluster_key: str = ""
    restarts: int = 0

    @property
    def shard(self) -> Shard:
        return Shard(self.worker, self.workers)


class Link:
    """One end of the socket pair, on either side."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, end: socket.socket) -> Link:
        return cls(*await asyncio.open_connection(sock=end, limit=LINE_BYTES_MAX))

    def send(self, what: str, value: object = True) -> None:
        """Does not wait, because messages are few and short. A message to a peer that has ended is lost."""
        if not self._writer.is_closing():
            self._writer.write(json.dumps({what: value}).encode() + b"\n")

    async def messages(self) -> AsyncIterator[tuple[str, Any]]:
        """The messages of the other side, until it ends."""
        try:
            while line := await self._reader.readline():
                for what, value in json.loads(line).items():
                    yield what, value
        except (ConnectionError, ValueError):
            return  # gone in the middle of a line

    def send_orders(self, orders: Orders) -> None:
        self.send("orders", asdict(orders))

    async def receive_orders(self) -> Orders | None:
        """The worker's first line; None if the supervisor has ended already."""
        async for _, value in self.messages():
            return Orders(**value | {name: tuple(value[name]) for name in ("siblings", "own")})
        return None

    def close(self) -> None:
        self._writer.close()
