"""The next assignment when a replica of a partition is added, removed or replaced while it is in use (docs/internals/recovery.md, Changing replicas).

One replica changes at a time, and the next only when the previous one is clean. After two changes at once, it would be possible that no remaining
replica knows everything that was acknowledged. No step leaves the partition without a majority that can accept appends now, or with fewer than three
replicas unless the change says `force`. If there is only a single replica, the added one would raise the majority before it can be part of it: the
owner fills it first, and includes both when the new one holds everything (`server.partition.renewal`). Pure. Called again after each step, and after
an interruption, it continues from the present state.
"""

from __future__ import annotations

from dataclasses import dataclass

from waltz_log.core.metadata import PartitionMetadata
from waltz_log.core.recovery import majority
from waltz_log.errors import InvalidRequest, Unavailable

__all__ = ["SAFE_REPLICAS", "ReplicaChange", "clean_members", "next_assignment", "risk_of", "settled"]

SAFE_REPLICAS = 3
"""The least number with which any one node may fail and appends continue, with every acknowledged transaction on more than one disk."""


@dataclass(frozen=True, slots=True)
class ReplicaChange:
    """`add` alone, `remove` alone, or both: replace. `force`: with fewer than three replicas in the end, too."""

    partition: int
    add: str | None = None
    remove: str | None = None
    force: bool = False

    def __post_init__(self) -> None:
        if self.add is None and self.remove is None:
            raise InvalidRequest(reason="a change of replicas adds one, removes one, or replaces one by another")
        if self.add == self.remove:
            raise InvalidRequest(reason=f"a replica cannot replace itself: {self.add}")


def clean_members(metadata: PartitionMetadata) -> frozenset[str]:
    """Replicas that hold everything the newest session began with, and take part in it."""
    return frozenset(name for name, state in metadata.replicas.items() if state.session == metadata.session)


def settled(assigned: tuple[str, ...], metadata: PartitionMetadata, added: str | None) -> bool:
    """Whether the owner works with this assignment, and the added replica is clean."""
    return set(metadata.replicas) == set(assigned) and (added is None or added in clean_members(metadata))


def next_assignment(change: ReplicaChange, assigned: tuple[str, ...], metadata: PartitionMetadata, live: frozenset[str]) -> tuple[str, ...] | None:
    """The next assignment to write; None if nothing is left to write. `live`: replicas that follow the owner closely now. Raises `InvalidRequest` for
    a change that is never possible, `Unavailable` for one that is not possible now."""
    add, remove = change.add, change.remove
    adding, removing = add is not None and add not in assigned, remove is not None and remove in assigned
    if remove is not None and not removing and (add is None or adding):
        raise InvalidRequest(reason=f"{remove} is not a replica of partition {change.partition}: replicas={','.join(assigned)}")
    if not adding and not removing:
        return None
    if adding and removing and remove not in live:
        # If the replica that is gone stayed assigned, the added one would raise the majority before it could be part of it.
        wanted = tuple(str(add) if name == remove else name for name in assigned)
    elif adding:
        wanted = (*assigned, str(add))
    else:
        wanted = tuple(name for name in assigned if name != remove)
    if not wanted:
        raise InvalidRequest(reason=f"{remove} is the last replica of partition {change.partition}")
    risk = risk_of(change.partition, assigned, wanted, metadata)
    if risk is not None and not change.force:
        raise InvalidRequest(reason=f"{risk}; add another replica first, or repeat the command with --force")
    _expect_possible(change, assigned, wanted, metadata, live)
    return wanted


def risk_of(partition: int, assigned: tuple[str, ...], wanted: tuple[str, ...], metadata: PartitionMetadata) -> str | None:
    """What a change to fewer replicas puts at risk; None if at least three are left, or not fewer than before. A replica that was never filled holds
    nothing, so its removal risks nothing."""
    if len(wanted) >= min(len(set(assigned) - set(_unfilled(assigned, metadata))), SAFE_REPLICAS):
        return None
    if len(wanted) == 1:
        return (
            f"partition {partition} would have one replica, {wanted[0]}: the failure of its disk loses acknowledged transactions for good, and "
            "nothing can be appended or read while its node is down"
        )
    return (
        f"partition {partition} would have {len(wanted)} replicas, {', '.join(wanted)}: a majority is both of them, so nothing can be appended while "
        "either node is down, and after the failure of one disk a single copy of acknowledged transactions is left"
    )


def _unfilled(assigned: tuple[str, ...], metadata: PartitionMetadata) -> list[str]:
    """Replicas that were assigned and have never been clean."""
    return [name for name in assigned if name not in metadata.replicas or metadata.replicas[name].session < 0]


def _expect_possible(
    change: ReplicaChange, assigned: tuple[str, ...], wanted: tuple[str, ...], metadata: PartitionMetadata, live: frozenset[str]
) -> None:
    fresh = [name for name in _unfilled(assigned, metadata) if name != change.remove]
    if fresh:
        raise Unavailable(reason=f"replicas are still being filled, one change at a time: partition={change.partition} filling={','.join(fresh)}")
    able = [name for name in wanted if name in live and name in clean_members(metadata)]
    # The owner fills a second replica before it counts; until then only the first one accepts appends, as before.
    needed = min(majority(len(wanted)), len(assigned))
    if len(able) < needed:
        facts = f"partition={change.partition} replicas={','.join(wanted)} able={','.join(able) or 'none'} needed={needed}"
        raise Unavailable(reason=f"the partition would have no majority that accepts appends: {facts}")
