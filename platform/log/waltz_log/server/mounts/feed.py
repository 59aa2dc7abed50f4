"""What a partition's readers are fed, frame by frame: from memory near the end, from a replica further back (Waltz Server, the tasks of
realtime and catch-up feed).

A reader is where its last frame ended, and nothing else: it is near real time while memory holds what comes next, and catches up while that must be
read. So the hand-over between the two, either way, is that the next frame begins one above the last; there is nothing to lose or to repeat. Frames
near the end are made as soon as there is something to send and hold all there is, up to a bound; those of readers at one place are made once.
Never above the target, which is committed.
"""

from __future__ import annotations

from waltz_log.core.formats.block import Block
from waltz_log.core.formats.record_layout import SEALED_HEADER_BYTES
from waltz_log.core.status.server_statistics import FeedStatistics
from waltz_log.server.base.settings import ServerSettings
from waltz_log.server.mounts.feed_frames import FRAME_BLOCKS_MAX, FeedFrame, PartitionFrames
from waltz_log.server.mounts.fetcher import Fetcher
from waltz_log.server.replication.memory import Run, cut
from waltz_log.server.replication.store_session import StoreSession

__all__ = ["Feed"]


class Feed:
    """The feed of one store session, for all its mounts; `close` it with that."""

    def __init__(self, store: StoreSession, frames: PartitionFrames, settings: ServerSettings) -> None:
        self._memory = store.memory
        self._frames = frames
        self._fetcher = Fetcher(store, settings, self._remember)
        self.bytes_max = settings.feed_bytes_max
        """About that many bytes of records in one frame."""

    def ready(self, headers: bool, first: int, target: int) -> FeedFrame | None:
        """The next frame if it can be made at once."""
        found = self._frames.find(headers, first, target)
        if found is not None:
            return found
        blocks = cut(self._memory.window.blocks_from(first, target, self.bytes_max, FRAME_BLOCKS_MAX), first, target)
        if blocks:
            return self._frames.make(headers, blocks, target)
        run = self._frames.headers_from(first) if headers else None
        if run is not None:
            return self._frames.make(headers, _cut_headers(run, first, target), target, headers_cut=True)
        run = self._memory.runs.find(first)
        return None if run is None else self._frames.make(headers, run.between(first, target), target)

    async def fetch(self, headers: bool, first: int, target: int) -> FeedFrame:
        """The next frame, read from a replica. The one after it is read meanwhile where there is room to keep it."""
        run = await self._fetcher.fetch(first, headers_only=headers)
        size = run.held_bytes
        made_by_another = self._frames.find(headers, first, target)
        if made_by_another is not None:
            frame = made_by_another
        elif headers:
            frame = self._frames.make(headers, _cut_headers(run, first, target), target, headers_cut=True)
        else:
            frame = self._frames.make(headers, run.between(first, target), target)
        following = run.last + 1
        if following < min(target, self._memory.window.first_transaction_id) and 4 * size < (self._frames if headers else self._memory).share:
            self._fetcher.ahead(following, headers_only=headers)
        return frame

    async def blocks(self, first: int, last: int) -> list[Block]:
        """Whole transactions of the range, from its beginning, about one frame of them."""
        found = cut(self._memory.window.blocks_from(first, last, self.bytes_max), first, last)
        if found:
            return found
        run = self._memory.runs.find(first)
        if run is None:
            run = await self._fetcher.fetch(first, headers_only=False, last=last)
        return run.between(first, last)

    def holds(self, transaction_id: int) -> bool:
        """Whether memory has the whole transaction."""
        return self.near(transaction_id) or self._memory.runs.find(transaction_id) is not None

    def _remember(self, run: Run, headers: bool) -> None:
        if headers:
            self._frames.remember(run)
        else:
            self._memory.remember(run)

    def near(self, first: int) -> bool:
        """Whether a reader that needs this next follows in near real time."""
        return first >= self._memory.window.first_transaction_id

    def statistics(self) -> FeedStatistics:
        return FeedStatistics(
            memory_bytes=self._memory.held_bytes,
            frame_bytes=self._frames.held_bytes,
            frames_made=self._frames.made,
            frames_shared=self._frames.shared,
            reads=self._fetcher.reads,
            joined=self._fetcher.joined,
        )

    async def close(self) -> None:
        await self._fetcher.close()
        self._frames.close()


def _cut_headers(run: Run, first: int, last: int) -> list[Block]:
    """As `cut`, of blocks of sealed headers."""
    found = []
    for block in run.blocks:
        start, stop = max(first, block.first_transaction_id), min(last, block.last_transaction_id)
        if start <= stop:
            at, end = start - block.first_transaction_id, stop + 1 - block.first_transaction_id
            sealed = block.records[SEALED_HEADER_BYTES * at : SEALED_HEADER_BYTES * end]
            found.append(Block(start, block.lengths[4 * at : 4 * end], sealed, block.append_time_ms))
    return found
