"""The remote procedures, as values: who offers what. The messages stand in `waltz.proto`."""

from __future__ import annotations

from waltz_log.core.ports import Method
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.versions import SPOKEN

__all__ = [
    "BEGIN",
    "BOUND",
    "COMPACT",
    "DESCRIBE",
    "DIRECT",
    "DIRECTLY",
    "DROP_VIEW",
    "KEEP_PROGRESS",
    "LOAD_VIEW",
    "LOCATE",
    "MAX_FRAME_BYTES",
    "MOUNT",
    "OPEN",
    "PING",
    "PROTOCOL_VERSION",
    "READ",
    "READ_VIEW",
    "REPLICATE",
    "RESOLVE",
    "SERVER_STATUS",
    "SET_LOW_WATER_MARK",
    "STORAGE_STATUS",
    "TRANSACTIONS",
    "TRIM",
    "TRUNCATE",
]

PROTOCOL_VERSION = SPOKEN.highest

MAX_FRAME_BYTES = 16 * 1024 * 1024
"""Largest message any port accepts. Senders stay far below (frames of 64 KiB to 1 MiB, one record up to the record limit); above it the
connection ends with an error before memory is taken."""

# offered by the log server
MOUNT = Method("/waltz.Server/Mount", "stream", pb.ClientMessage, pb.ServerMessage)
BOUND = Method("/waltz.Server/Bound", "call", pb.BoundRequest, pb.BoundResponse)
RESOLVE = Method("/waltz.Server/Resolve", "call", pb.ResolveRequest, pb.ResolveResponse)
TRANSACTIONS = Method("/waltz.Server/Transactions", "call", pb.TransactionRequest, pb.TransactionResponse)
SERVER_STATUS = Method("/waltz.Server/Status", "call", pb.ServerStatusRequest, pb.ServerStatusResponse)

# offered by the storage node
OPEN = Method("/waltz.Storage/Open", "call", pb.OpenRequest, pb.OpenResponse)
SET_LOW_WATER_MARK = Method("/waltz.Storage/SetLowWaterMark", "call", pb.LowWaterMarkRequest, pb.LowWaterMarkResponse)
KEEP_PROGRESS = Method("/waltz.Storage/KeepProgress", "call", pb.LowWaterMarkRequest, pb.LowWaterMarkResponse)
TRUNCATE = Method("/waltz.Storage/Truncate", "call", pb.TruncateRequest, pb.TruncateResponse)
REPLICATE = Method("/waltz.Storage/Replicate", "stream", pb.ReplicateRequest, pb.ReplicateResponse)
DIRECT = Method("/waltz.Storage/Direct", "call", pb.ReplicateRequest, pb.DirectResponse)
READ = Method("/waltz.Storage/Read", "read", pb.ReadRequest, pb.ReadResponse)
LOCATE = Method("/waltz.Storage/Locate", "call", pb.LocateRequest, pb.LocateResponse)
PING = Method("/waltz.Storage/Ping", "call", pb.PingRequest, pb.PingResponse)
STORAGE_STATUS = Method("/waltz.Storage/Status", "call", pb.StorageStatusRequest, pb.StorageStatusResponse)

# offered by the storage node for the owner's upkeep; READ_VIEW for readers
DESCRIBE = Method("/waltz.Storage/Describe", "call", pb.DescribeRequest, pb.DescribeResponse)
TRIM = Method("/waltz.Storage/Trim", "call", pb.TrimRequest, pb.TrimResponse)
BEGIN = Method("/waltz.Storage/Begin", "call", pb.BeginRequest, pb.BeginResponse)
COMPACT = Method("/waltz.Storage/Compact", "call", pb.CompactRequest, pb.CompactResponse)
READ_VIEW = Method("/waltz.Storage/ReadView", "read", pb.ReadViewRequest, pb.ReadViewResponse)
LOAD_VIEW = Method("/waltz.Storage/LoadView", "stream", pb.LoadViewRequest, pb.LoadViewResponse)
DROP_VIEW = Method("/waltz.Storage/DropView", "call", pb.DropViewRequest, pb.DropViewResponse)

DIRECTLY = frozenset({REPLICATE})
"""Streams that may have a connection of their own beside gRPC (`direct`). `DIRECT` asks for it with the first message of one of them."""
