"""The codec of a direct stream: frames on one TCP connection that carries one message stream and nothing else. Blocks are sent to replicas on such
streams (decision 20), and appends to log servers (decision 46).

A frame is a kind (1 byte), a length (4 bytes, big-endian) and that many bytes. The calling end begins with a greeting that names the procedure.
Then messages go both ways until the caller sends END, after which it only receives. The serving end closes with a STATUS. Flow control is that of
TCP: an end that does not consume messages stops reading, and its peer's `send` waits. Each end pings a peer that has been silent for a while, and
closes the connection if there is no answer.

The memory of a frame grows with what was received of it, not with what its sender announces, and counts against the caller's principal
(`received_bytes`).

A caller is not trusted until the handler has accepted its opening: the first message, which carries the cluster key and the session. Until then the
serving end buffers a few hundred bytes for it, reads nothing beyond the opening, and closes the connection if the opening does not arrive in time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from struct import Struct
from typing import cast

from waltz_log.errors import ConnectionLost, ProtocolViolation, WaltzError, decode, encode
from waltz_log.transport.direct.large_frame import LargeFrame
from waltz_log.transport.direct.received_bytes import Share
from waltz_log.transport.methods import MAX_FRAME_BYTES
from waltz_log.transport.request_limits import OPENING_BYTES_MAX

__all__ = ["GREETING", "OPENING_BYTES_MAX", "VERSION", "Wire"]

HEAD = Struct(">BI")
MESSAGE, END, STATUS, PING, PONG = range(5)
GREETING = 0x57
"""Kind of the first frame: no protocol that might knock here by mistake begins so."""

VERSION = b"\x01"

BUFFER_BYTES = 16 * 1024
"""For each accepted connection: what is received lands here. A frame that does not fit gets its own buffer and is received in place."""

GREETING_BYTES_MAX = 256

UNTRUSTED_BYTES = HEAD.size + max(GREETING_BYTES_MAX, OPENING_BYTES_MAX)
"""All that a connection holds of what its peer sent until the handler accepts the opening."""

HANDSHAKE_S = 5.0
"""For greeting and opening together, which the calling end sends at once: some round trips to a peer that is far away or busy."""

HELD_BYTES_MAX = 1024 * 1024
"""Bytes that were received and not consumed. Above this limit nothing more is read."""

CONTROL_BYTES_MAX = 64 * 1024
"""For a frame that carries no message: the longest is a status with its error."""

FRAME_S = 60.0
"""How long one frame may arrive: the largest one at 2 Mbit/s. An incomplete frame holds memory."""

MESSAGE_BYTES = 64
"""The approximate memory of a message besides its data."""

UNSENT_BYTES_MAX = 256 * 1024
"""Bytes that were written and not accepted by the kernel. Above this limit `send` waits."""

STEP_BYTES_MAX = 1024 * 1024
"""Bytes of large frames that one step of the event loop receives. libuv reads up to 32 times in a step, 256 KiB each, and with TLS 8 MiB need 30 ms,
while every other connection waits."""

JOINED_BYTES = 16 * 1024
"""Below this a copy costs less than a second buffer."""

SILENCE_S = 10.0
"""After this time without a byte the peer is pinged. After the same time again the connection is closed."""

LINGER_S = 10.0
"""How long a peer has to read the status. If the peer still sends, closing at once would reset the connection and lose the status."""


class Wire(asyncio.BufferedProtocol):
    """One end. `greeted` (serving end): called with the wire and the procedure's name, within `handshake_s`. `when_lost` is called once, when the
    connection is gone."""

    def __init__(self, greeted: Callable[[Wire, str], None] | None = None, handshake_s: float = HANDSHAKE_S) -> None:
        self._handshake_s = handshake_s
        self.status: bytes | None = None
        """What the stream ended with: nothing if it ended in order, else an encoded `WaltzError`."""
        self.lost: str | None = None
        self.finished = False
        """The other end sends nothing more."""
        self.when_lost: Callable[[], object] | None = None
        self._greeted = greeted
        self._greeting_due = self._opening_due = greeted is not None
        self._judging = False
        """The opening is here, and the handler has not accepted it yet: nothing more is read."""
        self._ending = False
        self._buffer = bytearray(BUFFER_BYTES if greeted is None else UNTRUSTED_BYTES)
        self._view = memoryview(self._buffer)
        self._begin = self._end = 0
        self._large: LargeFrame | None = None
        self.share = Share()
        self._charged = self._in_hand = 0
        self._messages: deque[bytes | memoryview] = deque()
        self._held = 0
        self._reading = True
        self._receiver: asyncio.Future[None] | None = None
        self._senders: asyncio.Future[None] | None = None
        self._step_s = 0.0
        self._step_bytes = 0
        self._heard = self._asked = False
        self._reason = "connection closed by the peer"
        self._timer: asyncio.TimerHandle | None = None

    # ---- as the event loop calls it ------------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._loop = asyncio.get_running_loop()
        self._transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)
        if self._greeting_due:
            self._timer = self._loop.call_later(self._handshake_s, self._check_silence)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._large is not None:
            return self._large.free
        return self._view[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        self._heard = True
        if self._ending:
            self._begin = self._end = 0
        elif self._large is not None:
            self._large.received(nbytes)
            if (data := self._large.whole) is not None:
                kind, self._large = self._large.kind, None
                self._release(len(data))
                self._frame(kind, data)
            elif self._large.needs_memory:
                self._grow()
            self._end_step(nbytes)
        else:
            self._end += nbytes
            self._process_frames()

    def _process_frames(self) -> None:
        while self._end - self._begin >= HEAD.size and not self._ending and not self._judging:
            kind, length = HEAD.unpack_from(self._buffer, self._begin)
            if self._refused(kind, length):
                break
            start, stop = self._begin + HEAD.size, self._begin + HEAD.size + length
            if stop <= self._end:
                self._begin = stop
                self._frame(kind, bytes(self._view[start:stop]))
            elif HEAD.size + length > len(self._buffer):
                self._large, self._begin = LargeFrame(kind, length, self._view[start : self._end], self._loop.time()), self._end
                self._charge(self._large.held_bytes)
            else:
                break
        if self._ending:
            self._begin = self._end = 0
        elif self._begin:
            rest = self._end - self._begin
            self._buffer[:rest] = self._view[self._begin : self._begin + rest].tobytes()
            self._begin, self._end = 0, rest

    def _grow(self) -> None:
        """Makes room for more of the frame, or reads nothing more until its principal may hold that."""
        assert self._large is not None
        if self.share.is_full:
            self._pause_reading()
        else:
            self._charge(self._large.grow())

    # ---- memory --------------------------------------------------------------------------------------------------------------------------------

    def _charge(self, size: int) -> None:
        self._charged += size
        self.share.charge(size)

    def _release(self, size: int) -> None:
        self._charged -= size
        self.share.release(size)

    def _release_all(self) -> None:
        self._large, self._in_hand = None, 0
        self.share.forget(self._read_on)
        charged, self._charged = self._charged, 0
        self.share.release(charged)

    def _pause_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._transport.pause_reading()
        if self.share.is_full:
            self.share.pause(self._read_on)

    def _end_step(self, nbytes: int) -> None:
        """Reads on in the next step if this one has received enough."""
        now_s = self._loop.time()  # the same during a step
        if now_s != self._step_s:
            self._step_s, self._step_bytes = now_s, 0
        self._step_bytes += nbytes
        if self._step_bytes >= STEP_BYTES_MAX and self._reading:
            self._reading = False
            self._transport.pause_reading()
            self._loop.call_soon(self._read_on)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._senders = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._senders is not None:
            senders, self._senders = self._senders, None
            senders.set_result(None)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._cancel_timer()
        self._release_all()
        self.lost = self._reason if exc is None or isinstance(exc, ConnectionError) else f"{self._reason}: {exc}"
        self.resume_writing()
        self._wake()
        if self.when_lost is not None:
            self.when_lost()

    # ---- frames --------------------------------------------------------------------------------------------------------------------------------

    def _refused(self, kind: int, length: int) -> bool:
        limit = OPENING_BYTES_MAX if self._opening_due else MAX_FRAME_BYTES if kind == MESSAGE else CONTROL_BYTES_MAX
        if self._greeting_due:
            wrong = None if kind == GREETING and length <= GREETING_BYTES_MAX else "a stream begins with a greeting"
        elif kind > PONG:
            wrong = f"unknown frame kind={kind}"
        elif kind in (MESSAGE, END) and (self.finished or self.status is not None):
            wrong = "a message after the end of the stream"
        else:
            wrong = None if length <= limit else f"frame too large: bytes={length} limit={limit}"
        if wrong is not None:
            self._break(ProtocolViolation(reason=wrong))
        return wrong is not None

    def _break(self, error: WaltzError) -> None:
        """Ends the stream with an error at both ends."""
        self.status = encode(error).encode()
        self.end(self.status)
        self.resume_writing()
        self._wake()

    def _frame(self, kind: int, data: bytes | memoryview) -> None:
        if kind == GREETING and self._greeting_due:
            self._greeting_due = False
            assert self._greeted is not None
            if data[:1] == VERSION:
                self._greeted(self, bytes(data[1:]).decode("ascii", "replace"))
            else:
                self._break(ProtocolViolation(reason=f"unknown version of the framing: {bytes(data[:1]).hex()}"))
        elif kind == PING:
            if self._senders is None:  # otherwise the peer has enough to read, and would hear of no PONG
                self._write(PONG, b"")
        elif kind == PONG or self._ending:
            return
        elif kind == MESSAGE:
            self._messages.append(data)
            self._held += len(data) + MESSAGE_BYTES
            self._charge(len(data) + MESSAGE_BYTES)
            if self._opening_due:
                self._opening_due, self._judging = False, True
                self._cancel_timer()
                self._timer = self._loop.call_later(SILENCE_S, self._check_silence)
            if self._held > HELD_BYTES_MAX or self._judging or self.share.is_full:
                self._pause_reading()
            self._wake()
        elif kind == END:
            self.finished = True
            self._wake()
        elif kind == STATUS:
            self.status = bytes(data)
            self._transport.close()
            self.resume_writing()
            self._wake()

    def _wake(self) -> None:
        if self._receiver is not None and not self._receiver.done():
            self._receiver.set_result(None)

    def _write(self, kind: int, *pieces: bytes) -> None:
        """Writes one frame; drops it if the connection is closing. Small pieces are joined; a large one is not copied. There is one call, because
        uvloop writes at once what it is given, and a header that is sent alone wakes the peer before there is anything to process."""
        if self._transport.is_closing():
            return
        small = HEAD.pack(kind, sum(map(len, pieces)))
        parts: list[bytes] = []
        for piece in pieces:
            if len(piece) <= JOINED_BYTES:
                small += piece
            else:
                parts += (small, piece) if small else (piece,)
                small = b""
        if small:
            parts.append(small)
        self._transport.writelines(parts)
        if self._senders is None and self._transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
            # Calls `pause_writing`, which writelines of Python 3.12 and 3.13 forgets.
            self._transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check_silence(self) -> None:
        """Checks for a silent peer. While this end does not read, pings of the peer wait unread, so it sends a PONG unasked."""
        self._timer = self._loop.call_later(SILENCE_S, self._check_silence)  # first: an error below must not end the checks
        is_late = self._large is not None and self._loop.time() - self._large.since_s > FRAME_S
        if (self._opening_due and not self.finished) or is_late or (self._asked and not self._heard and self._reading):
            self._reason = "no opening in time" if self._opening_due else "frame did not arrive in time" if is_late else "peer is silent"
            self._transport.abort()
            return
        self._asked = not self._heard and self._reading
        self._heard = False
        if self._asked:
            self._write(PING, b"")
        elif not self._reading:
            self._write(PONG, b"")

    # ---- as a stream calls it ------------------------------------------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        return self.status is not None or self.lost is not None or self._transport.is_closing()

    def greet(self, procedure: str) -> None:
        """The calling end's first frame. Its checks for silence begin here and not in `connection_made`: where `create_connection` is canceled in
        between, uvloop closes the transport without calling `connection_lost`, and the timer would never end."""
        self._write(GREETING, VERSION + procedure.encode())
        if self.lost is None:
            self._timer = self._loop.call_later(SILENCE_S, self._check_silence)

    def _accept(self) -> None:
        """The handler answers, or reads more than the opening: the peer is trusted now, and the full limits apply."""
        self._judging = False
        rest = bytes(self._view[self._begin : self._end])
        self._buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._view[: len(rest)] = rest
        self._begin, self._end = 0, len(rest)
        self._process_frames()
        self._read_on()

    def _read_on(self) -> None:
        if self._reading or self._judging or self._held > HELD_BYTES_MAX // 2:
            return
        if self.share.is_full and self._charged:  # a connection that holds nothing goes on
            self.share.pause(self._read_on)
            return
        if self._large is not None and self._large.needs_memory:
            self._charge(self._large.grow())
        self._reading = True
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def _return_in_hand(self) -> None:
        """The receiver is done with the message that it received last."""
        in_hand, self._in_hand = self._in_hand, 0
        if in_hand and self._charged:
            self._release(in_hand)

    async def send(self, *pieces: bytes) -> None:
        """Sends a message that consists of these pieces. Waits while the peer does not read. To be asked afterwards: `over`."""
        if self._judging:
            self._accept()
        self._write(MESSAGE, *pieces)
        while self._senders is not None:
            await asyncio.shield(self._senders)

    async def next(self) -> bytes | memoryview | None:
        """The next message; None if there will be none: `finished`, `status` and `lost` say why. For one receiver at a time."""
        self._return_in_hand()
        if self._judging and not self._messages:
            self._accept()
        while not self._messages:
            if self.finished or self.status is not None or self.lost is not None:
                return None
            self._receiver = self._loop.create_future()
            try:
                await self._receiver
            finally:
                self._receiver = None
        data = self._messages.popleft()
        self._held -= len(data) + MESSAGE_BYTES
        self._in_hand = len(data) + MESSAGE_BYTES
        self._read_on()
        return data

    def finish(self) -> None:
        self._write(END, b"")

    def end(self, status: bytes) -> None:
        """Sends the serving end's status. What the peer still sends is read and dropped until it has received the status."""
        if self._ending or self._transport.is_closing():
            return
        self._write(STATUS, status)
        if self._transport.can_write_eof():  # TLS has no half close: the status alone ends the stream there
            self._transport.write_eof()
        self._ending = True
        self._messages.clear()
        self._held = 0
        self._release_all()
        self._judging = False
        self._begin = self._end = 0
        if not self._reading:
            self._reading = True
            self._transport.resume_reading()
        self._cancel_timer()
        self._timer = self._loop.call_later(LINGER_S, self._transport.abort)

    def abort(self, reason: str = "cancelled") -> None:
        self._reason = reason
        self._transport.abort()

    def error(self, address: str) -> WaltzError:
        """Why nothing more comes, where the stream did not end in order."""
        if self.status:
            told = decode(self.status.decode("utf-8", "replace"))
            return told if told is not None else ProtocolViolation(reason=f"unknown status from {address}")
        return ConnectionLost(address=address, reason=self.lost or self._reason if self.status is None else "stream has ended")
