"""What the coordinator holds for a cluster: paths, and the values in them as JSON.

| path | value | written by |
|---|---|---|
| `/cluster` | `ClusterParameters` | cluster creation; growing it, by compare-and-set |
| `/store/assignment` | `ReplicaAssignment` | cluster creation and growth, replica changes |
| `/store/moves` | replicas that are being moved, by partition | `waltz drain` and `waltz rebalance`, by compare-and-set |
| `/store/nodes/<name>` | `StorageNodeEntry` | the storage node, at each start |
| `/store/partition/<id>` | `PartitionMetadata` (Waltz Server, Partition Metadata) | the owner, by compare-and-set |
| `/store/locks/<id>` | the newest locks, in bytes (`server/ordering/handed_locks.py`) | the owner, when it closes in order |
| `/servers/<id>` | `ServerEntry`, ephemeral | the log server |
| `/manager` | server id, ephemeral | the cluster manager in office |
| `/assignment` | `Assignment` | the cluster manager; a command that moves owners or drains a node; by compare-and-set |
| `/stranded/<server>-<worker>` | `Stranded` by partition (`core.hand_over`), ephemeral; there while one has no majority | the log server |
| `/reach/<server>-<worker>` | by partition the replicas that answer, ephemeral; there while a partition needs it | the log server |
| `/ids/client` | the last client id that is reserved, a decimal number | log servers, by compare-and-set |
| `/ids/ticket_key` | `TicketKey` (`security.tickets`) | the first log server; `waltz cluster repair` |
| `/ids/server` | a decimal counter | compare-and-set |
| `/topics` | `Catalogue` (`core.topics.catalogue`) | a client or command that creates or changes a topic, by compare-and-set |
| `/store/retained/<id>` | `Retained` (`core.retention`): the first retained transaction | the owner, by compare-and-set |
| `/subscribers/<name>` | `Subscriber` (`core.topics.subscribers`) | log servers for the subscriber, by compare-and-set |
| `/outboxes/<client id>` | `OutboxRecord` (`core.outbox_record`) | log servers for the outbox, by compare-and-set |

A replica is named by its storage node's name, not by an address as in the original, so that a node may come back at another address. With TLS,
entries of nodes and the assignment also hold the principal of each node's certificate, which a process that connects must find there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from waltz_log.core.node_address import announced_addresses, announced_name
from waltz_log.core.topics.sharding import worker_of
from waltz_log.errors import InvalidRequest

__all__ = [
    "ASSIGNMENT",
    "CLIENT_IDS",
    "CLUSTER",
    "MANAGER",
    "NODE_BYTES_MAX",
    "PARTITIONS_MAX",
    "REACH",
    "REPLICAS",
    "REPLICA_MOVES",
    "SERVERS",
    "SERVER_IDS",
    "STORAGE_NODES",
    "STRANDED",
    "Assignment",
    "ClusterParameters",
    "HandedOver",
    "Ownership",
    "PartitionMetadata",
    "ReplicaAssignment",
    "ReplicaMove",
    "ReplicaState",
    "ServerEntry",
    "StorageNodeEntry",
    "expect_fits",
    "expect_numbers",
    "expect_texts",
    "handed_locks_path",
    "moves_to_bytes",
    "outbox_path",
    "parse_moves",
    "partition_path",
]

CLUSTER = "/cluster"
ASSIGNMENT = "/assignment"
MANAGER = "/manager"
SERVERS = "/servers"
STRANDED = "/stranded"
REACH = "/reach"
REPLICAS = "/store/assignment"
REPLICA_MOVES = "/store/moves"
STORAGE_NODES = "/store/nodes"
CLIENT_IDS = "/ids/client"
OUTBOXES = "/outboxes"
SERVER_IDS = "/ids/server"

PARTITIONS_MAX = 4096
"""The assignment of all partitions is one ZooKeeper node, which holds 1 MB."""

NODE_BYTES_MAX = 1_000_000
"""The size of one node's value. ZooKeeper accepts 1 MiB for a whole request. It closes the connection on a larger one, which a client cannot
distinguish from an outage."""


def expect_fits(path: str, data: bytes) -> None:
    """Raises `InvalidRequest` for more than a node of the coordinator holds."""
    if len(data) > NODE_BYTES_MAX:
        raise InvalidRequest(reason=f"too much for one node of the coordinator, make it smaller: path={path} bytes={len(data)} most={NODE_BYTES_MAX}")


def partition_path(partition: int) -> str:
    return f"/store/partition/{partition}"


def handed_locks_path(partition: int) -> str:
    return f"/store/locks/{partition}"


def outbox_path(client_id: int) -> str:
    return f"{OUTBOXES}/{client_id}"


def _dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


@dataclass(frozen=True, slots=True)
class ClusterParameters:
    """`epoch`: rises each time the coordinator was rebuilt or restored from a backup, which turns its versions and counters back. What clients and
    servers keep of an earlier epoch is void. `ruled`: rules of access were written once, so that their absence is a fault and permits nothing."""

    name: str
    key: UUID
    partitions: int
    epoch: int = 0
    ruled: bool = False

    def to_bytes(self) -> bytes:
        fields: dict[str, object] = {"name": self.name, "key": str(self.key), "partitions": self.partitions}
        return _dump(fields | ({"epoch": self.epoch} if self.epoch else {}) | ({"ruled": True} if self.ruled else {}))

    @classmethod
    def from_bytes(cls, data: bytes) -> ClusterParameters:
        """Raises `ValueError`, `LookupError` or `TypeError`."""
        found = json.loads(data)
        name, partitions, epoch = found["name"], found["partitions"], found.get("epoch", 0)
        if not isinstance(name, str) or type(partitions) is not int or type(epoch) is not int or not 0 < partitions <= PARTITIONS_MAX:
            raise ValueError(f"no parameters of a cluster: name={name!r} partitions={partitions!r} epoch={epoch!r}")
        return cls(name=name, key=UUID(found["key"]), partitions=partitions, epoch=epoch, ruled=found.get("ruled") is True)


@dataclass(frozen=True, slots=True)
class ReplicaAssignment:
    """Which storage nodes hold which partition."""

    replicas: dict[int, tuple[str, ...]]

    def to_bytes(self) -> bytes:
        return _dump({str(partition): list(names) for partition, names in self.replicas.items()})

    @classmethod
    def from_bytes(cls, data: bytes) -> ReplicaAssignment:
        return cls({int(partition): tuple(names) for partition, names in json.loads(data).items()})


@dataclass(frozen=True, slots=True)
class ReplicaMove:
    """A replica of a partition goes from one storage node to another one."""

    partition: int
    remove: str
    add: str


def moves_to_bytes(moves: Mapping[int, ReplicaMove]) -> bytes:
    return _dump({str(partition): [each.remove, each.add] for partition, each in sorted(moves.items())})


def parse_moves(data: bytes) -> dict[int, ReplicaMove]:
    return {int(partition): ReplicaMove(int(partition), remove, add) for partition, (remove, add) in json.loads(data).items()}


def _owners_address(address: str, workers: tuple[str, ...], partition: int) -> str:
    """Where a node answers for a partition: at the address of the worker if the node published its workers' addresses, else at the node's address.
    Both work; at the node's address a call may have to be forwarded."""
    return workers[worker_of(partition, len(workers))] if workers else address


