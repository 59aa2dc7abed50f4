"""The metadata of a cluster whose replicas came without it, derived from their directories (facts of the original's recovery;
docs/internals/recovery.md).

If the original's coordinator is lost, each replica still knows the last session of which it was a clean member. A replica acknowledges only in a
session in which it is clean, so what the newest session committed is on replicas that were clean in it, its members, and what earlier sessions
committed is below the mark at which each member became clean.

A member may also be a learner, which is clean in the session without being assigned, so a vote over members could decide too low. Without missing
replicas there is no vote: the highest last id of a member is the closing mark of the members that hold it. Logs of members of one session are
prefixes of one another, each committed transaction is on one of them, and no client received the answer that a transaction above is not in the log. A
member that holds less keeps an open state, as in `closed_metadata`, and copies the rest. Every other replica is recorded as assigned and not yet in
any session, as `next_metadata` does: recovery truncates it to its own mark (`core.recovery.classify`) and fills it. So a majority of all replicas
opens the next session, even if only one was clean before the last owner died.

A missing replica is recorded as a member of the newest session without a mark. Then all members are, and the vote waits for the missing one if it
could matter. Other directories are not recorded in this case, because they may belong to replicas that were removed. As members they would raise the
majority of the vote above the number of replicas that acknowledged. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from uuid import UUID

from waltz_log.core.metadata import PartitionMetadata, ReplicaState
from waltz_log.errors import ClusterKeyMismatch, InvalidRequest

__all__ = ["Adoption", "DirectoryFacts", "PartitionFacts", "adopt"]


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """The partition facts of one replica. `session`, `low_water_mark`: of the control file; `fence`: the newest session it saw. `present`: it has
    files of the partition. `generation`, `client_id`: the highest in its records, 0 without any."""

    session: int
    fence: int
    low_water_mark: int
    last_transaction_id: int
    present: bool
    generation: int
    client_id: int


@dataclass(frozen=True, slots=True)
class DirectoryFacts:
    """The description of one storage directory. `client_ids`: the highest that it knows to be reserved, 0 if none."""

    key: UUID
    partitions: tuple[PartitionFacts, ...]
    client_ids: int = 0

    def to_json(self) -> str:
        return json.dumps({"key": str(self.key), "client_ids": self.client_ids, "partitions": [asdict(each) for each in self.partitions]})

    @classmethod
    def from_json(cls, text: str) -> DirectoryFacts:
        """Raises `ValueError`, `KeyError` or `TypeError` if it is not what `to_json` gave."""
        fields = json.loads(text)
        found = cls(UUID(fields["key"]), tuple(PartitionFacts(**each) for each in fields["partitions"]), fields.get("client_ids", 0))
        for values in ({"client_ids": found.client_ids}, *map(asdict, found.partitions)):
            for name, value in values.items():
                if isinstance(value, bool) != (name == "present") or not isinstance(value, int) or not -(1 << 63) <= value < 1 << 63:
                    raise ValueError(f"{name} has an impossible value")
        return found


@dataclass(frozen=True, slots=True)
class Adoption:
    """`client_id`: the highest in a record, or known to be reserved; `replicas` and `metadata` by partition."""

    key: UUID
    replicas: dict[int, tuple[str, ...]]
    metadata: dict[int, PartitionMetadata]
    client_id: int


def adopt(nodes: Mapping[str, DirectoryFacts], missing: Sequence[str] = ()) -> Adoption:
    """`missing`: nodes that held every partition and whose directories are not here. Raises `ClusterKeyMismatch` if the directories are of
    different clusters, `InvalidRequest` if they do not fit together."""
    if not nodes:
        raise InvalidRequest(reason="no storage directory was named")
    names = list(nodes)
    first = nodes[names[0]]
    for name, facts in nodes.items():
        if facts.key != first.key:
            raise ClusterKeyMismatch(where=f"{names[0]} or {name}")
        if len(facts.partitions) != len(first.partitions):
            counts = f"{names[0]} has {len(first.partitions)}, {name} has {len(facts.partitions)}"
            raise InvalidRequest(reason=f"directories of different numbers of partitions: {counts}")
    if both := sorted(set(missing) & set(names)):
        raise InvalidRequest(reason=f"named with a directory and as missing: {', '.join(both)}")
    replicas: dict[int, tuple[str, ...]] = {}
    metadata: dict[int, PartitionMetadata] = {}
    for partition in range(len(first.partitions)):
        held = {name: facts.partitions[partition] for name, facts in nodes.items() if facts.partitions[partition].present}
        if not held:  # nothing was ever appended to it
            held = {name: facts.partitions[partition] for name, facts in nodes.items()}
        newest = max(each.session for each in held.values())
        if newest < 0 and any(each.last_transaction_id >= 0 for each in held.values()):
            raise InvalidRequest(reason=f"partition {partition} has transactions and no session: its directories were not migrated, or restored")
        states = _members(held, newest, missing)
        generation = max(each.generation for each in held.values())
        replicas[partition] = (*held, *missing)
        session = max(0, newest, *(each.fence for each in held.values()))
        metadata[partition] = PartitionMetadata(generation, session, states if newest >= 0 else {})
    client_id = max(max(facts.client_ids, *(each.client_id for each in facts.partitions)) for facts in nodes.values())
    return Adoption(first.key, replicas, metadata, client_id)


def _members(held: Mapping[str, PartitionFacts], newest: int, missing: Sequence[str]) -> dict[str, ReplicaState]:
    """The states to record: of replicas clean in the newest session, and of missing ones; without missing ones, of all."""
    members = [name for name, each in held.items() if each.session == newest]
    if missing:
        return dict.fromkeys((*members, *missing), ReplicaState(newest, None))
    closed_at = max(held[name].last_transaction_id for name in members)

    def state(name: str) -> ReplicaState:
        if name not in members:
            return ReplicaState(-1, closed_at)
        return ReplicaState(newest, closed_at if held[name].last_transaction_id == closed_at else None)

    return {name: state(name) for name in held}
