"""The compacted views of a storage node: which there are, how they are folded on from the node's own replica, read, replaced and removed.

An owner says how far a view may go, and that is committed; the node folds up to there in its own time, one view at once and not faster than it is
set, on the threads of readers, so that no append waits for it. The log that is folded stays as it is. A view whose log does not reach back to where
it ends, or that is damaged, does not go on and says so: it is given another replica's (`load`), as a whole.

Invariants: a view is the fold of committed transactions alone; a change takes effect whole or not at all (`waltz_log.compaction`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

import structlog

from waltz_log.compaction import CompactedView, CompactionSettings, Compactor, ViewSnapshot
from waltz_log.compaction.loading import ViewLoad
from waltz_log.compaction.manifest import ViewFile
from waltz_log.core.formats.wal_records import WalRecord
from waltz_log.core.ports import Clock, Disk, Offload
from waltz_log.core.topics.topic_names import TopicName
from waltz_log.errors import CorruptData, InvalidRequest, OutOfRange, StorageFailed, Unavailable, WaltzError
from waltz_log.storage.base.pacing import Pace
from waltz_log.storage.base.settings import StorageSettings
from waltz_log.storage.base.space import DiskSpace
from waltz_log.storage.segments.locating import locate
from waltz_log.storage.segments.segment_log import SegmentLog
from waltz_log.storage.views.view_folders import folders_of_views, has_view, remove_empty_folders, remove_view_folder
from waltz_log.storage.views.view_log import read_log

__all__ = ["TopicPartition", "ViewFacts", "ViewPage", "Views", "Wanted"]

log = structlog.get_logger(__name__)

T = TypeVar("T")

STEP_BYTES: Final = 32 << 20
"""Of the log, folded in one call: what closing the node may have to wait for."""

KEPT_S: Final = 1 << 40
"""No end of a key is older."""


class TopicPartition(NamedTuple):
    topic: TopicName
    partition: int
    properties: Mapping[str, str]


class ViewFacts(NamedTuple):
    """`exists` False: there is none, and the rest says nothing but why."""

    exists: bool
    start: int
    bound: int
    records: int
    bytes: int
    error: str


class ViewPage(NamedTuple):
    records: Sequence[WalRecord]
    start: int
    bound: int
    next_transaction_id: int
    done: bool


class Wanted(NamedTuple):
    """How far a view should go, and by which date the ends of keys are over. `committed`: everything below it is, also what this replica has not
    yet."""

    bound: int
    committed: int
    now_ms: int
    tombstone_retention_ms: int


@dataclass(slots=True)
class _Entry:
    of: TopicPartition
    view: CompactedView | None
    """None after a failure: it is opened anew before it is used."""
    error: str = ""
    damage: str = ""
    """What of the view rotted. It stays until another replica's view takes its place, or a look finds the view well."""
    start: int = 0
    """Where the log begins, for a view that is not made yet."""
    busy: bool = False
    yields: bool = False
    """Another replica's view came while this one was folded: it is not folded on until the next call, so that that comes again."""
    wanted: Wanted | None = None
    tasks: set[asyncio.Task[None]] = field(default_factory=set)


