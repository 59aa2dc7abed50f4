"""Looks for rot before anybody needs what it took: reads all stored data again, slowly, and mends closed segments from the other replicas.

A pass goes over the segments of every partition at the pace of a setting. What a second look confirms is mended (`repair`) or, where no peer can
serve it, told and left as it is. The last segment of a partition is looked at up to what is synced and mended once it is closed: what is written
to is not replaced. Takes no turn of a partition but for the moment in which a mended segment takes its place; appends go on throughout. Compacted
views come after the segments, at the same pace (`view_scrub`).

Reads come through the page cache: rot below pages that are cached is found when they are not any more, by a later pass.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Final

import structlog

from waltz_log.core.ports import Offload
from waltz_log.errors import Unavailable, WaltzError
from waltz_log.storage.partition import PartitionStore
from waltz_log.storage.peers import PeerReplicas
from waltz_log.storage.repair import SegmentRepair
from waltz_log.storage.snapshots import ScrubStatistics
from waltz_log.storage.verify import SegmentCheck
from waltz_log.storage.view_scrub import ViewScrub
from waltz_log.storage.views import Views

__all__ = ["Scrub"]

log = structlog.get_logger(__name__)

EMPTY_PASS_PAUSE_S: Final = 1.0
"""At least this between passes, however little there is to read."""

TOLD_MAX: Final = 100
"""Damaged segments named in the statistics."""


class Scrub:
    """`run` until it is cancelled. `peers`: None where no segment can be mended, only told."""

    def __init__(
        self,
        stores: Callable[[], Sequence[PartitionStore]],
        views: Views,
        offload: Offload,
        peers: PeerReplicas | None,
        *,
        bytes_per_s: int,
        pause_s: float,
    ) -> None:
        self._stores = stores
        self._offload = offload
        self._peers = peers
        self._bytes_per_s = bytes_per_s
        self._pause_s = pause_s
        self._passes = 0
        self._bytes = 0
        self._found = 0
        self._repaired = 0
        self._damaged: dict[str, str] = {}
        """Segments that are damaged as far as is known, and why each is not mended."""
        self._views = ViewScrub(views, offload, self._read)

    def statistics(self) -> ScrubStatistics:
        views = self._views.damages()
        damaged = self._damaged | views
        found, repaired = self._found + self._views.found, self._repaired + self._views.repaired
        told = dict(sorted(damaged.items())[:TOLD_MAX])
        return ScrubStatistics(self._passes, self._bytes, found, repaired, len(damaged), told)

    async def run(self) -> None:
        while True:
            await self.scrub_all()
            await asyncio.sleep(max(self._pause_s, EMPTY_PASS_PAUSE_S))

    async def scrub_all(self) -> None:
        """One pass."""
        before = self._bytes
        seen: set[str] = set()
        for store in self._stores():
            try:
                for first, last in [*store.log.closed(), (store.log.tail.segment, None)]:
                    seen.add(_name(store, first))
                    await self._scrub_segment(store, first, last)
            except (OSError, WaltzError) as error:
                log.warning("scrub of a partition ended early", partition=store.partition, error=str(error))
                seen |= {name for name in self._damaged if name.startswith(f"{store.partition}/")}
        for gone in set(self._damaged) - seen:
            del self._damaged[gone]  # cut or trimmed
        await self._views.scrub_all()
        self._passes += 1
        log.info("scrub pass done", passes=self._passes, bytes=self._bytes - before, damaged=self.statistics().damaged_segments)

    async def _scrub_segment(self, store: PartitionStore, first: int, last: int | None) -> None:
        name = _name(store, first)
        try:
            check = await self._look(store, first, last)
            if check.findings:
                check = await self._look(store, first, last)
        except FileNotFoundError:
            return  # cut or trimmed meanwhile
        if not check.findings or not _is_there(store, first, last):
            if self._damaged.pop(name, None) is not None:
                log.info("segment is well again", segment=name)
            return
        if name not in self._damaged:
            self._found += len(check.findings)
        for finding in check.findings:
            log.error("rot found", **asdict(finding))
        if last is None:
            self._damaged[name] = "the segment is still written to"
            return
        try:
            repair = SegmentRepair(store, self._offload, self._peers, self._read)
            await repair.run(check, last)
            again = await self._look(store, first, last)
            if again.findings:
                raise Unavailable(reason=f"still damaged after it was mended: {again.findings[0].reason}")
        except (OSError, WaltzError) as error:
            self._damaged[name] = str(error)
            log.error("rot stays", partition=store.partition, segment=first, error=str(error))
            return
        self._damaged.pop(name, None)
        self._repaired += len(check.findings)
        log.warning("rot mended", partition=store.partition, segment=first, findings=len(check.findings))

    async def _look(self, store: PartitionStore, first: int, last: int | None) -> SegmentCheck:
        files = store.log
        check = SegmentCheck(
            files.files.disk, files.directory, files.key, store.partition, first, following=None if last is None else last + 1, known_good=first - 1
        )
        steps = check.run()
        while (read := await self._offload(next, steps, None)) is not None:
            await self._read(read)
        return check

    async def _read(self, size: int) -> None:
        """Waits as long as reading so much should take."""
        self._bytes += size
        await asyncio.sleep(size / self._bytes_per_s)


def _is_there(store: PartitionStore, first: int, last: int | None) -> bool:
    return store.log.tail.segment == first if last is None else (first, last) in store.log.closed()


def _name(store: PartitionStore, first: int) -> str:
    return f"{store.partition}/{first:019d}"
