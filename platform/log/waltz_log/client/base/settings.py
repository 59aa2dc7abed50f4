"""Settings of a client. Values only; the coordinator, the network and the randomness are given to the client beside them."""

from __future__ import annotations

from pydantic import Field

from waltz_log.settings import Settings

__all__ = ["ClientSettings"]


class ClientSettings(Settings):
    """Settings of a client. A limit per partition applies to each partition to which the client appends."""

    connect_timeout_s: float = Field(default=10.0, gt=0, description="How long to wait for the cluster before `ClusterUnavailable`.")
    session_timeout_s: float = Field(
        default=10.0, ge=0.5, description="Coordinator session. A client holds nothing in it; short only makes more traffic."
    )
    append_timeout_s: float = Field(
        default=30.0, gt=0, description="Default deadline of an append, with all its resends. Choose it longer than a change of owner."
    )
    request_timeout_s: float = Field(
        default=10.0, gt=0, description="Deadline of one unary call and of one mount; a server slower than that is left."
    )
    stall_timeout_s: float = Field(
        default=10.0, gt=0, description="A stream that answers nothing for so long, while appends are in flight on it, is given up and mounted again."
    )
    close_timeout_s: float = Field(default=10.0, ge=0, description="How long `close` waits for what is pending; the rest is reported unknown.")
    frame_bytes: int = Field(
        default=1024 * 1024,
        ge=4096,
        le=8 * 1024 * 1024,
        description="Records in one append frame at most; only a backlog fills it. Smaller costs throughput: each frame has a fixed price.",
    )
    linger_ms: float = Field(
        default=2.0,
        ge=0,
        le=1000,
        description="How long a frame that is not full may wait while two others are in flight. Alone, a frame never waits.",
    )
    max_pending: int = Field(
        default=32_768, ge=1, description="Transactions submitted and not decided, per partition. Full, `append` waits for room."
    )
    max_pending_bytes: int = Field(
        default=32 * 1024 * 1024, ge=4096, description="Bytes of them. One transaction above the bound still passes when it is alone."
    )
    record_bytes_max: int = Field(
        default=1024 * 1024, ge=1, le=8 * 1024 * 1024, description="Largest data of one transaction. Raise it on clients and servers alike."
    )
    locks_max: int = Field(
        default=255, ge=0, le=255, description="Largest number of locks of one transaction. The frame counts each kind in one byte."
    )
    contexts_max: int = Field(
        default=1024, ge=1, description="Contexts submitted and not done, in all partitions. Each is a task; full, `submit` waits for room."
    )
    retry_budget: int = Field(
        default=100,
        ge=0,
        description="Retries after `NotAppended` that all transactions of the client may make at once; 0: none. Conflicts are not counted.",
    )
    retry_budget_earned: float = Field(
        default=0.1, ge=0, le=1, description="What each success adds to the budget again: the share of retries that the cluster bears for long."
    )
    retry_base_s: float = Field(
        default=0.02, gt=0, description="First pause before trying again, at most; it doubles up to the maximum, with full jitter."
    )
    retry_cap_s: float = Field(default=1.0, gt=0, description="Longest pause before trying again.")
    topics: tuple[str, ...] = Field(
        default=(),
        description="Topics, as namespace/topic, whose log partitions this client appends to by their numbers, such as an outbox's or a context's. "
        "Without it such an append is refused with BelongsToTopic. In a keyed topic the data must begin with a key then.",
    )
    principal: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9._@:+-]{1,128}$",
        description="The name of this client, for topics that restrict access. Nothing proves it: it prevents mistakes, not attacks.",
    )
