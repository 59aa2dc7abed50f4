"""Decides, from what replicas report, what the log of a partition is when a new store session opens (Waltz Server, Recovery Procedure).

Pure: the shell asks replicas and carries out what is decided here. Four rules are stricter than the original (docs/decisions/0002 and 0018): a
replica whose own session is below the one recorded for it votes nothing *and counts as absent*; a replica is recorded as clean only once it holds
everything up to the resolved mark; the vote is over the replicas of the old metadata, not over those assigned now, and they open the session; a
decision is recorded before it is sent to any replica.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from waltz_log.core.metadata import PartitionMetadata, ReplicaState

__all__ = [
    "Classification",
    "ReplicaReport",
    "awaits_absent",
    "classify",
    "closed_at",
    "closed_metadata",
    "committed_mark",
    "decided_metadata",
    "lost",
    "majority",
    "next_metadata",
    "opening_replicas",
    "resolve",
    "unrecorded_session",
]


def majority(count: int) -> int:
    return count // 2 + 1


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """What a storage node reports about its replica when a session opens it. `local_low_water_mark`: everything up to this id is committed and on its
    disk, whichever session copied it; smaller than `low_water_mark` while the replica is being filled. None: equal to it, as in a clean replica.
    `first_transaction_id`: the first id of the log, `last_transaction_id + 1` if it is empty. `grew_as_member`: the log grew in `session`, before any
    newer session fenced the replica; known until a session makes the replica clean again, or the node starts after a newer session fenced it."""

    session: int
    low_water_mark: int
    last_transaction_id: int
    local_low_water_mark: int | None = None
    first_transaction_id: int = 0
    grew_as_member: bool = False

    @property
    def kept(self) -> int:
        """No recovery truncates the replica below this id."""
        local = self.local_low_water_mark
        return self.low_water_mark if local is None else min(local, self.low_water_mark)


@dataclass(frozen=True, slots=True)
class Classification:
    """`truncate_to` None: leave the log as it is. A replica that votes may hold transactions above the mark that will be resolved. One that
    `counts_absent` was restored or emptied and may have lost what it acknowledged."""

    truncate_to: int | None
    votes: bool
    counts_absent: bool = False


def classify(recorded: ReplicaState | None, report: ReplicaReport) -> Classification:
    """`recorded`: the state in the metadata as the session found it; None for a replica that was not in it."""
    last = report.last_transaction_id
    if recorded is None or recorded.session < 0:
        # The replica was removed and assigned again while it was offline, and no session has opened it since. The metadata no longer records where
        # its former session closed. Ids above its own mark may have been given to other transactions since.
        return Classification(_cut(last, report.kept), votes=False)
    if report.session < recorded.session:
        return lost(report)
    if recorded.closing_high_water_mark is not None:
        # A session that ended before it recorded a member may have resolved a higher mark, which other replicas copied from here. Never truncate
        # below it.
        return Classification(_cut(last, max(recorded.closing_high_water_mark, report.kept)), votes=False)
    return Classification(None, votes=last >= report.low_water_mark)


def unrecorded_session(before: PartitionMetadata, session: int, name: str, report: ReplicaReport) -> int | None:
    """The session which proves that the metadata is older than the replica; None if none does. `session`: the one that opens the replica and has not
    made it clean yet; `before`: the metadata that it found.

    A session number is recorded in the metadata before any replica receives it, a mark before it is sent to any replica, and the members of a session
    before a log grows in it. So an owner that the metadata does not know has used a replica if the replica is already clean in `session` or a newer
    one, if it grew as a member of a session in which it is not recorded, or if its mark is above the one at which the last session closed.

    A decided mark is recorded before any replica becomes clean. So no replica is clean in a session newer than the last recorded one while the mark
    of that one is unknown. This detects older metadata even if the log did not grow and session numbers have passed the replica's.

    A replica that is not recorded at all proves nothing: while it is filled before its assignment, its log grows in sessions of which it is not a
    member. A replica that was assigned and that no session has recorded since (-1) may have been a member before it was removed, in a session older
    than the newest recorded one."""
    recorded = before.replicas.get(name)
    if report.session >= session:
        return report.session
    if recorded is None:
        return None
    newest = max(state.session for state in before.replicas.values())
    unlisted = recorded.session < report.session if recorded.session >= 0 else newest <= report.session
    closed = closed_at(before)
    if closed is None:
        unknown = report.session > newest
    else:
        unknown = report.low_water_mark > closed
    return report.session if unknown or (report.grew_as_member and unlisted) else None


def lost(report: ReplicaReport) -> Classification:
    """Classifies a replica that was emptied or restored within the session in which it had been clean, like one whose session went backwards."""
    return Classification(_cut(report.last_transaction_id, report.kept), votes=False, counts_absent=True)


def _cut(last: int, mark: int) -> int | None:
    return mark if last > mark else None


def resolve(levels: Mapping[str, int], voters: Iterable[str], old: Iterable[str], doubtful: Iterable[str] = ()) -> int | None:
    """The high-water mark of the old session, or None while it is undecidable.

    `levels`: last transaction id of every replica of the old metadata that is present (those that count as absent left out); `voters`: which of them
    voted; `old`: all replicas of the old metadata. From the highest level down: a level that absent replicas could still lift to a majority blocks
    every decision below it (Waltz Server, Quorum Checking in the Recovery Process). Non-voters support only levels that some voter has
    reached: below the lowest voter nothing was ever in doubt.

    `doubtful`: voters that may have acknowledged more than they hold, from memory, before they crashed. Above its own level, such a voter counts like
    an absent replica, because it may have held that level. So nothing is decided below a level that a present replica holds until the doubtful voters
    have copied it.
    """
    members = set(old)
    present = {name: level for name, level in levels.items() if name in members}
    quorum = majority(len(members))
    absent = len(members) - len(present)
    lowest_vote = min((present[name] for name in voters if name in present), default=-1)
    doubts = [present[name] for name in set(doubtful) if name in present]
    for level in sorted(set(present.values()), reverse=True):
        support = sum(1 for own in present.values() if own >= level and own >= lowest_vote)
        if support >= quorum:
            return level
        if support + absent + sum(1 for own in doubts if own < level) >= quorum:
            return None
    return None


def awaits_absent(present: Iterable[str], doubtful: Iterable[str], old: Iterable[str]) -> bool:
    """Whether more may have been acknowledged than any present replica holds: by absent replicas of the old metadata together with doubtful ones. If
    so, recovery waits for a while. If a majority lost its memory, waiting may not help."""
    members = set(old)
    absent = len(members - set(present))
    return absent > 0 and len(members & set(doubtful)) + absent >= majority(len(members))


def next_metadata(current: PartitionMetadata, assigned: Iterable[str], clean: Iterable[str], resolved_high_water_mark: int) -> PartitionMetadata:
    """The metadata once a session has resolved its mark (recovery procedure, step 6). Replicas that are no longer assigned are removed."""
    members = set(clean)
    states: dict[str, ReplicaState] = {}
    for name in assigned:
        known = current.replicas.get(name)
        if name in members:
            states[name] = ReplicaState(current.session, None)
        elif known is None:
            states[name] = ReplicaState(-1, resolved_high_water_mark)
        elif known.session == current.session:
            states[name] = known
        elif known.closing_high_water_mark is None:
            states[name] = ReplicaState(known.session, resolved_high_water_mark)
        else:
            states[name] = known
    return PartitionMetadata(current.generation, current.session, states)


def decided_metadata(current: PartitionMetadata, holders: Iterable[str], mark: int) -> PartitionMetadata:
    """The metadata once the mark of the old session is decided, before it is sent to any replica. Whatever happens to this session, the next one
    finds the mark here. It does not vote again with other replicas present and perhaps a different result. `holders`: a majority that holds
    everything up to the mark; any one of them is enough to continue from. Nothing changes if the mark is recorded already, or if this session has
    members, because then the mark is theirs."""
    if closed_at(current) is not None or any(state.session == current.session for state in current.replicas.values()):
        return current
    members = set(holders)
    states = {
        name: ReplicaState(state.session, mark)
        if name in members and (state.closing_high_water_mark is None or state.closing_high_water_mark < mark)
        else state
        for name, state in current.replicas.items()
    }
    return PartitionMetadata(current.generation, current.session, states)


def opening_replicas(metadata: PartitionMetadata, assigned: tuple[str, ...]) -> tuple[str, ...]:
    """The replicas that open the next session: the assigned ones if the mark is known and a majority of them holds it, else those of the last
    session. A replica that is being removed may be needed for the vote or as a source for copies. A replica that was assigned since may hold nothing;
    it takes part in the session after the next."""
    holding = _closed(metadata).keys() & set(assigned)
    return assigned if not metadata.replicas or len(holding) >= majority(len(assigned)) else tuple(sorted(metadata.replicas))


def _closed(metadata: PartitionMetadata) -> dict[str, int]:
    """The newest session that had members: those that are known to hold everything up to its mark, with the mark."""
    newest = max((state.session for state in metadata.replicas.values()), default=-1)
    marks = {name: state.closing_high_water_mark for name, state in metadata.replicas.items() if state.session == newest >= 0}
    return {name: mark for name, mark in marks.items() if mark is not None}


def closed_metadata(current: PartitionMetadata, complete: Iterable[str], high_water_mark: int) -> PartitionMetadata:
    """The metadata of a session that ended with nothing in flight. `complete`: replicas that hold everything up to the mark. A member that missed the
    tail stays unresolved. The next session finds out where it closed."""
    members = set(complete)
    states = {
        name: ReplicaState(state.session, high_water_mark) if name in members and state == ReplicaState(current.session, None) else state
        for name, state in current.replicas.items()
    }
    return PartitionMetadata(current.generation, current.session, states)


def closed_at(metadata: PartitionMetadata) -> int | None:
    """Where the last session that had members closed in order, or was decided to end. None if neither is known: then its mark must be voted.

    Recovery writes a closing mark only into states of sessions older than the one it makes clean, so within the newest recorded session one can come
    only from `closed_metadata`, or from `decided_metadata` in a recovery that went no further. A session that began since and recorded no member has
    committed nothing."""
    return next(iter(_closed(metadata).values()), None)


def committed_mark(acknowledged: Mapping[str, int], assigned: int) -> int | None:
    """The highest id that a majority of the assigned replicas has on disk; None without a majority. Each value counts for everything before it."""
    quorum = majority(assigned)
    if len(acknowledged) < quorum:
        return None
    return sorted(acknowledged.values(), reverse=True)[quorum - 1]
