"""Bugs to plant in the cluster: each takes one rule away, as a small patch of one function, and the simulator must notice.

To add one: write a function that patches with `change` and put `@bug` above it. `docs/internals/simulator.md` says which checker catches it.
Nothing here is imported by the platform.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from verification.mutants import (
    planted_access,
    planted_bulk,
    planted_clocks,
    planted_coordinator,
    planted_disk,
    planted_files,
    planted_identities,
    planted_locks,
    planted_maps,
    planted_memory,
    planted_messages,
    planted_owners,
    planted_quotas,
    planted_readers,
    planted_refill,
    planted_resolving,
)
from verification.mutants.planting import BUGS, bug, change, planted, unplanted
from waltz_log.client.append import append_window
from waltz_log.client.append.producer import Producer
from waltz_log.core.locks.locks import LockTable
from waltz_log.core.locks.own_writes import OwnWrites
from waltz_log.core.recovery import Classification
from waltz_log.errors import NotAppended, Unavailable
from waltz_log.server.mounts.mount import Mount
from waltz_log.server.ordering.sequencer import Answers, ReceivedFrame, Sequenced, Sequencer
from waltz_log.server.partition.open_partition import OpenPartition
from waltz_log.server.partition.partition import Partition
from waltz_log.server.replication import acknowledgments
from waltz_log.server.replication import session_recovery as recovery
from waltz_log.server.replication.store_session import StoreSession
from waltz_log.server.upkeep.upkeep import Upkeep
from waltz_log.server.upkeep.view_upkeep import ViewUpkeep
from waltz_log.storage.control.control import ControlFiles
from waltz_log.storage.node.service import _Service
from waltz_log.storage.replica.partition_store import PartitionStore
from waltz_log.storage.segments import reader
from waltz_log.storage.views.views import Views, Wanted
from waltz_log.testing import disk
from waltz_log.testing.memory_coordinator import MemoryEnsemble
from waltz_log.transport import waltz_pb2 as pb

__all__ = ["BUGS", "planted", "unplanted"]

REGISTERED = (
    planted_access,
    planted_clocks,
    planted_coordinator,
    planted_disk,
    planted_files,
    planted_identities,
    planted_locks,
    planted_maps,
    planted_memory,
    planted_messages,
    planted_owners,
    planted_quotas,
    planted_readers,
    planted_refill,
    planted_bulk,
    planted_resolving,
)
"""Modules whose bugs are there because they are imported."""


# ---- storage ---------------------------------------------------------------------------------------------------------------------------------------


@bug
def no_fence() -> None:
    """A storage node accepts writes of an older session."""

    def check(self: PartitionStore, session: int) -> None:
        if self._failed is not None:
            raise self._failed

    admit: Any = None

    async def admit_any(self: PartitionStore, session: int) -> None:
        if session > self._sessions.fence:
            await admit(self, session)

    change(PartitionStore, "_check", check)
    admit = change(PartitionStore, "_admit", admit_any)


@bug
def fence_not_durable() -> None:
    """The fence is forgotten when the node dies."""

    def raise_fence(self: ControlFiles, partition: int, session: int) -> None:
        current = self._counters[1 + partition]
        assert current is not None
        self._counters[1 + partition] = (session, current[1])

    change(ControlFiles, "raise_fence", raise_fence)


@bug
def acknowledged_before_the_sync() -> None:
    """What was written is acknowledged while it is on its way to the medium."""

    def sync(self: Any) -> None:
        if not self._path.endswith(".seg"):
            original(self)

    original = change(disk._OpenFile, "sync", sync)


@bug
def sync_errors_swallowed() -> None:
    """A sync that failed counts as successful."""

    def sync(self: Any) -> None:
        try:
            original(self)
        except OSError:
            return

    original = change(disk._OpenFile, "sync", sync)


@bug
def checksums_not_verified_on_reads() -> None:
    """Corrupt data is served."""
    change(reader, "verify_records", lambda *_, **__: None)


@bug
def readers_of_a_newer_session_served() -> None:
    """A replica of an older session serves its tail, which may be dirty: it compares no session, and believes that all it holds is committed."""

    def expect_clean(self: PartitionStore, session: int) -> None:
        original(self, min(session, 0))

    async def committed(self: PartitionStore, _wanted: int) -> int:
        return self.last_id

    original: Any = change(PartitionStore, "expect_clean", expect_clean)
    change(PartitionStore, "committed", committed)


@bug
def cluster_key_not_compared() -> None:
    """A stranger is answered."""

    async def partition(self: Any, request: Any) -> PartitionStore:
        found: PartitionStore = await self._node.partition(request.partition)
        return found

    change(_Service, "partition", partition)


# ---- sessions and recovery -------------------------------------------------------------------------------------------------------------------------


@bug
def committed_at_one_acknowledgment() -> None:
    """The first replica that has a block commits it."""
    change(acknowledgments, "committed_mark", lambda acknowledged, assigned: max(acknowledged.values(), default=None))


@bug
def undecidable_guessed_low() -> None:
    """The vote does not wait for replicas that are away: what a majority of those present holds is the mark."""

    def resolve(levels: Mapping[str, int], voters: Sequence[str], old: Sequence[str], *_: Any) -> int | None:
        present = sorted((level for name, level in levels.items() if name in set(old)), reverse=True)
        return present[len(present) // 2] if len(present) > len(set(old)) // 2 else None

    change(recovery, "resolve", resolve)


@bug
def resolved_one_too_low() -> None:
    """The mark of the old session, off by one."""

    def resolve(*given: Any) -> int | None:
        found = original(*given)
        return None if found is None else max(-1, found - 1)

    original: Any = change(recovery, "resolve", resolve)


@bug
def lost_replicas_counted() -> None:
    """A replica that was emptied votes with what it has left."""

    def classify(*given: Any) -> Classification:
        found: Classification = original(*given)
        return Classification(found.truncate_to, votes=True) if found.counts_absent else found

    original: Any = change(recovery, "classify", classify)


@bug
def metadata_written_blindly() -> None:
    """Partition metadata is set, not compared and set."""

    def blind(self: MemoryEnsemble, path: str, data: bytes, version: int) -> Any:
        return original(self, path, data, -1 if path.startswith("/store/partition/") else version)

    original: Any = change(MemoryEnsemble, "set", blind)


@bug
def reported_before_it_is_recorded() -> None:
    """A replica receives the mark that a recovery decided before the metadata is."""

    async def decide(_self: StoreSession, _recovery: recovery.Recovery) -> None:
        return

    change(StoreSession, "decide", decide)


# ---- retention and compaction
# ------------------------------------------------------------------------------------------------------------------------


@bug
def retention_past_a_subscriber() -> None:
    """What a subscriber has not read is trimmed."""

    async def no_subscriber(self: Upkeep) -> dict[str, int]:
        return {}

    change(Upkeep, "_subscribers", no_subscriber)


@bug
def replicas_followed_after_the_end() -> None:
    """The tasks of a store session go on when it has ended."""

    async def close(self: StoreSession) -> None:
        self._end(Unavailable(reason="closed"))
        self.memory.close()

    change(StoreSession, "close", close)


@bug
def upkeep_not_fenced() -> None:
    """A replica is trimmed and compacted by an owner that was deposed."""
    change(PartitionStore, "expect_member", lambda self, session: None)


@bug
def tombstone_dropped_early() -> None:
    """The end of a key leaves the view before its time is over."""

    def rules(self: Views, wanted: Wanted) -> Any:
        return original(self, wanted).model_copy(update={"tombstone_retention_s": -1})

    original: Any = change(Views, "_rules", rules)


@bug
def view_above_the_committed_mark() -> None:
    """Views are folded up to what was sent, which may still be rolled back."""

    def begin(self: ViewUpkeep, session: StoreSession, *rest: Any) -> None:
        original(self, _Ahead(session), *rest)

    original: Any = change(ViewUpkeep, "__init__", begin)


# ---- ordering and answers --------------------------------------------------------------------------------------------------------------------------


@bug
def locks_not_checked() -> None:
    """Every lock is free."""

    def judge(self: LockTable, marks: Sequence[int], counts: bytes, locks: Sequence[int], first: int, *rest: Any) -> Any:
        return original(self, [1 << 60] * len(marks), counts, locks, first, *rest)

    original: Any = change(LockTable, "judge", judge)


@bug
def read_locks_not_checked() -> None:
    """Read locks count as append locks."""

    def judge(self: LockTable, marks: Sequence[int], counts: bytes, locks: Sequence[int], first: int, *rest: Any) -> Any:
        kept, fewer, at = bytearray(counts), [], 0
        for place in range(0, len(counts), 3):
            writes, reads, appends = counts[place : place + 3]
            kept[place + 1] = 0
            fewer += [*locks[at : at + writes], *locks[at + writes + reads : at + writes + reads + appends]]
            at += writes + reads + appends
        return original(self, marks, bytes(kept), fewer, first, *rest)

    original: Any = change(LockTable, "judge", judge)


@bug
def lock_floor_too_low() -> None:
    """A new owner knows no locks and believes that all are free, though its table knows nothing of the time before."""

    def begin(self: LockTable, floor: int, entries_max: int) -> None:
        original(self, -1, entries_max)

    original: Any = change(LockTable, "__init__", begin)


@bug
def rejected_before_the_winner_is_committed() -> None:
    """The loser learns of a winner that may never come."""

    def sequence(self: Sequencer, frames: Sequence[ReceivedFrame], *rest: Any) -> Sequenced:
        result: Sequenced = original(self, frames, *rest)
        for appender, number, winner in result.rejected:
            appender.answer(Answers(rejected=[(number, winner)]), 0)
        result.rejected, result.holders = [], []
        return result

    original: Any = change(Sequencer, "sequence", sequence)


@bug
def duplicates_accepted() -> None:
    """A sequence that was sent before is ordered once more."""

    def order_frame(self: Sequencer, frame: ReceivedFrame, result: Sequenced) -> Any:
        frame.appender.last_sequence = -1
        return original(self, frame, result)

    original: Any = change(Sequencer, "_order_frame", order_frame)


@bug
def generation_not_checked() -> None:
    """A frame of an older generation is ordered."""

    def order_frame(self: Sequencer, frame: ReceivedFrame, result: Sequenced) -> Any:
        mine, self.generation = self.generation, frame.generation
        try:
            return original(self, frame, result)
        finally:
            self.generation = mine

    original: Any = change(Sequencer, "_order_frame", order_frame)


_MOUNTING: ContextVar[bool] = ContextVar("mounting", default=False)


@bug
def mount_does_not_wait() -> None:
    """Readiness is reported while appends of the client's older connections are still undecided."""

    async def mount(self: Partition, *given: Any, **named: Any) -> None:
        _MOUNTING.set(True)
        await original(self, *given, **named)

    async def decided(self: OpenPartition) -> int:
        return self.store.committed if _MOUNTING.get() else int(await wait(self))

    original: Any = change(Partition, "mount", mount)
    wait: Any = change(OpenPartition, "decided", decided)