def _with_workers(fields: dict[str, object], workers: object) -> bytes:
    """A node of one process publishes no workers."""
    return _dump(fields | ({"workers": workers} if workers else {}))


def _with_principal(fields: dict[str, object], address: str) -> dict[str, object]:
    """A node without TLS announces no name."""
    principal = announced_name(address)
    return fields | {"principal": principal} if principal else fields


def expect_texts(*values: object) -> tuple[str, ...]:
    """Raises `ValueError` for anything else: one entry is what one process of the cluster wrote, and its readers have others to read."""
    texts = tuple(each for each in values if isinstance(each, str) and each)
    if len(texts) != len(values):
        raise ValueError("not a text where an entry has one")
    return texts


def expect_numbers(*values: object) -> tuple[int, ...]:
    """Raises `ValueError` for anything else."""
    numbers = tuple(each for each in values if type(each) is int)
    if len(numbers) != len(values):
        raise ValueError("not a number where an entry has one")
    return numbers


def _number_or_none(value: object) -> int | None:
    return None if value is None else expect_numbers(value)[0]


@dataclass(frozen=True, slots=True)
class StorageNodeEntry:
    """`start`: how often the node's directory was started; a directory with a smaller count was restored from a copy. `workers`: their addresses, in
    order."""

    address: str
    start: int
    workers: tuple[str, ...] = ()

    def address_for(self, partition: int) -> str:
        return _owners_address(self.address, self.workers, partition)

    def to_bytes(self) -> bytes:
        return _with_workers(_with_principal({"address": self.address, "start": self.start}, self.address), self.workers)

    @classmethod
    def from_bytes(cls, data: bytes) -> StorageNodeEntry:
        found = json.loads(data)
        address, *workers = announced_addresses(expect_texts(found["address"], *found.get("workers", ())), found.get("principal"))
        return cls(address, expect_numbers(found["start"])[0], tuple(workers))


