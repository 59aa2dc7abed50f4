"""The ports of the shells, as small protocols: clock, disk, coordinator, network.

The real ones are the wall clock, the file system, ZooKeeper and gRPC; the simulator has its own, so that a whole cluster runs in one thread,
repeatably. Time passes only through the event loop (`asyncio.sleep`, `asyncio.timeout`), which the simulator replaces; `Clock` only gives dates. One
conformance suite per port runs on the fake and on the real one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeAlias, TypeVar  # Any: services hold methods and handlers of all shapes

from waltz_log.core.messages import Encoded, Message

T = TypeVar("T")

__all__ = [
    "AnyMethod",
    "CallMethod",
    "Channel",
    "Clock",
    "Coordinator",
    "Disk",
    "DiskFile",
    "Handler",
    "Listener",
    "Method",
    "Network",
    "Node",
    "Offload",
    "ReadMethod",
    "Receiver",
    "Request",
    "Response",
    "Sender",
    "Served",
    "Service",
    "Stream",
    "StreamMethod",
    "Values",
]


class Clock(Protocol):
    """Dates. No decision for safety may use them."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, UTC."""
        ...


# ---- disk --------------------------------------------------------------------------------------------------------------------------------------


class DiskFile(Protocol):
    """An open file. All calls block; the storage node makes them off the event loop. After an `OSError` of a sync, the file must not be synced
    again."""

    def size(self) -> int: ...
    def read(self, offset: int, length: int) -> bytes:
        """At most `length` bytes from `offset`; shorter only at the end of the file."""
        ...

    def write(self, offset: int, data: bytes) -> None:
        """All of `data`, or `OSError` with an unknown part of it written."""
        ...

    def sync(self) -> None:
        """Data and size reach the medium (fdatasync). After an `OSError` the file's unsynced data is undefined: never sync it again."""
        ...

    def truncate(self, size: int) -> None: ...
    def allocate(self, size: int) -> None:
        """Allocates and fills the first `size` bytes, so that a later write there cannot fail for lack of space and its sync records only the data. A
        shorter file is then `size` long, with zeros at its end. Raises `OSError` if there is not enough space."""
        ...

    def next_data(self, offset: int) -> int:
        """The first byte from `offset` that may not be in a hole of a sparse file, the size of the file if all that follow are. A scan for bytes that
        are not zero may continue there, so that its time is bounded by the space that the file occupies and not by the size that it states."""
        ...

    def uncache(self, start: int, end: int) -> None:
        """Advice: these bytes will probably not be read soon, so the synced ones need not stay in the page cache. Has no effect but on time."""
        ...

    def close(self) -> None: ...


class Disk(Protocol):
    """A directory tree. Paths are relative to its root, separated by `/`."""

    def open(self, path: str, mode: Literal["read", "write", "create"]) -> DiskFile:
        """`read`: must exist; `write`: must exist, read and write; `create`: must not exist, read and write. `OSError` otherwise. Opening one name of
        a file with several names (`link`) to `write` never changes the others: that name first gets its own copy, durably."""
        ...

    def list(self, path: str) -> list[str]:
        """Names in a directory, sorted; empty if the directory does not exist."""
        ...

    def exists(self, path: str) -> bool: ...
    def make_directory(self, path: str) -> None:
        """With parents; no error where it exists. Durable only after `sync_directory` of the parent."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Atomically, replacing. Durable only after `sync_directory`."""
        ...

    def link(self, old: str, new: str) -> None: ...
    def remove(self, path: str) -> None:
        """A file, or a directory that is empty. Durable only after `sync_directory`."""
        ...

    def sync_directory(self, path: str) -> None: ...
    def free_bytes(self) -> int: ...
    def total_bytes(self) -> int: ...
    def writable(self) -> bool:
        """Whether the directory may be written to. False if it was mounted read-only, as after an error of the disk."""
        ...

    def lock(self) -> None:
        """Locks the tree for this process until it ends or unlocks; `OSError` if another process holds it."""
        ...

    def unlock(self) -> None:
        """Releases the lock; no error if it is not held."""
        ...


class Offload(Protocol):
    """Runs a blocking call off the event loop and gives its result. The simulator runs it in place."""

    async def __call__(self, call: Callable[..., T], /, *arguments: Any) -> T: ...


# ---- coordinator -------------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Node:
    """`version`: counts the changes of this node, from 0 each time it is created. `changed`: the number of its last change among those of all nodes,
    which only rises unless the coordinator is restored from a backup."""

    data: bytes
    version: int
    changed: int = field(default=0, compare=False)


class Values(Protocol):
    """Reads small shared state. Paths start with `/` and are relative to the cluster's root."""

    @property
    def reachable(self) -> bool:
        """Whether the ensemble answers this session now."""
        ...

    async def get(self, path: str, *, latest: bool = False) -> Node | None:
        """The node as this session's member of the ensemble knows it, which may be a bounded time behind; a session never goes back, and any write of
        its own, also one that is refused, brings it up to date. `latest`: as it is now, for the price of one more round trip: for a decision that no
        compare-and-set covers."""
        ...

    async def children(self, path: str, *, latest: bool = False) -> list[str]:
        """Names, sorted; empty if the node does not exist. `latest`: as for `get`."""
        ...


