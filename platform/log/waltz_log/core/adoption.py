"""The metadata of a cluster whose replicas came without it, from what their directories tell (facts of the original's recovery; docs/recovery.md).

Where the original's coordinator is lost to us, each replica still knows the last session it was a clean member of. Who was in the newest of them
votes, as if the session had never been closed; who was not closed at its own low-water mark, below which nothing is in doubt. A replica that is
missing is recorded as a member of the newest session, so that the vote waits for it wherever it could matter. Pure.
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
    """Of one replica. `session`, `low_water_mark`: of the control file; `fence`: the newest session it saw. `present`: it has files of the partition.
    `generation`, `client_id`: the highest in its records, 0 without any."""

    session: int
    fence: int
    low_water_mark: int
    last_transaction_id: int
    present: bool
    generation: int
    client_id: int


@dataclass(frozen=True, slots=True)
class DirectoryFacts:
    """What a storage directory tells of itself."""

    key: UUID
    partitions: tuple[PartitionFacts, ...]

    def to_json(self) -> str:
        return json.dumps({"key": str(self.key), "partitions": [asdict(each) for each in self.partitions]})

    @classmethod
    def from_json(cls, text: str) -> DirectoryFacts:
        """Raises `ValueError`, `KeyError` or `TypeError` where it is not what `to_json` gave."""
        told = json.loads(text)
        return cls(UUID(told["key"]), tuple(PartitionFacts(**each) for each in told["partitions"]))


@dataclass(frozen=True, slots=True)
class Adoption:
    """`client_id`: the highest that was given out; `replicas` and `metadata` by partition."""

    key: UUID
    replicas: dict[int, tuple[str, ...]]
    metadata: dict[int, PartitionMetadata]
    client_id: int


def adopt(nodes: Mapping[str, DirectoryFacts], missing: Sequence[str] = ()) -> Adoption:
    """`missing`: nodes that held every partition and whose directories are not here. Raises `ClusterKeyMismatch` where the directories are of
    different clusters, `InvalidRequest` where they do not fit together."""
    if not nodes:
        raise InvalidRequest(reason="no storage directory was named")
    names = list(nodes)
    first = nodes[names[0]]
    for name, facts in nodes.items():
        if facts.key != first.key:
            raise ClusterKeyMismatch(expected=f"{first.key}, of {names[0]}", got=f"{facts.key}, of {name}")
        if len(facts.partitions) != len(first.partitions):
            told = f"{names[0]} has {len(first.partitions)}, {name} has {len(facts.partitions)}"
            raise InvalidRequest(reason=f"directories of different numbers of partitions: {told}")
    if both := sorted(set(missing) & set(names)):
        raise InvalidRequest(reason=f"named with a directory and as missing: {', '.join(both)}")
    replicas: dict[int, tuple[str, ...]] = {}
    metadata: dict[int, PartitionMetadata] = {}
    for partition in range(len(first.partitions)):
        held = {name: facts.partitions[partition] for name, facts in nodes.items() if facts.partitions[partition].present}
        if not held:  # nobody ever appended to it
            held = {name: facts.partitions[partition] for name, facts in nodes.items()}
        newest = max(each.session for each in held.values())
        if newest < 0 and any(each.last_transaction_id >= 0 for each in held.values()):
            raise InvalidRequest(reason=f"partition {partition} has transactions and no session: its directories were not migrated, or restored")
        states = {name: _state(each, newest) for name, each in held.items()} | dict.fromkeys(missing, ReplicaState(newest, None))
        generation = max(each.generation for each in held.values())
        replicas[partition] = (*held, *missing)
        session = max(0, newest, *(each.fence for each in held.values()))
        metadata[partition] = PartitionMetadata(generation, session, states if newest >= 0 else {})
    client_id = max(each.client_id for facts in nodes.values() for each in facts.partitions)
    return Adoption(first.key, replicas, metadata, client_id)


def _state(facts: PartitionFacts, newest: int) -> ReplicaState:
    if facts.session == newest:
        return ReplicaState(newest, None)
    return ReplicaState(facts.session, facts.low_water_mark)
