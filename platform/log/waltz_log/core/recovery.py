"""Decides, from what replicas report, what the log of a partition is when a new store session opens (Waltz Server, Recovery Procedure).

Pure: the shell asks replicas and carries out what is decided here. Four rules are stricter than the original (docs/decisions/0002 and 0018):
a replica whose own session is below the one recorded for it votes nothing *and counts as absent*; a replica is recorded as clean only once it holds
everything up to the resolved mark; the vote is over the replicas of the old metadata, not over those assigned now, and it is they who
open the session; what was decided is recorded before any replica is told.
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
    """What a storage node says of its replica when a session opens it. `local_low_water_mark`: everything up to here is committed and on its disk,
    whichever session copied it; smaller than `low_water_mark` while the replica is being filled. None: the same, as of a clean replica.
    `first_transaction_id`: of the log, `last_transaction_id + 1` where it is empty. `grew_as_member`: the log grew in `session`, before any newer
    session fenced the replica; known until a session makes it clean again, or the node starts after a newer session fenced it."""

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
    """`truncate_to` None: leave the log as it is. A replica that votes may hold transactions above the mark that will be resolved.
    One that `counts_absent` was restored or emptied: what it once acknowledged it may have forgotten."""

    truncate_to: int | None
    votes: bool
    counts_absent: bool = False


def classify(recorded: ReplicaState | None, report: ReplicaReport) -> Classification:
    """`recorded`: the state in the metadata as the session found it; None for a replica that was not in it."""
    last = report.last_transaction_id
    if recorded is None or recorded.session < 0:
        # Nobody remembers where a session closed that it was a member of before it was removed, so that what it holds above its own mark may have
        # been given to others since. It was assigned again meanwhile, and not there: no session has looked at it.
        return Classification(_cut(last, report.kept), votes=False)
    if report.session < recorded.session:
        return lost(report)
    if recorded.closing_high_water_mark is not None:
        # A session that ended before it recorded anybody may have resolved a higher mark already, and others copied it from here: never below that.
        return Classification(_cut(last, max(recorded.closing_high_water_mark, report.kept)), votes=False)
    return Classification(None, votes=last >= report.low_water_mark)


def unrecorded_session(before: PartitionMetadata, session: int, name: str, report: ReplicaReport) -> int | None:
    """The session that gives away that the metadata is older than the replica; None where nothing does. `session`: the one that opens the replica and
    has not made it clean yet; `before`: the metadata that it found.

    Session numbers are taken in the metadata before any replica hears of them, marks are recorded before any replica is told, and the members of a
    session are recorded before a log grows in it. So an owner of whom the metadata knows nothing has used a replica that is clean in `session` or a
    newer one already, that grew as a member of a session in which it is not recorded, or whose mark is above the one the last session closed at.

    As a decided mark is recorded before any replica becomes clean, nobody is clean in a session newer than the last recorded one while no mark of
    that is known: this gives older metadata away also where the log did not grow and session numbers have passed the replica's.

    Of a replica that is not recorded at all the metadata says nothing: while it is filled to be assigned, its log grows in sessions it is no member
    of. One that was assigned and that no session has recorded since (-1) may have been a member before it was removed: of a session older than the
    newest recorded one."""
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
    """A replica that was emptied or restored within the session it had been clean in: as one whose session went backwards."""
    return Classification(_cut(report.last_transaction_id, report.kept), votes=False, counts_absent=True)


def _cut(last: int, mark: int) -> int | None:
    return mark if last > mark else None


def resolve(levels: Mapping[str, int], voters: Iterable[str], old: Iterable[str], doubtful: Iterable[str] = ()) -> int | None:
    """The high-water mark of the old session, or None while it is undecidable.

    `levels`: last transaction id of every replica of the old metadata that is present (those that count as absent left out); `voters`: which of them
    voted; `old`: all replicas of the old metadata. From the highest level down: a level that absent replicas could still lift to a majority blocks
    every decision below it (Waltz Server, Quorum Checking in the Recovery Process). Non-voters support only levels that some voter has
    reached: below the lowest voter nothing was ever in doubt.

    `doubtful`: voters that may have acknowledged more than they hold, from memory, before they died. Above its own level one of them counts like an
    absent replica: it may have been there. So nothing is decided below a level that somebody present holds before they have copied it.
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
    """Whether more may have been acknowledged than anybody present holds: by replicas of the old metadata that are absent together with doubtful
    ones. Worth waiting a while for; where a majority lost its memory it may be in vain."""
    members = set(old)
    absent = len(members - set(present))
    return absent > 0 and len(members & set(doubtful)) + absent >= majority(len(members))


def next_metadata(current: PartitionMetadata, assigned: Iterable[str], clean: Iterable[str], resolved_high_water_mark: int) -> PartitionMetadata:
    """The metadata once a session has resolved its mark (recovery procedure, step 6). Replicas no longer assigned vanish."""
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
    """The metadata once the mark of the old session is decided, before any replica is told of it: whatever becomes of this session, the next one
    finds the mark here and does not vote again, with other replicas present and to another end. `holders`: those that hold everything up to the mark,
    a majority; any one of them is enough to go on from. Nothing changes where the mark is there already, or where this session has members: then it
    is theirs."""
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
    """The replicas that open the next session: those assigned, where the mark is known and a majority of them holds it; else those of the last one.
    Who is being removed may be needed, for the vote or to copy from, and who was assigned since may hold nothing; the session after it is theirs."""
    holding = _closed(metadata).keys() & set(assigned)
    return assigned if not metadata.replicas or len(holding) >= majority(len(assigned)) else tuple(sorted(metadata.replicas))


def _closed(metadata: PartitionMetadata) -> dict[str, int]:
    """Members of the newest session that had any of which it is known that they hold everything up to its mark, and the mark."""
    newest = max((state.session for state in metadata.replicas.values()), default=-1)
    marks = {name: state.closing_high_water_mark for name, state in metadata.replicas.items() if state.session == newest >= 0}
    return {name: mark for name, mark in marks.items() if mark is not None}


def closed_metadata(current: PartitionMetadata, complete: Iterable[str], high_water_mark: int) -> PartitionMetadata:
    """The metadata of a session that ended with nothing in flight. `complete`: replicas that hold everything up to the mark. A member that missed the
    tail stays unresolved: where it closed is for the next session to find out."""
    members = set(complete)
    states = {
        name: ReplicaState(state.session, high_water_mark) if name in members and state == ReplicaState(current.session, None) else state
        for name, state in current.replicas.items()
    }
    return PartitionMetadata(current.generation, current.session, states)


def closed_at(metadata: PartitionMetadata) -> int | None:
    """Where the last session that had members closed in good order, or was decided to end; None where neither is known, and its mark must be voted.

    Recovery writes a closing mark only into states of sessions older than the one it makes clean, so within the newest recorded session one can come
    from `closed_metadata` alone, or from `decided_metadata`: a recovery that went no further. A session that was begun since and recorded nobody has
    committed nothing."""
    return next(iter(_closed(metadata).values()), None)


def committed_mark(acknowledged: Mapping[str, int], assigned: int) -> int | None:
    """The highest id that a majority of the assigned replicas has on disk; None without a majority. Each value counts for everything before it."""
    quorum = majority(assigned)
    if len(acknowledged) < quorum:
        return None
    return sorted(acknowledged.values(), reverse=True)[quorum - 1]
