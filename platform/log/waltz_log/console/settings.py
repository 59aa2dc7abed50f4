"""Settings of the console."""

from __future__ import annotations

import ipaddress
from typing import Self

from pydantic import Field, ValidationInfo, field_validator

from waltz_log.security.audit_log import AuditSettings
from waltz_log.security.settings import TlsSettings
from waltz_log.settings import Settings

__all__ = ["ConsoleSettings"]


class ConsoleSettings(Settings):
    """Settings of the console."""

    cluster: str = Field(description="Log servers of the cluster: host:port[,host:port]. One that answers is enough.")
    tls: TlsSettings | None = Field(
        default=None,
        description="Serve HTTPS to browsers that present a certificate: readers and operators see the pages, and operators act. The same files "
        "protect the connections to the cluster. The certificate lists the addresses that browsers open.",
    )
    listen: str = Field(
        default="127.0.0.1:7080",
        description="host:port on which the console serves. Without `tls` only an address of the loopback of this machine is accepted, because the "
        "console then cannot know who opens its pages. Port 0 is a free one.",
    )
    audit: AuditSettings | None = Field(
        default=None, description="A file for the audit log: each action and each denial, as JSON lines. Without one they are events of the log."
    )
    allow_actions: bool = Field(default=False, description="Offer actions that change the cluster. Without it the console only reads.")
    hidden_topics: tuple[str, ...] = Field(
        default=(),
        description="Topics whose payloads and keys are never shown, searched or downloaded: names or patterns such as payments/*.",
    )
    principal: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9._@:+-]{1,128}$",
        description="Principal to present to topics that restrict who reads them.",
    )
    pipelines: tuple[str, ...] = Field(default=(), description="Pipeline files, or directories of them, to show with their tables and their lag.")
    pipeline_metrics: tuple[str, ...] = Field(
        default=(),
        description="Where the jobs of the pipelines publish their metrics: files, http addresses on this machine, or https addresses, to "
        "which the console presents its certificate.",
    )
    replay_command: str | None = Field(
        default=None,
        description="Command that replays dead letters, without a shell; --pipeline and the file are appended. With it and with actions allowed, the "
        "page of dead letters offers to run it. Example: spark-submit --properties-file conf/spark-defaults.conf jobs/replay_dead_letters.py.",
    )
    sample_interval_s: float = Field(
        default=2.0, ge=0.2, le=60, description="Time between two surveys of the cluster while a page is open. Otherwise they are five times as rare."
    )
    tails_max: int = Field(default=8, ge=1, le=64, description="Live tails that are open at once.")

    @field_validator("listen")
    @classmethod
    def _check_listen(cls, listen: str, info: ValidationInfo) -> str:
        host, colon, port = listen.rpartition(":")
        if not colon or not host or not port.isdecimal() or int(port) > 65535:
            raise ValueError("must be host:port")
        if info.data.get("tls") is None and not _is_loopback(host.removeprefix("[").removesuffix("]")):
            raise ValueError(
                "must be an address of the loopback, such as 127.0.0.1:7080: without TLS the console cannot know who opens its pages; set `tls` "
                "in the file that --config names to listen elsewhere"
            )
        return listen

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        host, _, port = self.listen.rpartition(":")
        return host.removeprefix("[").removesuffix("]"), int(port)

    def without_actions(self) -> Self:
        """The same, and nothing can be changed."""
        return self.model_copy(update={"allow_actions": False})


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