class Coordinator(Values, Protocol):
    """Small shared state with compare-and-set, members that vanish with their session, and waits. While no ensemble answers, calls wait; after
    `timeout_s` of the coordinator's settings they raise `ClusterUnavailable`. A value of more than `core.metadata.NODE_BYTES_MAX` is refused with
    `InvalidRequest`."""

    async def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> bool:
        """Makes the node and its parents. False if it exists already."""
        ...

    async def set(self, path: str, data: bytes, version: int) -> int | None:
        """Compare-and-set: the new version, or None if the node has another version than `version` or does not exist. -1 skips the comparison."""
        ...

    async def delete(self, path: str, version: int = -1) -> bool: ...
    async def wait_changed(self, path: str, version: int | None) -> None:
        """Returns when the node's version is not `version` (None: does not exist). Level-triggered: no change is missed between two calls."""
        ...

    async def wait_children(self, path: str, known: list[str]) -> None:
        """Returns when `children(path)` is not `known`."""
        ...

    async def wait_session_lost(self) -> None:
        """Returns when the session that holds this process's ephemeral nodes has ended. A coordinator is used up then; make another."""
        ...

    async def close(self) -> None:
        """Ends the session; ephemeral nodes vanish at once."""
        ...


# ---- network -----------------------------------------------------------------------------------------------------------------------------------

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)
Sent = TypeVar("Sent", bound=Message)
Received = TypeVar("Received", bound=Message)
Sent_contra = TypeVar("Sent_contra", bound=Message, contravariant=True)
Received_co = TypeVar("Received_co", bound=Message, covariant=True)


class Sender(Protocol[Sent_contra]):
    """The end of a message stream that sends. `send` waits while the other end does not read (flow control), so a slow peer bounds its sender's
    memory."""

    async def send(self, message: Sent_contra | Encoded[Sent_contra]) -> None:
        """Raises the peer's `WaltzError` or `ConnectionLost` if the stream has ended."""
        ...

    async def cancel(self) -> None:
        """Ends the stream at once, both ways."""
        ...


class Receiver(Protocol[Received_co]):
    """The end of a message stream that receives."""

    async def receive(self) -> Received_co | None:
        """The next message; None if the other end finished in order; otherwise the peer's `WaltzError` or `ConnectionLost`."""
        ...

    async def cancel(self) -> None:
        """Ends the stream at once, both ways."""
        ...


class Stream(Sender[Sent_contra], Receiver[Received_co], Protocol[Sent_contra, Received_co]):
    """One end of a message stream in both directions: what this end sends, what it receives."""

    async def finish(self) -> None:
        """Says that nothing more is sent from this end. Receiving continues."""
        ...


@dataclass(frozen=True, slots=True)
class Method(Generic[Request, Response]):
    """One remote procedure: its name and its messages. For each `kind` a subclass defines the types of its handler; each call of `Channel` accepts
    one kind."""

    kind: ClassVar[Literal["call", "read", "stream"]]
    name: str
    request: type[Request]
    response: type[Response]


AnyMethod: TypeAlias = Method[Any, Any]
"""A method with any messages: for code that carries messages without reading them."""

Handler: TypeAlias = Callable[..., Awaitable[Any]]
"""Any, because a service holds handlers of all shapes. The shape was checked when `served_by` paired the handler with its method."""


@dataclass(frozen=True, slots=True)
class Served:
    """A method with the handler that serves it. Make it with `served_by`, which checks that they fit."""

    method: AnyMethod
    handler: Handler


Service: TypeAlias = Sequence[Served]
"""What a node offers; each method once. A `WaltzError` that a handler raises reaches the caller as itself; anything else is logged and ends that call
alone. A handler is cancelled when its peer is gone."""


@dataclass(frozen=True, slots=True)
class CallMethod(Method[Request, Response]):
    """One request, one answer."""

    kind = "call"

    def served_by(self, handler: Callable[[Request], Awaitable[Response]]) -> Served:
        return Served(self, handler)


@dataclass(frozen=True, slots=True)
class ReadMethod(Method[Request, Response]):
    """One request, a stream of answers, which ends in order when the handler returns."""

    kind = "read"

    def served_by(self, handler: Callable[[Request, Sender[Response]], Awaitable[None]]) -> Served:
        return Served(self, handler)


@dataclass(frozen=True, slots=True)
class StreamMethod(Method[Request, Response]):
    """Messages in both directions. The stream ends in order when the handler returns."""

    kind = "stream"

    def served_by(self, handler: Callable[[Stream[Response, Request]], Awaitable[None]]) -> Served:
        return Served(self, handler)


class Channel(Protocol):
    """A connection to one address, opened at its first use and again when needed."""

    @property
    def address(self) -> str: ...
    async def call(self, method: CallMethod[Request, Response], request: Request, *, timeout_s: float) -> Response:
        """One answer, or the peer's `WaltzError`, or `ConnectionLost` (outcome unknown)."""
        ...

    def read(self, method: ReadMethod[Request, Response], request: Request) -> Receiver[Response]:
        """The answers to one request. Connection errors show at the first use."""
        ...

    def open(self, method: StreamMethod[Request, Response]) -> Stream[Request, Response]:
        """A stream. Connection errors show at the first use."""
        ...

    async def close(self) -> None: ...


class Listener(Protocol):
    @property
    def address(self) -> str:
        """`host:port`, with the real port where 0 was asked for."""
        ...

    async def close(self, grace_s: float = 0.0) -> None: ...


class Network(Protocol):
    def connect(self, address: str) -> Channel: ...
    async def serve(self, address: str, service: Service) -> Listener: ...
