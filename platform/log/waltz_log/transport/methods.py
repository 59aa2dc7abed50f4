"""The remote procedures, as values: who offers what. The messages are in `waltz.proto`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, TypeAlias  # Any: messages of any method

from waltz_log.core.ports import CallMethod, ReadMethod, Stream, StreamMethod
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.versions import SPOKEN

__all__ = [
    "BEGIN",
    "BOUND",
    "CLIENT_ID",
    "CLUSTER",
    "COMPACT",
    "CONFIRM",
    "DESCRIBE",
    "DIRECT_PORT_CALLS",
    "DROP_VIEW",
    "FOLLOW",
    "KEEP_CLIENT_IDS",
    "KEEP_PROGRESS",
    "LOAD_VIEW",
    "LOCATE",
    "MAX_FRAME_BYTES",
    "MOUNT",
    "OPEN",
    "OUTBOX",
    "PING",
    "PLACEMENT",
    "PROTOCOL_VERSION",
    "READ",
    "READ_VIEW",
    "REPLICATE",
    "RESOLVE",
    "SERVER_DIRECT",
    "SERVER_STATUS",
    "SET_LOW_WATER_MARK",
    "STORAGE_DIRECT",
    "STORAGE_STATUS",
    "SUBSCRIBERS",
    "TOPICS",
    "TRACES",
    "TRANSACTIONS",
    "TRIM",
    "TRUNCATE",
    "MountStream",
    "ReplicateStream",
    "ServedMountStream",
    "ServedReplicateStream",
    "may_be_direct",
]

PROTOCOL_VERSION = SPOKEN.highest

MAX_FRAME_BYTES = 16 * 1024 * 1024
"""Largest message that any port accepts. Senders stay far below: frames are cut at 64 KiB to 1 MiB, and a larger record travels alone. Above it the
receiver ends the connection with an error, before it allocates memory."""

# offered by the log server
MOUNT = StreamMethod("/waltz.Server/Mount", pb.ClientMessage, pb.ServerMessage)
SERVER_DIRECT = CallMethod("/waltz.Server/Direct", pb.ClientMessage, pb.DirectResponse)
BOUND = CallMethod("/waltz.Server/Bound", pb.BoundRequest, pb.BoundResponse)
RESOLVE = CallMethod("/waltz.Server/Resolve", pb.ResolveRequest, pb.ResolveResponse)
TRANSACTIONS = CallMethod("/waltz.Server/Transactions", pb.TransactionRequest, pb.TransactionResponse)
TRACES = CallMethod("/waltz.Server/Traces", pb.TracesRequest, pb.TracesResponse)
FOLLOW = ReadMethod("/waltz.Server/Follow", pb.FollowRequest, pb.FollowResponse)
CONFIRM = CallMethod("/waltz.Server/Confirm", pb.ConfirmRequest, pb.ConfirmResponse)
CLIENT_ID = CallMethod("/waltz.Server/ClientId", pb.ClientIdRequest, pb.ClientIdResponse)
OUTBOX = CallMethod("/waltz.Server/Outbox", pb.OutboxRequest, pb.OutboxResponse)
SUBSCRIBERS = CallMethod("/waltz.Server/Subscribers", pb.SubscribersRequest, pb.SubscribersResponse)
TOPICS = CallMethod("/waltz.Server/Topics", pb.TopicsRequest, pb.TopicsResponse)
CLUSTER = CallMethod("/waltz.Server/Cluster", pb.ClusterRequest, pb.ClusterResponse)
PLACEMENT = CallMethod("/waltz.Server/Placement", pb.PlacementRequest, pb.PlacementResponse)
SERVER_STATUS = CallMethod("/waltz.Server/Status", pb.ServerStatusRequest, pb.ServerStatusResponse)

# offered by the storage node
OPEN = CallMethod("/waltz.Storage/Open", pb.OpenRequest, pb.OpenResponse)
SET_LOW_WATER_MARK = CallMethod("/waltz.Storage/SetLowWaterMark", pb.LowWaterMarkRequest, pb.LowWaterMarkResponse)
KEEP_PROGRESS = CallMethod("/waltz.Storage/KeepProgress", pb.LowWaterMarkRequest, pb.LowWaterMarkResponse)
KEEP_CLIENT_IDS = CallMethod("/waltz.Storage/KeepClientIds", pb.KeepClientIdsRequest, pb.KeepClientIdsResponse)
TRUNCATE = CallMethod("/waltz.Storage/Truncate", pb.TruncateRequest, pb.TruncateResponse)
REPLICATE = StreamMethod("/waltz.Storage/Replicate", pb.ReplicateRequest, pb.ReplicateResponse)
STORAGE_DIRECT = CallMethod("/waltz.Storage/Direct", pb.ReplicateRequest, pb.DirectResponse)
READ = ReadMethod("/waltz.Storage/Read", pb.ReadRequest, pb.ReadResponse)
LOCATE = CallMethod("/waltz.Storage/Locate", pb.LocateRequest, pb.LocateResponse)
PING = CallMethod("/waltz.Storage/Ping", pb.PingRequest, pb.PingResponse)
STORAGE_STATUS = CallMethod("/waltz.Storage/Status", pb.StorageStatusRequest, pb.StorageStatusResponse)

# offered by the storage node for the owner's upkeep; READ_VIEW for readers
DESCRIBE = CallMethod("/waltz.Storage/Describe", pb.DescribeRequest, pb.DescribeResponse)
TRIM = CallMethod("/waltz.Storage/Trim", pb.TrimRequest, pb.TrimResponse)
BEGIN = CallMethod("/waltz.Storage/Begin", pb.BeginRequest, pb.BeginResponse)
COMPACT = CallMethod("/waltz.Storage/Compact", pb.CompactRequest, pb.CompactResponse)
READ_VIEW = ReadMethod("/waltz.Storage/ReadView", pb.ReadViewRequest, pb.ReadViewResponse)
LOAD_VIEW = StreamMethod("/waltz.Storage/LoadView", pb.LoadViewRequest, pb.LoadViewResponse)
DROP_VIEW = CallMethod("/waltz.Storage/DropView", pb.DropViewRequest, pb.DropViewResponse)

MountStream: TypeAlias = Stream[pb.ClientMessage, pb.ServerMessage]
"""The client's end of `MOUNT`."""
ServedMountStream: TypeAlias = Stream[pb.ServerMessage, pb.ClientMessage]
ReplicateStream: TypeAlias = Stream[pb.ReplicateRequest, pb.ReplicateResponse]
"""The owner's end of `REPLICATE`."""
ServedReplicateStream: TypeAlias = Stream[pb.ReplicateResponse, pb.ReplicateRequest]

DIRECT_PORT_CALLS: Final[Mapping[StreamMethod[Any, Any], CallMethod[Any, pb.DirectResponse]]] = MappingProxyType(
    {REPLICATE: STORAGE_DIRECT, MOUNT: SERVER_DIRECT}
)
"""Streams that may use a direct connection instead of gRPC (package `direct`), and the call that asks for its port with the first message of the
stream."""


def may_be_direct(opening: Any) -> bool:
    """Whether the stream that begins with this message should ask for a direct connection. A mount only if it appends: readers, and mounts that only
    ask for outcomes, would use up the connections of a node and gain little."""
    if not isinstance(opening, pb.ClientMessage):
        return True
    mount = opening.mount
    return bool(mount.client_id) and not mount.appends_nothing and mount.feed == pb.FEED_NONE
