"""What the settings of log servers and storage nodes have in common: where they listen, which connections they accept, how these are protected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field, field_validator

from waltz_log.core.node_address import unreachable_reason
from waltz_log.monitoring.settings import HttpSettings
from waltz_log.security.audit_log import AuditSettings
from waltz_log.security.settings import TlsSettings
from waltz_log.settings import Settings
from waltz_log.telemetry.settings import TracingSettings
from waltz_log.transport.connection_limits import ConnectionLimits

__all__ = ["NodeSettings"]


class NodeSettings(Settings):
    """The limits of connections hold for each worker of a node."""

    mistaken: ClassVar[Mapping[str, str]] = {"cluster": "coordinator"}

    coordinator: str = Field(description="Address of the coordinator, `host:port[,host:port]/path`, as nodes and operators use it.")
    listen: str = Field(
        default="127.0.0.1:0",
        description="Address at which clients, servers and peers reach this node, which it "
        "announces: no wildcard such as 0.0.0.0, and no link-local address. Port 0 means a free one.",
    )
    connections_max: int = Field(
        default=2048,
        ge=16,
        le=1 << 20,
        description="Connections that the port accepts at once; further ones are closed. A client needs two for each node. Choose fewer than the "
        "process may have open files. It limits the memory that strangers can use.",
    )
    connections_per_principal: int = Field(
        default=0,
        ge=0,
        le=1 << 20,
        description="Connections on which one principal can have calls at once; calls on others are refused with `QuotaExceeded`, and clients "
        "wait. 0: no limit. It needs `tls`, and does not apply to nodes. Choose two for each process of the largest application.",
    )
    streams_per_principal: int = Field(
        default=16_384,
        ge=0,
        le=1 << 20,
        description="Calls and streams that one principal can have open at once; further ones are refused with `QuotaExceeded`, and clients "
        "wait. Each costs about 64 KiB, and more while a message arrives. 0: no limit. It needs `tls`, and does not apply to nodes. Choose twice "
        "the number of partitions at this node for each process of the largest application.",
    )
    direct_connections_per_principal: int = Field(
        default=64,
        ge=0,
        le=256,
        description="Direct connections of one principal, of 256 at the process; its further streams use gRPC, which costs more. 0: no limit. "
        "It needs `tls`, and does not apply to nodes. Choose 256 divided by the number of applications that append at the same time.",
    )
    received_bytes_per_principal: int = Field(
        default=128 * 1024 * 1024,
        ge=0,
        description="Bytes of append frames that one principal has sent on direct connections and that wait to be ordered, or are not complete. "
        "At the limit nothing more is read from it. 0: no limit. It needs `tls`, and does not apply to nodes. Choose 2 MiB for each direct "
        "connection.",
    )
    unread_bytes_per_principal: int = Field(
        default=64 * 1024 * 1024,
        ge=0,
        description="Bytes that are ready for clients of one principal that do not read them: feeds, reads and answers. At the limit its further "
        "ones wait, and what was not read for 10 s ends. 0: no limit. It needs `tls`, and does not apply to nodes. Choose 1 MiB for each feed that "
        "is behind at the same time.",
    )
    handshake_timeout_s: float = Field(
        default=10.0,
        ge=0.1,
        le=120,
        description="The longest time for the handshakes of TLS and HTTP/2 on a new connection, and for the greeting of a direct one. Choose "
        "some round trips to the most distant client.",
    )
    idle_timeout_s: float = Field(
        default=300.0,
        ge=1,
        description="A connection without a call is closed after this time. Clients connect again when they need to.",
    )
    streams_per_connection: int = Field(
        default=4608,
        ge=64,
        le=1 << 20,
        description="Calls and streams that one connection can have open at once; further ones wait. Clients and servers use one stream for each "
        "partition at this node, and a few calls. 4,608 is enough for a log of 4,096 partitions. Lower it to limit the memory "
        "that one client can use, but not below the number of partitions of the log plus 512.",
    )
    workers: int = Field(
        default=1,
        ge=1,
        le=64,
        description="Processes that share the partitions, by a hash. Use one for each spare core, and at most a quarter of the number of "
        "partitions; with more, some are idle. 1: this process only.",
    )
    worker_silence_s: float = Field(
        default=20.0,
        ge=5,
        le=600,
        description="A worker whose event loop stands still for this long is killed and restarted. `/livez` fails after half of it. Meanwhile "
        "connections that the kernel gave to this worker wait. Choose more than the longest pause of the machine's disk.",
    )
    worker_ports: int = Field(
        default=0,
        ge=-1,
        le=65_000,
        description="Additional port of each worker. Peers that know it reach the worker directly instead of through another one. A number: "
        "the ports from this one on; 0: free ports; -1: none, all calls use the shared port. Choose -1 if only the shared port "
        "can be reached.",
    )
    direct_port: int = Field(
        default=0,
        ge=-1,
        le=65_000,
        description="Port for appends from clients to a log server, and for blocks from log servers to a storage node, on separate connections that "
        "cost less than gRPC: this port, and with several workers the next ones too. 0: free ports; -1: none, everything "
        "arrives at `listen`. Choose -1 if only `listen` can be reached, and a fixed port if a firewall must allow it.",
    )
    tls: TlsSettings | None = Field(
        default=None,
        description="Mutual TLS on every connection. Required where other machines can reach `listen`, unless `insecure` says otherwise. The "
        "variables `WALTZ_TLS_CERTIFICATE`, `WALTZ_TLS_KEY` and `WALTZ_TLS_AUTHORITIES` give the files too.",
    )
    insecure: bool = Field(
        default=False,
        description="Allow plain text at an address that other machines reach. Everyone who reaches it can read, change and stop the log. Set it "
        "only in a network where every machine and person is trusted.",
    )
    audit: AuditSettings | None = Field(
        default=None,
        description="A file for the audit log: each administrative action and each denial, as JSON lines. Without one they are events of the log.",
    )
    http: HttpSettings = Field(
        default=HttpSettings(),
        description="Where the process answers `/livez`, `/readyz` and `/metrics`. Set a port to monitor it with Prometheus or to probe it.",
    )

    tracing: TracingSettings | None = Field(
        default=None,
        description="Sends the spans of traced appends to a collector. None: no spans. Needs the extra `tracing`.",
    )

    @field_validator("listen")
    @classmethod
    def _can_be_announced(cls, listen: str) -> str:
        if reason := unreachable_reason(listen):
            raise ValueError(f"{reason}, at which no other machine reaches the node: name a host or an address of this machine")
        return listen

    @property
    def connection_limits(self) -> ConnectionLimits:
        return ConnectionLimits(
            streams=self.streams_per_connection,
            connections=self.connections_max,
            per_principal=self.connections_per_principal,
            handshake_s=self.handshake_timeout_s,
            idle_s=self.idle_timeout_s,
            streams_per_principal=self.streams_per_principal,
            direct_per_principal=self.direct_connections_per_principal,
            received_per_principal=self.received_bytes_per_principal,
            unread_per_principal=self.unread_bytes_per_principal,
        )
