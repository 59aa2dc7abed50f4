"""The compacted views of a storage node: which exist, how they are folded from the node's own replica, read, replaced and removed.

An owner states how far a view may go, and that all of it is committed. The node folds up to there in the background, one view at a time and at a
limited pace, on the threads of readers, so that no append waits for it. The log that is folded stays as it is. If the log of a view no longer reaches
back to the view's end, or the view is damaged, folding stops with a reason, and the owner sends the whole view of another replica (`load`).

Invariants: a view is the fold of committed transactions alone; a change takes effect completely or not at all (`waltz_log.compaction`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

from waltz_log.background_tasks import start_task
from waltz_log.compaction import CompactedView, CompactionSettings, Compactor, ViewSnapshot
from waltz_log.compaction.manifest import ViewFile
from waltz_log.compaction.view_load import ViewLoad
from waltz_log.core.formats.wal_records import WalRecord, checksum_in
from waltz_log.core.ports import Clock, Disk, Offload
from waltz_log.core.topics.topic_names import TopicName
from waltz_log.errors import CorruptData, InvalidRequest, OutOfRange, StorageFailed, Unavailable, WaltzError
from waltz_log.loggers import get_logger
from waltz_log.storage.base.pacing import Pace
from waltz_log.storage.base.settings import StorageSettings
from waltz_log.storage.base.space import DiskSpace
from waltz_log.storage.segments.locating import locate
from waltz_log.storage.segments.segment_log import SegmentLog
from waltz_log.storage.views.view_folders import folders_of_views, has_view, remove_empty_folders, remove_view_folder
from waltz_log.storage.views.view_log import read_log

__all__ = ["TopicPartition", "ViewFacts", "ViewPage", "Views", "Wanted"]

log = get_logger(__name__)

T = TypeVar("T")

STEP_BYTES: Final = 32 << 20
"""Bytes of the log that one call folds: closing the node may have to wait for it."""

KEPT_S: Final = 1 << 40
"""Older than any tombstone."""


class TopicPartition(NamedTuple):
    topic: TopicName
    partition: int
    properties: Mapping[str, str]


class ViewFacts(NamedTuple):
    """`exists` False: there is no view, and only the reason among the other fields is valid."""

    exists: bool
    start: int
    bound: int
    records: int
    bytes: int
    error: str


class ViewPage(NamedTuple):
    """`checksums`: of each record, as its file has it."""

    records: Sequence[WalRecord]
    checksums: Sequence[int]
    start: int
    bound: int
    next_transaction_id: int
    done: bool


class Wanted(NamedTuple):
    """How far a view should go, and up to which time tombstones expire. `committed`: everything below it is committed, also what this replica
    lacks."""

    bound: int
    committed: int
    now_ms: int
    tombstone_retention_ms: int


@dataclass(slots=True)
class _Entry:
    of: TopicPartition
    view: CompactedView | None
    """None after a failure: it is reopened before it is used."""
    error: str = ""
    damage: str = ""
    """The damage that was found in the view. It is kept until another replica's view replaces it, or a check finds the view intact."""
    start: int = 0
    """Where the log begins, for a view that does not exist yet."""
    busy: bool = False
    yields: bool = False
    """Another replica's view arrived while this one was folded. Folding pauses until the next call, so that the other view can be sent again."""
    wanted: Wanted | None = None
    tasks: set[asyncio.Task[None]] = field(default_factory=set)


