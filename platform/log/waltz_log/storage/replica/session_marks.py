"""Which store session a replica accepts, and in which one it is clean: the fence, the mark, and the epoch of streams.

The fence and the mark are durable in the control files before they count here. The fence only rises. Changes happen within the turn of the partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from waltz_log.core.formats.control_format import SessionMark
from waltz_log.core.ports import Offload
from waltz_log.errors import ProtocolViolation, ReplicaFenced, SessionTooOld
from waltz_log.storage.control.control import ControlFiles
from waltz_log.storage.replica.progress import mark_of_progress

__all__ = ["SessionMarks"]


class SessionMarks:
    """`guarded` awaits a write to the control files and stops the partition if it fails. `turn` is held during such a write."""

    def __init__(
        self, partition: int, control: ControlFiles, turn: asyncio.Lock, offload: Offload, guarded: Callable[[Awaitable[object]], Awaitable[None]]
    ) -> None:
        self.partition = partition
        self.fence = control.fence(partition)
        """The newest session that was seen; -1: none."""
        self.mark = control.mark(partition)
        """The newest session in which the replica is clean, and its low-water marks."""
        self.grew_as_member = False
        """The log grew in the session in which this replica is clean. No newer session changes that, until one makes the replica clean."""
        self.refused = 0
        """The number of requests and streams of older sessions that were refused."""
        self._stream_epoch = 0
        """For the newest session: streams of blocks with a lower epoch are refused."""
        self._filled_to: int | None = None
        """While the newest session fills this replica: the mark up to which everything that it appends is committed."""
        self._control = control
        self._turn = turn
        self._offload = offload
        self._guarded = guarded

    # ---- checks ----------------------------------------------------------------------------------------------------------------------------------

    def fenced(self, session: int) -> ReplicaFenced:
        """The error for a request of an older session, which is counted."""
        self.refused += 1
        return ReplicaFenced(what="store session", partition=self.partition, mine=session, newer=self.fence, clean_session=self.mark.session)

    def expect_member(self, session: int) -> None:
        """Raises `SessionTooOld` if this replica is not clean in exactly this session."""
        if self.mark.session != session:
            raise SessionTooOld(partition=self.partition, asked=session, session=self.mark.session)

    def expect_clean(self, session: int) -> None:
        """Raises `SessionTooOld` if this replica was last clean in an older session."""
        if self.mark.session < session:
            raise SessionTooOld(partition=self.partition, asked=session, session=self.mark.session)

    def expect_opened(self, session: int) -> None:
        """Raises `SessionTooOld` unless this session, and none after it, was opened here."""
        if session != self.fence:
            raise SessionTooOld(partition=self.partition, asked=session, session=self.fence)

    def expect_stream(self, session: int, stream_epoch: int) -> None:
        """Raises `ProtocolViolation` for a stream that arrives late: it may bring blocks of a copy that was abandoned."""
        if stream_epoch < self._stream_epoch:
            reason = f"the stream is late: partition={self.partition} session={session} stream_epoch={stream_epoch} newest={self._stream_epoch}"
            raise ProtocolViolation(reason=reason)

    @property
    def settled(self) -> bool:
        """Whether the replica is clean in the newest session that it has seen."""
        return self.mark.session == self.fence >= 0

    @property
    def committed(self) -> int:
        """The last transaction that is known to be committed: recovery never truncates below it."""
        return min(self.mark.low_water_mark, self.mark.local_low_water_mark)

    # ---- changes ---------------------------------------------------------------------------------------------------------------------------------

    def note_growth(self, first_id: int, written_id: int) -> None:
        """Only while the clean session is the newest: blocks that a newer session copies are no growth of a member."""
        if self.settled:
            self.grew_as_member = written_id > self.mark.low_water_mark and written_id >= first_id

    def raise_stream_epoch(self, stream_epoch: int) -> None:
        self._stream_epoch = max(self._stream_epoch, stream_epoch)

    async def raise_fence(self, session: int) -> None:
        async with self._turn:
            await self._guarded(self._offload(self._control.raise_fence, self.partition, session))
        self.fence, self._stream_epoch = session, 0

    async def make_clean(self, mark: SessionMark) -> None:
        """The replica is clean in the session of the mark. From here on, its log grows by what that session orders."""
        await self._set(mark)
        self._filled_to, self.grew_as_member = None, False

    async def disown(self, now_ms: int, last: int) -> None:
        """The replica lost what it acknowledged: it counts as restored (docs/decisions, 8) until a session makes it clean. `last`: the last id on
        disk."""
        mark = SessionMark(min(-2, -now_ms), self.mark.low_water_mark, min(last, self.mark.local_low_water_mark))
        async with self._turn:
            await self._guarded(self._offload(self._control.disown, self.partition, mark))
        self.mark, self.grew_as_member = mark, False

    async def keep_progress(self, session: int, low_water_mark: int, kept: int, last: int) -> int:
        """The session fills this replica: everything up to `kept` is committed and stays, and so will everything up to the low-water mark. `last`:
        the last id on disk. Returns the id up to which everything is kept. Raises as `mark_of_progress`."""
        await self.put_progress(mark_of_progress(self.partition, self.mark, session, low_water_mark, kept, last))
        self._filled_to = low_water_mark if self.mark.session != session else None
        return self.mark.local_low_water_mark

    async def put_progress(self, mark: SessionMark) -> None:
        if mark != self.mark:
            await self._set(mark)

    async def end_fill(self, last: int) -> None:
        """Before a newer session is admitted: keeps what the previous one copied, up to its mark. `last`: the last id on disk."""
        filled_to, self._filled_to = self._filled_to, None
        if filled_to is not None:
            await self.put_progress(mark_of_progress(self.partition, self.mark, self.fence, filled_to, min(last, filled_to), last))

    async def _set(self, mark: SessionMark) -> None:
        async with self._turn:
            await self._guarded(self._offload(self._control.set_mark, self.partition, mark))
        self.mark = mark
