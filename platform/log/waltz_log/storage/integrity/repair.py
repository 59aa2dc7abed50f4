"""Repairs one closed segment: copies intact ranges from the segment itself and damaged ones from a peer, verifies all, and replaces the files at
once.

Nothing is overwritten unless every transaction of the new copy verifies and the copy is complete. Until then, and if no peer has the missing range,
the old files stay as they are. A replica is repaired only if it is clean in the newest session it has seen: during a recovery it is unknown which
transactions will remain. Within that session all replicas hold the same transactions, and one that was not clean in it refuses reads.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from waltz_log.core.formats.block import Block
from waltz_log.core.ports import Offload
from waltz_log.errors import CorruptData, Unavailable
from waltz_log.loggers import get_logger
from waltz_log.storage.integrity.peers import PeerReplicas
from waltz_log.storage.integrity.verify import SegmentCheck
from waltz_log.storage.replica.partition_store import PartitionStore
from waltz_log.storage.segments.replacement import Replacement

__all__ = ["SegmentRepair"]

log = get_logger(__name__)

LOCAL_BYTES = 1024 * 1024


class SegmentRepair:
    """`read`: receives the number of bytes read and waits to limit the pace."""

    def __init__(self, store: PartitionStore, offload: Offload, peers: PeerReplicas | None, read: Callable[[int], Awaitable[None]]) -> None:
        self._store = store
        self._offload = offload
        self._peers = peers
        self._read = read

    async def run(self, check: SegmentCheck, last: int) -> None:
        """Returns when the segment is repaired. Raises the reason if it is not, with the segment unchanged."""
        if all(finding.part == "index" for finding in check.findings):
            await self._offload(self._store.log.remake_index, check.first)
            return
        session = self._store.settled_session()
        if session is None:
            raise Unavailable(reason=f"a store session is being opened partition={self._store.partition}")
        whole_file = any(finding.part == "header" for finding in check.findings)
        bad = [(check.first, last)] if whole_file else merged(check.bad_ranges() + check.untimed)
        replacement = await self._offload(Replacement, self._store.log, check.first)
        try:
            await self._fill(replacement, session, bad, last)
            await self._offload(replacement.seal)
            await self._store.put_in_place(replacement, session)
        except BaseException:
            await self._offload(replacement.abandon)
            raise

    async def _fill(self, replacement: Replacement, session: int, bad: list[tuple[int, int]], last: int) -> None:
        for low, high, damaged in ranges(replacement.first, last, bad):
            if not damaged:
                await self._add_own(replacement, high)
            if replacement.next_id <= high:
                async with aclosing(self._fetched(session, replacement.next_id, high)) as blocks:
                    async for block in blocks:
                        await self._add(replacement, block)
            assert replacement.next_id == high + 1, (low, high)

    async def _add_own(self, replacement: Replacement, high: int) -> None:
        """As far as possible: if the index is misleading, the rest comes from the peers."""
        try:
            files = self._store.log
            reader = await self._offload(files.reader, replacement.next_id)
            while replacement.next_id <= high:
                for block in await self._offload(files.read, reader, replacement.next_id, high, LOCAL_BYTES):
                    await self._add(replacement, block)
        except CorruptData as error:
            log.warning("copying the rest of a range from peers", partition=self._store.partition, error=str(error))

    async def _add(self, replacement: Replacement, block: Block) -> None:
        await self._offload(replacement.add, [block])
        await self._read(len(block.records))

    async def _fetched(self, session: int, first: int, last: int) -> AsyncGenerator[Block, None]:
        if self._peers is None:
            raise Unavailable(reason="no peers are known to repair from")
        async with aclosing(self._peers.read(self._store.log.key, self._store.partition, session, first, last)) as blocks:
            async for block in blocks:
                yield block


def merged(found: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The ranges in ascending order; adjacent ones are joined."""
    result: list[tuple[int, int]] = []
    for low, high in sorted(found):
        if result and low <= result[-1][1] + 1:
            result[-1] = (result[-1][0], max(result[-1][1], high))
        else:
            result.append((low, high))
    return result


def ranges(first: int, last: int, bad: list[tuple[int, int]]) -> list[tuple[int, int, bool]]:
    """`first` to `last` without a gap, in order: (low, high, whether the range is bad)."""
    result = []
    for low, high in bad:
        if first < low:
            result.append((first, low - 1, False))
        result.append((low, min(high, last), True))
        first = high + 1
    if first <= last:
        result.append((first, last, False))
    return result
