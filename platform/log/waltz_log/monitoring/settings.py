"""Where a serving process answers `/livez`, `/readyz` and `/metrics`: the block `http` in the settings of log servers and storage nodes."""

from __future__ import annotations

from pydantic import Field

from waltz_log.settings import Settings

__all__ = ["OFF", "HttpSettings"]

OFF = -1
"""As a port: nothing is served."""


class HttpSettings(Settings):
    """The endpoint has no authentication and gives no payloads, lock keys or secrets. It names partitions, storage nodes and errors."""

    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="Address of this machine that the endpoint listens at. Choose an address that only operators and their tools reach: there is "
        "no authentication.",
    )
    port: int = Field(
        default=OFF,
        ge=OFF,
        le=65_535,
        description="Port of the endpoint; 0: a free one, which `waltz cluster status` shows; -1: no endpoint. A node with several workers has one "
        "endpoint, which shows all of them.",
    )

    @property
    def address(self) -> str | None:
        """`host:port`, None without an endpoint."""
        if self.port == OFF:
            return None
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
