"""Settings of a client. Values only; the addresses, the network and the randomness are separate arguments of the client."""

from __future__ import annotations

from uuid import UUID

from pydantic import Field

from waltz_log.security.settings import TlsSettings
from waltz_log.settings import Settings

__all__ = ["ClientSettings"]


class ClientSettings(Settings):
    """Settings of a client. A limit per partition applies to each partition to which the client appends."""

    connect_timeout_s: float = Field(default=10.0, gt=0, description="How long to wait for the cluster before `ClusterUnavailable`.")
    cluster_key: UUID | None = Field(
        default=None,
        description="The key of the cluster, as `waltz cluster status` shows it. An address of another cluster is refused with `ClusterKeyMismatch` "
        "before anything is sent to it. None: the cluster that answers first is the right one.",
    )
    append_timeout_s: float = Field(
        default=30.0, gt=0, description="Default deadline of an append, including all its retries. Choose it longer than a change of owner."
    )
    request_timeout_s: float = Field(
        default=10.0, gt=0, description="Deadline of one call and of one mount. The client leaves a server that is slower."
    )
    stall_timeout_s: float = Field(
        default=10.0,
        gt=0,
        description="The client gives up a stream that answers nothing for this time while appends are in flight, and mounts again.",
    )
    close_timeout_s: float = Field(
        default=10.0,
        ge=0,
        description="How long `close` waits for appends. Then those that were sent fail with `OutcomeUnknown`, others with `NotAppended`.",
    )
    frame_bytes: int = Field(
        default=1024 * 1024,
        ge=4096,
        le=8 * 1024 * 1024,
        description="Largest append frame; only a backlog fills it. Smaller frames cost throughput, because each frame has a fixed cost.",
    )
    linger_ms: float = Field(
        default=5.0,
        ge=0,
        le=1000,
        description="How long appends can wait for the answer to the frame before them. If nothing is in flight, they never wait.",
    )
    overlap_bytes: int = Field(
        default=128 * 1024,
        ge=0,
        description="While one frame is in flight, another one is sent only if it has this many bytes, or after `linger_ms`. Each frame has a fixed "
        "cost, so fewer frames need less processor time. If the servers are far away, choose less: latency falls, and processor time rises.",
    )
    max_pending: int = Field(
        default=32_768,
        ge=1,
        description="Transactions that are submitted and not decided, for each partition. At the limit, `append` waits for room.",
    )
    max_pending_bytes: int = Field(
        default=32 * 1024 * 1024,
        ge=4096,
        description="Bytes of these transactions. A single transaction above the limit is still accepted if nothing else is pending.",
    )
    record_bytes_max: int = Field(
        default=1024 * 1024, ge=1, le=8 * 1024 * 1024, description="Largest data of one transaction. Raise it on servers first, then on clients."
    )
    locks_max: int = Field(
        default=255, ge=0, le=255, description="Largest number of locks of one transaction. The frame counts each kind in one byte."
    )
    contexts_max: int = Field(
        default=1024,
        ge=1,
        description="Contexts that are submitted and not done, in all partitions. Each is a task. At the limit, `submit` waits for room.",
    )
    retry_budget: int = Field(
        default=100,
        ge=0,
        description="Retries after `NotAppended` that all transactions of the client can make at once. 0: none. Conflicts are not counted.",
    )
    retry_budget_earned: float = Field(
        default=0.1, ge=0, le=1, description="What each success adds to the budget: the share of retries that the cluster can bear permanently."
    )
    retry_base_s: float = Field(
        default=0.02, gt=0, description="Upper limit of the first pause before a retry. It doubles up to `retry_cap_s`, with full jitter."
    )
    retry_cap_s: float = Field(default=1.0, gt=0, description="Longest pause before a retry.")
    topics: tuple[str, ...] = Field(
        default=(),
        description="Topics, as namespace/topic, whose log partitions this client addresses by number, for example in an outbox or a "
        "context. Without it such an append is refused with BelongsToTopic. In a keyed topic, the data must then start with a "
        "key.",
    )
    tracing: bool = Field(
        default=False,
        description="Records a span of OpenTelemetry for each append that is made inside a span that the application records, and sends its context "
        "beside the record, so that the spans of servers, replicas and tables join the trace. An outbox keeps the context on its disk until "
        "it appends. Needs the extra `tracing`.",
    )
    tls: TlsSettings | None = Field(
        default=None,
        description="Mutual TLS to the cluster. The variables `WALTZ_TLS_CERTIFICATE`, `WALTZ_TLS_KEY` and "
        "`WALTZ_TLS_AUTHORITIES` give the files too, for commands and Spark.",
    )
    principal: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9._@:+-]{1,128}$",
        description="The name of this client, for topics that restrict access. Nothing verifies it: it prevents mistakes, not attacks.",
    )
