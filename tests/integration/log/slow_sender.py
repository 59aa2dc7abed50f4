"""A peer that sends large messages over HTTP/2 as fast as the node lets it, and never their last byte. gRPC's own clients keep a copy of each
message, so they cannot send gigabytes. Knows of HTTP/2 (RFC 9113) only what a sender needs."""

from __future__ import annotations

import asyncio
import struct
from ssl import SSLContext
from typing import Final

__all__ = ["SlowSender"]

DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 3, 4, 6, 8
ACK, END_STREAM, END_HEADERS = 1, 1, 4
INITIAL_WINDOW_SIZE: Final = 4

WINDOW_BYTES: Final = 65_535
"""Of the connection, and of each call before the settings of the node say otherwise."""

FRAME_BYTES: Final = 16_384


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _headers(path: str) -> bytes:
    """As HPACK literals (RFC 7541, 6.2.2)."""
    fields = {":method": "POST", ":scheme": "https", ":path": path, ":authority": "node", "content-type": "application/grpc", "te": "trailers"}
    return b"".join(b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode() for name, value in fields.items())


class SlowSender:
    """One connection. `sent_bytes`: of messages, in all calls."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, size: int) -> None:
        self._reader, self._writer = reader, writer
        self._size = size
        self._window, self._initial = WINDOW_BYTES, WINDOW_BYTES
        self._windows: dict[int, int] = {}
        self._left: dict[int, int] = {}
        self.ended = 0
        """Calls that the node ended."""
        self.sent_bytes = 0

    @classmethod
    async def connected(cls, address: str, context: SSLContext, size: int) -> SlowSender:
        context.set_alpn_protocols(["h2"])
        host, _, port = address.rpartition(":")
        sender = cls(*await asyncio.open_connection(host, int(port), ssl=context), size)
        sender._writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(SETTINGS, 0, 0, b""))
        return sender

    def begin(self, path: str) -> None:
        """One more call, whose message announces the size, and ends before its last byte."""
        stream = 2 * len(self._windows) + 1
        self._windows[stream], self._left[stream] = self._initial, self._size - 1
        self._writer.write(_frame(HEADERS, END_HEADERS, stream, _headers(path)))
        head = struct.pack(">BI", 0, self._size)
        self._window -= len(head)
        self._windows[stream] -= len(head)
        self._writer.write(_frame(DATA, 0, stream, head))

    async def run(self) -> None:
        """Sends until it is cancelled, or the node ends the connection."""
        try:
            while True:
                await self._send()
                head = await self._reader.readexactly(9)
                payload = await self._reader.readexactly(int.from_bytes(head[:3], "big"))
                self._received(head[3], head[4], int.from_bytes(head[5:], "big") & 0x7FFFFFFF, payload)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writer.transport.abort()

    async def _send(self) -> None:
        """As much as the windows allow, a frame of each call in turn."""
        ready = [*self._left]
        while ready and self._window > 0:
            ready = [stream for stream in ready if self._send_frame(stream)]
            await self._writer.drain()

    def _send_frame(self, stream: int) -> bool:
        size = min(FRAME_BYTES, self._window, self._windows[stream], self._left[stream])
        if size <= 0:
            return False
        self._writer.write(_frame(DATA, 0, stream, bytes(size)))
        self._window -= size
        self._windows[stream] -= size
        self._left[stream] -= size
        self.sent_bytes += size
        return True

    def _received(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == SETTINGS and not flags & ACK:
            for name, value in struct.iter_unpack(">HI", payload):
                if name == INITIAL_WINDOW_SIZE:
                    self._windows = {each: window + value - self._initial for each, window in self._windows.items()}
                    self._initial = value
            self._writer.write(_frame(SETTINGS, ACK, 0, b""))
        elif kind == PING and not flags & ACK:
            self._writer.write(_frame(PING, ACK, 0, payload))
        elif kind == WINDOW_UPDATE and stream == 0:
            self._window += int.from_bytes(payload, "big")
        elif kind == WINDOW_UPDATE:
            self._windows[stream] += int.from_bytes(payload, "big")
        elif (kind == RST_STREAM or (kind == HEADERS and flags & END_STREAM)) and self._left.pop(stream, None) is not None:
            self.ended += 1