class Views:
    """The views of one node. Call `open` first. `corrupt`: called with corruption in the log that a fold found."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        offload: Offload,
        settings: StorageSettings,
        space: DiskSpace,
        corrupt: Callable[[CorruptData], None] = lambda error: None,
    ) -> None:
        self._corrupt = corrupt
        self._disk = disk
        self._space = space
        self._clock = clock
        self._offload = offload
        self._settings = settings
        self._entries: dict[int, _Entry] = {}
        self._one = asyncio.Lock()
        self._closing = asyncio.Event()

    async def open(self, owns: Callable[[int], bool]) -> None:
        """Finds the views of the log partitions that this process owns. One that cannot be read is reported and delays nothing else."""
        for partition, of, view, error in await self._offload(self._found, owns):
            self._entries[partition] = _Entry(of, view, error)

    def _found(self, owns: Callable[[int], bool]) -> list[tuple[int, TopicPartition, CompactedView | None, str]]:
        remove_empty_folders(self._disk)
        found: list[tuple[int, TopicPartition, CompactedView | None, str]] = []
        for folder in folders_of_views(self._disk):
            if not owns(folder.log_partition):
                continue
            of = TopicPartition(folder.topic, folder.partition, folder.properties)
            try:
                found.append((folder.log_partition, of, self._open_view(folder.log_partition, of, 0), ""))
            except WaltzError as error:
                log.error("compacted view does not open", topic=str(of.topic), partition=of.partition, error=str(error))
                found.append((folder.log_partition, of, None, str(error)))
        return found

    def _open_view(self, partition: int, of: TopicPartition, start: int) -> CompactedView:
        return CompactedView.open(
            self._disk, of.topic, of.partition, start=start, now_ms=self._clock.now_ms(), properties=of.properties, log_partition=partition
        )

    # ---- state -------------------------------------------------------------------------------------------------------------------------------------

    def describe(self, partition: int) -> ViewFacts:
        entry = self._entries.get(partition)
        if entry is None or entry.view is None:
            return ViewFacts(False, 0, 0, 0, 0, "" if entry is None else entry.error)
        manifest = entry.view.manifest
        records = sum(file.live for file in manifest.files)
        size = sum(file.size_bytes + file.index_bytes for file in manifest.files)
        return ViewFacts(True, manifest.start, manifest.bound, records, size, entry.damage or entry.error)

    def bound(self, partition: int) -> int:
        """Everything below it is in the view; 0 if there is no view."""
        entry = self._entries.get(partition)
        return 0 if entry is None or entry.view is None else entry.view.bound

    # ---- scrubbing ---------------------------------------------------------------------------------------------------------------------------------

    def present(self) -> dict[int, CompactedView]:
        """The views that are open, by log partition."""
        return {partition: entry.view for partition, entry in sorted(self._entries.items()) if entry.view is not None}

    def damages(self) -> dict[str, str]:
        """The folder of each corrupt view, and what is corrupt."""
        return {entry.view.folder: entry.damage for entry in self._entries.values() if entry.view is not None and entry.damage}

    def judge(self, partition: int, damage: str) -> None:
        """Records the result of a check, "" for no damage. The node reports damage to the partition's owner, which sends another replica's view."""
        if (entry := self._entries.get(partition)) is not None:
            entry.damage = damage

    async def remake(self, partition: int, view: CompactedView, files: Sequence[ViewFile]) -> None:
        """Rewrites the files with their indexes, from their records, and `metadata` from memory. Raises `Unavailable` while the view is being
        changed, `CorruptData` if the records are damaged, `StorageFailed`."""
        await self.settled(partition)
        entry = self._entries.get(partition)
        if entry is None or entry.busy or entry.view is not view:
            raise Unavailable(reason=f"the compacted view is being changed: partition={partition}")
        entry.busy = True
        try:
            rules = CompactionSettings(segment_bytes=self._settings.segment_bytes, tombstone_retention_s=KEPT_S)
            await self._offload(Compactor(view, rules).renew, files, self._clock.now_ms())
        except StorageFailed:
            await self._reopen(entry, partition)
            raise
        finally:
            entry.busy = False

    # ---- folding -----------------------------------------------------------------------------------------------------------------------------------

    async def compact(self, segments: SegmentLog, of: TopicPartition, start: int, wanted: Wanted) -> ViewFacts:
        """Starts folding up to `wanted`, and continues after it returns. Creates the view if there is none and the log reaches back to `start`.
        Raises `InvalidRequest` if this partition has the view of another topic."""
        partition = segments.partition
        entry = self._entries.get(partition)
        if entry is None:
            if segments.first_id > start:
                return self.describe(partition)
            entry = self._entries[partition] = _Entry(of, None, start=start)
        elif entry.of != of:
            raise InvalidRequest(reason=f"the compacted view of partition {partition} is of {entry.of.topic}, not of {of.topic}")
        if entry.view is not None and entry.view.bound > wanted.committed:
            # Only after an operator forced a session over committed transactions: the view holds what the log no longer has.
            entry.error = f"goes up to {entry.view.bound}, beyond what is committed, {wanted.committed}: transactions were given up"
            return self.describe(partition)
        if entry.yields:
            entry.yields = False
            return self.describe(partition)
        entry.wanted = wanted
        if not entry.busy and not self._closing.is_set():
            entry.busy = True
            self._start(entry, self._fold(entry, segments))
        return self.describe(partition)

    def _start(self, entry: _Entry, work: Coroutine[Any, Any, None]) -> None:
        task = start_task(work)
        entry.tasks.add(task)
        task.add_done_callback(lambda ended: _ended(entry, ended))

    async def _fold(self, entry: _Entry, segments: SegmentLog) -> None:
        try:
            async with self._one:
                await self._fold_all(entry, segments)
            entry.error = ""
        except (OSError, WaltzError) as error:
            log.warning("compaction failed", topic=str(entry.of.topic), partition=entry.of.partition, error=str(error))
            entry.error = str(error)
            if isinstance(error, CorruptData):
                self._corrupt(error)
            if isinstance(error, StorageFailed):
                await self._reopen(entry, segments.partition)
        finally:
            entry.busy = False

    async def _reopen(self, entry: _Entry, partition: int) -> None:
        """After a failure, as it was: its content still counts. Removes the files that the failure left."""
        if entry.view is None:
            return
        entry.view = None
        try:
            entry.view = await self._offload(self._open_view, partition, entry.of, 0)
        except (OSError, WaltzError) as error:
            log.warning("compacted view does not open", topic=str(entry.of.topic), partition=entry.of.partition, error=str(error))

    async def _fold_all(self, entry: _Entry, segments: SegmentLog) -> None:
        if entry.view is None:
            entry.view = await self._offload(self._open_for, segments, entry)
        loop, view = asyncio.get_running_loop(), entry.view
        pace = Pace(self._settings.compaction_bytes_per_s, loop.time())
        while not self._closing.is_set() and entry.wanted is not None:
            wanted, entry.wanted = entry.wanted, None
            compactor = Compactor(view, self._rules(wanted))
            until = min(wanted.bound, segments.tail.last_id + 1)
            while view.bound < until and not self._closing.is_set():
                if segments.first_id > view.bound:
                    first, last = segments.first_id, segments.tail.last_id
                    raise OutOfRange(partition=segments.partition, asked=view.bound, first=first, last=last)
                begin = view.bound
                end, size = await self._offload(_step, segments, begin, until)
                self._space.require(size, segments.partition)
                while view.bound < end and not self._closing.is_set():
                    bound = view.bound
                    await self._offload(compactor.fold_step, read_log(segments), end, wanted.now_ms)
                    await self._pause(pace.charge(size * (view.bound - bound) // (end - begin), loop.time()))
                    await self._merge(compactor, wanted.now_ms, pace)
            await self._merge(compactor, wanted.now_ms, pace)

    async def _merge(self, compactor: Compactor, now_ms: int, pace: Pace) -> None:
        """Merges the view's files at the same pace at which the log is folded. Returns early if the node closes."""
        pieces = compactor.merge_pieces(now_ms)
        try:
            while not self._closing.is_set() and (size := await self._offload(lambda: next(pieces, None))) is not None:
                await self._pause(pace.charge(size, asyncio.get_running_loop().time()))
        finally:
            await self._offload(pieces.close)

    async def settled(self, partition: int) -> None:
        """Returns when the view is no longer folded."""
        entry = self._entries.get(partition)
        if entry is not None and entry.tasks:
            await asyncio.wait(entry.tasks)

    def _open_for(self, segments: SegmentLog, entry: _Entry) -> CompactedView:
        if not has_view(self._disk, entry.of.topic, entry.of.partition) and segments.first_id > entry.start:
            raise OutOfRange(partition=segments.partition, asked=entry.start, first=segments.first_id, last=segments.tail.last_id)
        return self._open_view(segments.partition, entry.of, entry.start)

    async def _pause(self, seconds: float) -> None:
        if seconds > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._closing.wait()

    def _rules(self, wanted: Wanted) -> CompactionSettings:
        return CompactionSettings(
            key_cache_bytes=self._settings.compaction_key_cache_bytes,
            segment_bytes=self._settings.segment_bytes,
            tombstone_retention_s=-(-wanted.tombstone_retention_ms // 1000),
        )

    # ---- reading -----------------------------------------------------------------------------------------------------------------------------------

    async def read(self, partition: int, first: int, max_bytes: int, bound_min: int) -> AsyncGenerator[ViewPage, None]:
        """Pages of the view as it is now, from an id on; at least one. Raises `OutOfRange` if there is none or it ends below `bound_min`,
        `CorruptData`, `StorageFailed`."""
        entry = self._entries.get(partition)
        view = None if entry is None else entry.view
        if view is None or view.bound < bound_min:
            start, bound = (0, 0) if view is None else (view.manifest.start, view.bound)
            raise OutOfRange(partition=partition, asked=bound_min, first=start, last=bound - 1)
        snapshot = await self._reporting_corruption(partition, view.snapshot)
        try:
            pages = _pages(snapshot, first, max_bytes)
            while (page := await self._reporting_corruption(partition, lambda: next(pages, None))) is not None:
                yield page
        except CorruptData as error:
            # Report it before the scrub's next pass: the owner sends another replica's view. A pass that finds the view intact clears this.
            self.judge(partition, f"{error}; another replica's view takes its place, where one is whole")
            raise
        finally:
            snapshot.close()

    async def _reporting_corruption(self, partition: int, call: Callable[..., T], *arguments: object) -> T:
        try:
            return await self._offload(call, *arguments)
        except OSError as error:
            raise StorageFailed(partition=partition, reason=f"cannot read the compacted view: {error}") from None

    # ---- another replica's view --------------------------------------------------------------------------------------------------------------------

    async def load(self, partition: int, of: TopicPartition, start: int, bound: int, pages: AsyncGenerator[Sequence[WalRecord], None]) -> None:
        """Replaces this view by another replica's. Raises `Unavailable` while this one is being folded, the errors of the pages, `ProtocolViolation`,
        `StorageFailed`."""
        entry = self._entries.get(partition)
        if entry is not None and entry.busy:
            entry.yields = True
            raise Unavailable(reason=f"the compacted view is being changed: partition={partition}")
        if entry is None:
            entry = self._entries[partition] = _Entry(of, None)
        entry.busy = True
        try:
            if entry.view is None:
                entry.view = await self._offload(self._open_or_replace, partition, of, start)
            loading = ViewLoad(entry.view, start=start, bound=bound, segment_bytes=self._settings.segment_bytes, now_ms=self._clock.now_ms())
            try:
                async for records in pages:
                    await self._offload(loading.put, records)
                await self._offload(loading.finish)
            finally:
                await self._offload(loading.close)
            entry.error = entry.damage = ""
            log.info("compacted view replaced by another replica's", topic=str(of.topic), partition=of.partition, bound=bound)
        except OSError as error:
            await self._reopen(entry, partition)
            raise StorageFailed(partition=partition, reason=f"cannot replace the compacted view: {error}") from None
        except StorageFailed:
            await self._reopen(entry, partition)
            raise
        finally:
            entry.busy = False

    def _open_or_replace(self, partition: int, of: TopicPartition, start: int) -> CompactedView:
        try:
            return self._open_view(partition, of, start)
        except InvalidRequest:
            raise
        except WaltzError as error:
            log.warning("replacing a compacted view that does not open", topic=str(of.topic), partition=of.partition, error=str(error))
            remove_view_folder(self._disk, of.topic, of.partition)
            return self._open_view(partition, of, start)

    # ---- ending ------------------------------------------------------------------------------------------------------------------------------------

    async def drop(self, partition: int) -> None:
        """Removes the view's files and folders, if there are any. Raises `Unavailable` while it is being changed, `StorageFailed`."""
        entry = self._entries.get(partition)
        if entry is None:
            return
        if entry.busy:
            entry.wanted = None
            raise Unavailable(reason=f"the compacted view is being changed: partition={partition}")
        entry.busy = True
        try:
            await self._offload(remove_view_folder, self._disk, entry.of.topic, entry.of.partition)
        except OSError as error:
            raise StorageFailed(partition=partition, reason=f"cannot remove the compacted view: {error}") from None
        finally:
            entry.busy = False
        self._entries.pop(partition, None)
        log.info("compacted view removed", topic=str(entry.of.topic), partition=entry.of.partition)

    async def close(self) -> None:
        """Returns when nothing is being folded."""
        self._closing.set()
        tasks = [task for entry in self._entries.values() for task in entry.tasks]
        if tasks:
            await asyncio.wait(tasks)


def _ended(entry: _Entry, task: asyncio.Task[None]) -> None:
    entry.tasks.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("compaction failed unexpectedly", topic=str(entry.of.topic), error=repr(error), exc_info=error)
        entry.error = f"broke: {error!r}"


def _step(segments: SegmentLog, first: int, until: int) -> tuple[int, int]:
    """Where one step ends, and how many bytes of the log it reads."""
    found = locate(segments, (), first, until - 1, STEP_BYTES)
    end = max(found.last_within, first) + 1
    return end, min(found.bytes, STEP_BYTES)


def _pages(snapshot: ViewSnapshot, first: int, max_bytes: int) -> Iterator[ViewPage]:
    start, bound = snapshot.start, snapshot.bound
    records: list[WalRecord] = []
    checksums: list[int] = []
    size = 0
    for record, whole in snapshot.stored(first):
        if records and size >= max_bytes:
            yield ViewPage(records, checksums, start, bound, record.transaction_id, done=False)
            records, checksums, size = [], [], 0
        records.append(record)
        checksums.append(checksum_in(whole))
        size += len(record.key) + len(record.value)
    yield ViewPage(records, checksums, start, bound, bound, done=True)
