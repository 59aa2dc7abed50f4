"""Finds corruption before a reader needs the data: reads all stored data again, slowly, and repairs closed segments from the other replicas.

A pass reads the segments of every partition at a configured pace. If a second check confirms a finding, the segment is repaired (`repair`). If that
fails, because no peer serves the data yet, the segment stays listed (`corruption`) and is tried again soon. Corruption that reads report is checked
and repaired in the same way, at once and even if there are no passes. The last segment of a partition is checked up to what is synced; to repair it,
it is closed first, because a segment that is being written is never replaced. The scrub holds a partition's turn only while it closes a segment or
replaces one; appends continue throughout. Compacted views come after the segments, at the same pace (`view_scrub`).

Reads come through the page cache: corruption below cached pages is found by a later pass, when they are no longer cached.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Final

from waltz_log.core.ports import Offload
from waltz_log.core.status.storage_statistics import ScrubStatistics
from waltz_log.errors import Unavailable, WaltzError
from waltz_log.loggers import get_logger
from waltz_log.storage.base.corruption import Corruption, CorruptSegment
from waltz_log.storage.integrity.peers import PeerReplicas
from waltz_log.storage.integrity.repair import SegmentRepair
from waltz_log.storage.integrity.verify import SegmentCheck
from waltz_log.storage.integrity.view_scrub import ViewScrub
from waltz_log.storage.replica.partition_store import PartitionStore
from waltz_log.storage.views.views import Views

__all__ = ["Scrub"]

log = get_logger(__name__)

EMPTY_PASS_PAUSE_S: Final = 1.0
"""Shortest pause between passes, however little there is to read."""

RETRY_S: Final = 5.0
RETRY_MAX_S: Final = 300.0
"""The default of the setting."""

NAMED_MAX: Final = 100
"""Most damaged segments that the statistics name."""


class Scrub:
    """Run `run` and `run_repairs` until they are cancelled. `peers`: None if segments can only be reported, not repaired; `corruption`: the list of
    corrupt segments; `repair_bytes_per_s`: the pace of passes if it is not given."""

    def __init__(
        self,
        stores: Callable[[], Sequence[PartitionStore]],
        views: Views,
        offload: Offload,
        peers: PeerReplicas | None,
        *,
        bytes_per_s: int,
        pause_s: float,
        corruption: Corruption | None = None,
        repair_bytes_per_s: int | None = None,
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
        self._corruption = corruption or Corruption(RETRY_S, RETRY_MAX_S)
        self._repair_bytes_per_s = repair_bytes_per_s or bytes_per_s
        self._counted: dict[int, set[int]] = {}
        """Corrupt segments whose findings are counted already."""
        self._repairing = asyncio.Lock()
        """One repair at a time: it may need a segment's space on disk."""
        self._views = ViewScrub(views, offload, self._read)

    def statistics(self) -> ScrubStatistics:
        views = self._views.damages()
        damaged = self._corruption.reasons() | views
        found, repaired = self._found + self._views.found, self._repaired + self._views.repaired
        named = dict(sorted(damaged.items())[:NAMED_MAX])
        return ScrubStatistics(self._passes, self._bytes, found, repaired, len(damaged), named)

    async def run(self) -> None:
        while True:
            try:
                await self.scrub_all()
            except Exception:
                log.exception("scrub pass failed and is retried")
            await asyncio.sleep(max(self._pause_s, EMPTY_PASS_PAUSE_S))

    async def run_repairs(self) -> None:
        """Repairs reported segments at once, and those that could not be repaired after their pause. An error of a repair postpones that one
        segment."""
        reported = self._corruption.reported
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._corruption.next_due_s()):
                    await reported.wait()
            reported.clear()
            for each in self._corruption.due():
                try:
                    await self._repair_due(each)
                except Exception as error:
                    self._postpone_broken(each.partition, each.first, error)

    def _postpone_broken(self, partition: int, first: int, error: Exception) -> None:
        """A defect stopped the work on one segment. The task continues with the others."""
        log.error("segment repair failed and is retried", partition=partition, segment=first, error=repr(error), exc_info=error)
        self._corruption.postpone(partition, first, repr(error))

    async def _repair_due(self, each: CorruptSegment) -> None:
        store = next((store for store in self._stores() if store.partition == each.partition), None)
        if store is None:
            self._corruption.postpone(each.partition, each.first, each.reason)
            return
        last = dict(store.log.closed()).get(each.first)
        if last is None and store.log.tail.segment != each.first:
            self._corruption.forget(each.partition, each.first)
            return
        try:
            async with self._repairing:
                await self._confirm_and_repair(store, each.first, last)
        except (OSError, WaltzError) as error:
            self._corruption.postpone(each.partition, each.first, str(error))

    async def scrub_all(self) -> None:
        """One pass."""
        before = self._bytes
        for store in self._stores():
            try:
                for first, last in [*store.log.closed(), (store.log.tail.segment, None)]:
                    await self._scrub_segment(store, first, last)
                self._corruption.forget_all_but(store.partition, {first for first, _ in store.log.closed()} | {store.log.tail.segment})
            except (OSError, WaltzError) as error:
                log.warning("scrub of a partition ended early", partition=store.partition, error=str(error))
        await self._views.scrub_all()
        self._passes += 1
        log.info("scrub pass done", passes=self._passes, bytes=self._bytes - before, damaged=self.statistics().damaged_segments)

    async def _scrub_segment(self, store: PartitionStore, first: int, last: int | None) -> None:
        try:
            if not (await self._verify(store, first, last, self._read)).findings and not self._corruption.knows(store.partition, first):
                return
            async with self._repairing:
                await self._confirm_and_repair(store, first, last)
        except FileNotFoundError:
            return  # truncated or trimmed meanwhile
        except (OSError, WaltzError):
            raise
        except Exception as error:
            self._postpone_broken(store.partition, first, error)

    async def _confirm_and_repair(self, store: PartitionStore, first: int, last: int | None) -> None:
        """`last`: of a closed segment, None for the one that is being written."""
        check = await self._verify(store, first, last, self._read_to_repair)
        if last is None and (closed := dict(store.log.closed()).get(first)) is not None:
            last = closed  # the log continued in another segment during the check
            check = await self._verify(store, first, last, self._read_to_repair)
        if not check.findings or not _is_there(store, first, last):
            if self._corruption.forget(store.partition, first):
                log.info("segment intact", partition=store.partition, segment=first)
            return
        if first not in self._counted.setdefault(store.partition, set()):
            self._counted[store.partition].add(first)
            self._found += len(check.findings)
        for finding in check.findings:
            log.error("corruption found", **asdict(finding))
        self._corruption.add(store.partition, first, check.findings[0].reason)
        try:
            if last is None:
                last = await store.close_segment(first)
                check = await self._verify(store, first, last, self._read_to_repair)
            await SegmentRepair(store, self._offload, self._peers, self._read_to_repair).run(check, last)
            again = await self._verify(store, first, last, self._read_to_repair)
            if again.findings:
                raise Unavailable(reason=f"still corrupt after the repair: {again.findings[0].reason}")
        except (OSError, WaltzError) as error:
            self._corruption.postpone(store.partition, first, str(error))
            log.error("corruption not repaired", partition=store.partition, segment=first, error=str(error))
            return
        self._corruption.forget(store.partition, first)
        self._counted[store.partition].discard(first)
        self._repaired += len(check.findings)
        log.warning("corruption repaired", partition=store.partition, segment=first, findings=len(check.findings))

    async def _verify(self, store: PartitionStore, first: int, last: int | None, paced: Callable[[int], Awaitable[None]]) -> SegmentCheck:
        files = store.log
        check = SegmentCheck(
            files.files.disk, files.directory, files.key, store.partition, first, following=None if last is None else last + 1, known_good=first - 1
        )
        steps = check.run()
        while (read := await self._offload(lambda: next(steps, None))) is not None:
            await paced(read)
        return check

    async def _read(self, size: int) -> None:
        """Waits to limit the pace of passes."""
        self._bytes += size
        await asyncio.sleep(size / self._bytes_per_s)

    async def _read_to_repair(self, size: int) -> None:
        self._bytes += size
        await asyncio.sleep(size / self._repair_bytes_per_s)


def _is_there(store: PartitionStore, first: int, last: int | None) -> bool:
    return store.log.tail.segment == first if last is None else (first, last) in store.log.closed()