class Views:
    """Of one node. `open` first. `corrupt`: hears of corruption in the log that a fold met."""

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
        """Finds the views of the log partitions that are this process's. One that cannot be read is told, and holds up nothing else."""
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

    # ---- telling -----------------------------------------------------------------------------------------------------------------------------------

    def describe(self, partition: int) -> ViewFacts:
        entry = self._entries.get(partition)
        if entry is None or entry.view is None:
            return ViewFacts(False, 0, 0, 0, 0, "" if entry is None else entry.error)
        manifest = entry.view.manifest
        records = sum(file.live for file in manifest.files)
        size = sum(file.size_bytes + file.index_bytes for file in manifest.files)
        return ViewFacts(True, manifest.start, manifest.bound, records, size, entry.damage or entry.error)

    def bound(self, partition: int) -> int:
        """What is below is in the view; 0 where there is none."""
        entry = self._entries.get(partition)
        return 0 if entry is None or entry.view is None else entry.view.bound

    # ---- scrubbing ---------------------------------------------------------------------------------------------------------------------------------

    def present(self) -> dict[int, CompactedView]:
        """The views that are open, by log partition."""
        return {partition: entry.view for partition, entry in sorted(self._entries.items()) if entry.view is not None}

    def damages(self) -> dict[str, str]:
        """The folder of each view that rotted, and what of it."""
        return {entry.view.folder: entry.damage for entry in self._entries.values() if entry.view is not None and entry.damage}

    def judge(self, partition: int, damage: str) -> None:
        """What a look found of the view, "" for nothing. Damage is told to the partition's owner, who hands on another replica's view."""
        if (entry := self._entries.get(partition)) is not None:
            entry.damage = damage

    async def remake(self, partition: int, view: CompactedView, files: Sequence[ViewFile]) -> None:
        """Writes the files again with their indexes, from their records, and `metadata` from memory. Raises `Unavailable` where the view is being
        changed, `CorruptData` where the records are not whole, `StorageFailed`."""
        await self.settled(partition)
        entry = self._entries.get(partition)
        if entry is None or entry.busy or entry.view is not view:
            raise Unavailable(reason=f"the compacted view is being changed: partition={partition}")
        entry.busy = True
        try:
            rules = CompactionSettings(segment_bytes=self._settings.segment_bytes, tombstone_retention_s=KEPT_S)
            await self._offload(Compactor(view, rules).renew, files, self._clock.now_ms())
        except StorageFailed:
            await self._open_anew(entry, partition)
            raise
        finally:
            entry.busy = False

    # ---- folding -----------------------------------------------------------------------------------------------------------------------------------

    async def compact(self, segments: SegmentLog, of: TopicPartition, start: int, wanted: Wanted) -> ViewFacts:
        """Folds on up to what is wanted, after this returns. Makes the view where there is none, if the log reaches back to `start`. Raises
        `InvalidRequest` where this partition has the view of another topic."""
        partition = segments.partition
        entry = self._entries.get(partition)
        if entry is None:
            if segments.first_id > start:
                return self.describe(partition)
            entry = self._entries[partition] = _Entry(of, None, start=start)
        elif entry.of != of:
            raise InvalidRequest(reason=f"the compacted view of partition {partition} is of {entry.of.topic}, not of {of.topic}")
        if entry.view is not None and entry.view.bound > wanted.committed:
            # Only where an operator forced a session over what was committed. It holds what the log has not any more.
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
        task = asyncio.get_running_loop().create_task(work)
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
                await self._open_anew(entry, segments.partition)
        finally:
            entry.busy = False

    async def _open_anew(self, entry: _Entry, partition: int) -> None:
        """After a failure, as it was: what it holds still counts, and is read and let go from the log. What the failure left of files goes."""
        if entry.view is None:
            return
        entry.view = None
        try:
            entry.view = await self._offload(self._open_view, partition, entry.of, 0)
        except WaltzError as error:
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
        """Merges the view's files at the same pace as the log is folded. Returns early where the node closes."""
        pieces = compactor.merge_pieces(now_ms)
        try:
            while not self._closing.is_set() and (size := await self._offload(next, pieces, None)) is not None:
                await self._pause(pace.charge(size, asyncio.get_running_loop().time()))
        finally:
            await self._offload(pieces.close)

    async def settled(self, partition: int) -> None:
        """Returns when the view is not folded any more."""
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
        """Pages of the view as it is now, from an id on; at least one. Raises `OutOfRange` where there is none or it ends below `bound_min`,
        `CorruptData`, `StorageFailed`."""
        entry = self._entries.get(partition)
        view = None if entry is None else entry.view
        if view is None or view.bound < bound_min:
            start, bound = (0, 0) if view is None else (view.manifest.start, view.bound)
            raise OutOfRange(partition=partition, asked=bound_min, first=start, last=bound - 1)
        snapshot = await self._told(partition, view.snapshot)
        try:
            pages = _pages(snapshot, first, max_bytes)
            while (page := await self._told(partition, next, pages, None)) is not None:
                yield page
        except CorruptData as error:
            # Not at the scrub's next pass only: the owner hands on another replica's view. A pass that finds the view whole takes this back.
            self.judge(partition, f"{error}; another replica's view takes its place, where one is whole")
            raise
        finally:
            snapshot.close()

    async def _told(self, partition: int, call: Callable[..., T], *arguments: object) -> T:
        try:
            return await self._offload(call, *arguments)
        except OSError as error:
            raise StorageFailed(partition=partition, reason=f"cannot read the compacted view: {error}") from None

    # ---- another replica's view --------------------------------------------------------------------------------------------------------------------

    async def load(self, partition: int, of: TopicPartition, start: int, bound: int, pages: AsyncGenerator[Sequence[WalRecord], None]) -> None:
        """Takes another replica's view in place of this one, whole. Raises `Unavailable` where this one is just being folded, what the pages raise,
        `ProtocolViolation`, `StorageFailed`."""
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
        except StorageFailed:
            await self._open_anew(entry, partition)
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
        """The view's files and folders go. Nothing where there is none. Raises `Unavailable` while it is being changed, `StorageFailed`."""
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
        """Returns when nothing is folded any more."""
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
    """Where one step ends, and the bytes of the log it takes."""
    found = locate(segments, (), first, until - 1, STEP_BYTES)
    end = max(found.last_within, first) + 1
    return end, min(found.bytes, STEP_BYTES)


def _pages(snapshot: ViewSnapshot, first: int, max_bytes: int) -> Iterator[ViewPage]:
    start, bound = snapshot.start, snapshot.bound
    records: list[WalRecord] = []
    size = 0
    for record in snapshot.records(first):
        if records and size >= max_bytes:
            yield ViewPage(records, start, bound, record.transaction_id, done=False)
            records, size = [], 0
        records.append(record)
        size += len(record.key) + len(record.value)
    yield ViewPage(records, start, bound, bound, done=True)