@dataclass(frozen=True, slots=True)
class ServerEntry:
    server_id: int
    address: str
    preferred: tuple[int, ...] = ()
    workers: tuple[str, ...] = ()

    def to_bytes(self) -> bytes:
        fields: dict[str, object] = {"server_id": self.server_id, "address": self.address, "preferred": self.preferred}
        return _with_workers(_with_principal(fields, self.address), self.workers)

    @classmethod
    def from_bytes(cls, data: bytes) -> ServerEntry:
        found = json.loads(data)
        address, *workers = announced_addresses(expect_texts(found["address"], *found.get("workers", ())), found.get("principal"))
        return cls(expect_numbers(found["server_id"])[0], address, expect_numbers(*found["preferred"]), tuple(workers))


@dataclass(frozen=True, slots=True)
class Ownership:
    """`server_id` None: the partition has no owner now. The generation rises with every change of owner."""

    server_id: int | None
    generation: int


@dataclass(frozen=True, slots=True)
class HandedOver:
    """A partition that its owner could not serve for lack of a majority of its replicas (`core.hand_over`). `avoids`: live servers that it is not
    assigned to, because they reached no majority; `moves`: how often it was handed over since the count was last reset."""

    avoids: tuple[int, ...]
    moves: int


@dataclass(frozen=True, slots=True)
class Assignment:
    """Which server owns which partition, and the addresses of the servers, with their names (`core.node_address`). `workers`: the addresses of a
    server's workers, if it has any.

    `moved`: partitions that an operator gave to a server, by its address, so that they stay with it and return to it after a restart. `drained`:
    servers, by address, that own nothing while another one is alive, and storage nodes, by name, that get no new replicas."""

    partitions: dict[int, Ownership] = field(default_factory=dict)
    addresses: dict[int, str] = field(default_factory=dict)
    workers: dict[int, tuple[str, ...]] = field(default_factory=dict)
    handed_over: dict[int, HandedOver] = field(default_factory=dict)
    moved: dict[int, str] = field(default_factory=dict)
    drained: tuple[str, ...] = ()

    def address_of(self, partition: int) -> str | None:
        owned = self.partitions.get(partition)
        if owned is None or owned.server_id is None or owned.server_id not in self.addresses:
            return None
        return _owners_address(self.addresses[owned.server_id], self.workers.get(owned.server_id, ()), partition)

    @property
    def every_address(self) -> set[str]:
        return set(self.addresses.values()).union(*self.workers.values())

    def to_bytes(self) -> bytes:
        fields: dict[str, object] = {
            "partitions": {str(p): [o.server_id, o.generation] for p, o in self.partitions.items()},
            "addresses": {str(server): address for server, address in self.addresses.items()},
        }
        if self.handed_over:
            fields["handed_over"] = {str(p): [list(each.avoids), each.moves] for p, each in self.handed_over.items()}
        if self.moved:
            fields["moved"] = {str(p): address for p, address in self.moved.items()}
        if self.drained:
            fields["drained"] = list(self.drained)
        principals = {str(server): name for server, address in self.addresses.items() if (name := announced_name(address))}
        if principals:
            fields["principals"] = principals
        return _with_workers(fields, {str(server): addresses for server, addresses in self.workers.items()})

    @classmethod
    def from_bytes(cls, data: bytes) -> Assignment:
        found = json.loads(data)
        principals = found.get("principals", {})
        return cls(
            {int(p): Ownership(server, generation) for p, (server, generation) in found["partitions"].items()},
            {int(server): announced_addresses((address,), principals.get(server))[0] for server, address in found["addresses"].items()},
            {int(server): announced_addresses(addresses, principals.get(server)) for server, addresses in found.get("workers", {}).items()},
            {int(p): HandedOver(tuple(avoids), moves) for p, (avoids, moves) in found.get("handed_over", {}).items()},
            {int(p): address for p, address in found.get("moved", {}).items()},
            tuple(found.get("drained", ())),
        )


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """The last store session this replica was a clean member of, and where that session closed (None: unresolved)."""

    session: int
    closing_high_water_mark: int | None


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """`newer_session`: the session of a replica that this metadata does not know, which shows that the metadata is older than the replicas. No server
    opens the partition while this is set."""

    generation: int
    session: int
    replicas: dict[str, ReplicaState]
    newer_session: int | None = None

    def to_bytes(self) -> bytes:
        found: dict[str, object] = {
            "generation": self.generation,
            "session": self.session,
            "replicas": {name: [state.session, state.closing_high_water_mark] for name, state in self.replicas.items()},
        }
        return _dump(found if self.newer_session is None else found | {"newer_session": self.newer_session})

    @classmethod
    def from_bytes(cls, data: bytes) -> PartitionMetadata:
        found = json.loads(data)
        states = {name: ReplicaState(expect_numbers(last)[0], _number_or_none(mark)) for name, (last, mark) in found["replicas"].items()}
        generation, session = expect_numbers(found["generation"], found["session"])
        return cls(generation, session, states, _number_or_none(found.get("newer_session")))