@bug
def older_mounts_not_fenced() -> None:
    """An older connection of a client goes on beside the newer one."""
    change(Partition, "_fence_older", lambda self, serving, mount: None)


@bug
def resolved_without_confirmation() -> None:
    """An owner that may have been deposed says what is not in the log."""

    async def confirm(self: StoreSession) -> None:
        """Does not ask any replica."""

    change(StoreSession, "confirm", confirm)


class _Ahead:
    """A store session that counts what was sent as committed."""

    def __init__(self, session: StoreSession) -> None:
        self._session = session

    def __getattr__(self, name: str) -> Any:
        return self._session.window.last_transaction_id if name == "committed" else getattr(self._session, name)


@bug
def fed_above_the_committed_mark() -> None:
    """Readers see what may still be rolled back."""

    def begin(self: Mount, request: Any, stream: Any, session: StoreSession, *rest: Any) -> None:
        original(self, request, stream, _Ahead(session), *rest)

    original: Any = change(Mount, "__init__", begin)


@bug
def fed_twice() -> None:
    """A feed repeats a block now and then."""

    async def send(self: Mount, frame: Any) -> None:
        await original(self, frame)
        if frame.first % 7 == 3:
            await original(self, frame)

    original: Any = change(Mount, "_send_frame", send)


@bug
def bound_goes_back() -> None:
    """The committed mark that is returned is sometimes an older one."""

    def bound(self: Partition) -> pb.Bound | None:
        found: pb.Bound | None = original(self)
        if found is not None and found.high_water_mark % 3 == 2:
            found.high_water_mark -= 2
        return found

    original: Any = change(Partition, "bound", bound)


# ---- the client ------------------------------------------------------------------------------------------------------------------------------------


@bug
def own_writes_are_foreign() -> None:
    """An append that was given no mark is rejected for what its own client wrote before."""
    change(OwnWrites, "by_others", lambda self, lock, client_id, mark, writer: writer)


@bug
def resent_without_resolving() -> None:
    """After a break everything in flight is sent again."""

    async def settle(self: Producer, address: str) -> None:
        self.window.resend((), None)

    change(Producer, "_settle_in_flight", settle)


@bug
def never_resent() -> None:
    """What was in flight when the connection broke is reported as not in the log."""

    async def settle(self: Producer, address: str) -> None:
        self.window.resend((), self._reason)

    change(Producer, "_settle_in_flight", settle)


@bug
def unknown_reported_as_not_appended() -> None:
    """A deadline that passes while the append is in flight is reported as *not in the log*."""

    def reported(self: append_window.AppendWindow, client_id: int, sequence: int, since: int, reason: str, count: int = 1) -> Any:
        return NotAppended(partition=self.partition, reason=reason)

    change(append_window.AppendWindow, "_unknown", reported)


@bug
def deadlines_ignored() -> None:
    """An append waits without end."""
    change(Producer, "_expire", lambda self: None)
